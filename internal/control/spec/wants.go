package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// resolveDevices turns counts by profile into the planner's wants. The keys of devices are names or
// ids of profiles, or names of compute instances such as 1c.3g.20gb: these share as few 3g.20gb
// instances as possible. key is the place of devices in the document, for errors.
func resolveDevices(
	key string,
	devices map[string]api.DeviceRequest,
) ([]mig.Want, *strictyaml.Error) {
	if len(devices) > maxKinds {
		return nil, newError(key, "has %d profiles; expected at most %d", len(devices), maxKinds)
	}

	var list []mig.Want
	sizesIn := map[mig.Name][]int{} // sizes of compute instances, by the GPU instance's profile

	for _, name := range slices.Sorted(maps.Keys(devices)) {
		request := devices[name]
		at := strictyaml.Join(key, name)

		if name == "" || len(name) > maxText {
			return nil, newError(
				key, "has the key %.60q; expected the name or id of a profile", name)
		}

		profile, err := mig.ParseName(name)
		if err != nil || profile.Part == 0 {
			wants, err := resolveRequest(at, name, request)
			if err != nil {
				return nil, err
			}

			list = append(list, wants...)
			continue
		}

		sizes, sizesErr := computeSizesOf(at, profile, request)
		if sizesErr != nil {
			return nil, sizesErr
		}

		profile.Part = 0
		sizesIn[profile] = append(sizesIn[profile], sizes...)
	}

	names := slices.SortedFunc(
		maps.Keys(sizesIn),
		func(a, b mig.Name) int { return cmp.Compare(a.String(), b.String()) },
	)
	for _, name := range names {
		sum := 0
		for _, size := range sizesIn[name] {
			sum += size
		}

		if sum > maxSlices {
			return nil, newError(
				key,
				"has compute instances of %s with %d slices; expected at most %d",
				name,
				sum,
				maxSlices,
			)
		}

		for _, sizes := range pack(sizesIn[name], name.Slices) {
			list = append(list, mig.Want{Profile: name.String(), Count: 1, ComputeInstances: sizes})
		}
	}

	return list, nil
}

// resolveRequest turns a request for instances of a profile into the planner's wants.
func resolveRequest(
	key, profile string,
	request api.DeviceRequest,
) ([]mig.Want, *strictyaml.Error) {
	if request.Each == nil {
		want, err := resolveCount(key, profile, request)
		return []mig.Want{want}, err
	}

	if len(request.Each) == 0 || len(request.Each) > maxCount {
		return nil, newError(
			key,
			`has %d items; expected 1 to %d, each a count or {count: 1, compute: ["1c", "2c"]}`,
			len(request.Each),
			maxCount,
		)
	}

	var list []mig.Want
	total := 0

	for i, each := range request.Each {
		at := fmt.Sprintf("%s[%d]", key, i)
		if each.Each != nil {
			return nil, newError(
				at, "is a list; expected a count, or a count with compute instances")
		}

		want, err := resolveCount(at, profile, each)
		if err != nil {
			return nil, err
		}

		total += want.Count
		list = append(list, want)
	}

	if total > maxCount {
		return nil, newError(key, "has %d instances; expected at most %d", total, maxCount)
	}

	return list, nil
}

// resolveCount resolves a request that is no list.
func resolveCount(key, profile string, request api.DeviceRequest) (mig.Want, *strictyaml.Error) {
	if request.Count < 0 || request.Count > maxCount {
		return mig.Want{}, newError(
			key, "is %d; expected a count of 0 to %d", request.Count, maxCount)
	}

	sizes, err := parseComputeSizes(key, request.Compute)

	return mig.Want{Profile: profile, Count: request.Count, ComputeInstances: sizes}, err
}

// computeSizesOf returns the sizes of the compute instances that a request under a name such as
// 1c.3g.20gb asks for: 1, 1 and 1 for a count of 3.
func computeSizesOf(
	key string,
	name mig.Name,
	request api.DeviceRequest,
) ([]int, *strictyaml.Error) {
	switch {
	case request.Each != nil:
		return nil, newError(
			key,
			"is a list; %s is a compute instance, expected a count of 0 to %d",
			name,
			maxCount,
		)
	case request.Compute != nil:
		return nil, newError(
			strictyaml.Join(key, "compute"),
			"is for a GPU instance; %s is a compute instance",
			name,
		)
	case request.Count < 0 || request.Count > maxCount:
		return nil, newError(key, "is %d; expected a count of 0 to %d", request.Count, maxCount)
	case !slices.Contains([]int{1, 2, 3, 4, 7, name.Slices}, name.Part) || name.Slices > maxSlices:
		return nil, newError(
			key,
			"is a compute instance of %d slices of %d; expected 1, 2, 3, 4, 7 or all, of at most %d",
			name.Part,
			name.Slices,
			maxSlices,
		)
	}

	return slices.Repeat([]int{name.Part}, request.Count), nil
}

// parseComputeSizes returns the sizes that texts such as "1c" and "2c" name; nil stays nil.
func parseComputeSizes(key string, compute []string) ([]int, *strictyaml.Error) {
	if compute == nil {
		return nil, nil
	}

	if len(compute) > maxCompute {
		return nil, newError(
			strictyaml.Join(key, "compute"),
			"has %d items; expected at most %d",
			len(compute),
			maxCompute,
		)
	}

	sizes := []int{}

	for i, text := range compute {
		n, err := strconv.Atoi(strings.TrimSuffix(text, "c"))
		if err != nil || n < 1 || n > 64 || text != fmt.Sprintf("%dc", n) {
			return nil, newError(fmt.Sprintf("%s.compute[%d]", key, i),
				`is %.60q; expected the slices of a compute instance, such as "1c"`, text)
		}

		sizes = append(sizes, n)
	}

	return sizes, nil
}

// pack puts compute instances of the given sizes into as few GPU instances of slicesEach slices as
// possible, larger ones first.
func pack(sizes []int, slicesEach int) [][]int {
	p := packer{room: slicesEach, found: map[string][][]int{}}
	var counts []int // of p.sizes

	sorted := slices.SortedFunc(slices.Values(sizes), func(a, b int) int { return b - a })
	for i, size := range sorted {
		if i == 0 || size != sorted[i-1] {
			p.sizes = append(p.sizes, size)
			counts = append(counts, 0)
		}

		counts[len(counts)-1]++
	}

	return p.findBest(counts)
}

// packer tries all ways to pack.
type packer struct {
	room  int                // slices of a GPU instance
	sizes []int              // the different sizes, descending
	found map[string][][]int // results of findBest, by counts
}

// findBest returns the shortest list of GPU instances that have counts[i] compute instances of
// sizes[i]. Each GPU instance is a list of sizes.
func (p *packer) findBest(counts []int) [][]int {
	first := slices.IndexFunc(counts, func(n int) bool { return n > 0 })
	if first < 0 {
		return nil
	}

	key := fmt.Sprint(counts)
	if list, ok := p.found[key]; ok {
		return list
	}

	var best [][]int

	// The largest compute instance has to be somewhere: we try all instances that it can be in.
	left := slices.Clone(counts)
	left[first]--
	p.fillInstance(
		[]int{p.sizes[first]},
		first,
		p.room-p.sizes[first],
		left,
		func(instance, left []int) {
			if rest := p.findBest(left); best == nil || len(rest)+1 < len(best) {
				best = append([][]int{slices.Clone(instance)}, rest...)
			}
		},
	)
	p.found[key] = best

	return best
}

// fillInstance adds further compute instances to a GPU instance with room slices left, in every way,
// until none fits any more. It calls done with each full instance and the counts that are left then.
// left are the counts that it can use, of sizes[from:] only.
func (p *packer) fillInstance(
	instance []int,
	from, room int,
	left []int,
	done func(instance, left []int),
) {
	full := true

	for i := from; i < len(p.sizes); i++ {
		if left[i] == 0 || p.sizes[i] > room {
			continue
		}

		full = false
		fewer := slices.Clone(left)
		fewer[i]--
		p.fillInstance(
			append(slices.Clip(instance), p.sizes[i]), // Clip: each way has its own copy
			i,
			room-p.sizes[i],
			fewer,
			done,
		)
	}

	if full {
		done(instance, left)
	}
}
