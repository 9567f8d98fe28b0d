package mig

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Need asks for Count further instances of any profile with at least MemoryBytes and SMs, each with
// one compute instance of all its slices.
type Need struct {
	MemoryBytes uint64
	SMs         int
	Count       int
}

const (
	// maxDemand bounds how many instances one demand can ask for.
	maxDemand = 64
	// maxParts bounds the parts of a demand (see demand): the search goes through all of them.
	maxParts = 4096
)

// metBy reports whether an instance of the profile meets the need.
func (n Need) metBy(p gpu.Profile) bool {
	return p.MemoryBytes >= n.MemoryBytes && p.SMs >= n.SMs && len(p.Placements) > 0
}

// planDemand finds room for further instances on the GPUs that are in MIG mode. It destroys
// existing instances only if they are idle and in the way. Of equally good ways it takes the one
// that uses the first GPUs.
func planDemand(check *cancelCheck, gpus []GPULayout, needs []Need) ([]PlannedGPU, error) {
	total := 0

	for i, n := range needs {
		if n.Count < 0 || n.SMs < 0 {
			return nil, &SpecError{
				fmt.Sprintf("demand %d: count %d, SMs %d: expected 0 or more", i+1, n.Count, n.SMs),
			}
		}

		total += min(n.Count, maxDemand+1) // no overflow
	}

	if total > maxDemand {
		return nil, &SpecError{
			fmt.Sprintf(
				"%d or more instances: expected at most %d in one demand",
				total,
				maxDemand,
			),
		}
	}

	d := newDemand(check, gpus, needs)
	if len(d.inMIG) == 0 && total > 0 {
		return nil, &InfeasibleError{GPU: -1, Reason: "no GPU of this node has MIG on"}
	}

	for _, k := range d.kinds {
		if k.fitsNowhere() {
			n := needs[k.needs[0]]

			return nil, &InfeasibleError{GPU: -1, Reason: fmt.Sprintf(
				"demand %d: no GPU with MIG on offers a profile with %s%s",
				k.needs[0]+1, sizeText(n.MemoryBytes, n.SMs), d.largestOffer())}
		}
	}

	if d.parts > maxParts {
		return nil, &SpecError{
			fmt.Sprintf(
				"a demand of %d instances of %d different kinds can be split up in too many "+
					"ways: ask for some of them at a time",
				total,
				len(d.kinds),
			),
		}
	}

	best := d.solve(keepBusy)
	if best == nil {
		return nil, d.infeasible(total)
	}

	return d.planned(best), nil
}

// largestOffer says which profile of the GPUs in MIG mode has the most memory.
func (d *demand) largestOffer() string {
	var largest gpu.Profile

	for _, i := range d.inMIG {
		for _, p := range d.gpus[i].Profiles {
			if p.MemoryBytes > largest.MemoryBytes {
				largest = p
			}
		}
	}

	if largest.Name == "" {
		return ""
	}

	return fmt.Sprintf("; the largest is %s with %s", largest.Name, sizeText(largest.MemoryBytes, largest.SMs))
}

// sizeText returns "12 GiB and 20 SMs", or "12 GiB" for no SMs.
func sizeText(bytes uint64, sms int) string {
	text := strconv.FormatFloat(float64(bytes)/(1<<30), 'g', 4, 64) + " GiB"
	if sms > 0 {
		text += fmt.Sprintf(" and %d SMs", sms)
	}

	return text
}

// demand is the search for the best way to meet needs. It goes from GPU to GPU and remembers, for
// every part of the demand, the best way to meet that part with the GPUs so far.
//
// A part is some of the demanded instances, written as a number whose digits, in mixed bases, count
// the instances of each kind. If a demand has 2 instances of kind 0 and 3 of kind 1, the first digit
// has base 3 and the second base 4: part 7 = 1 + 2*3 is one instance of kind 0 and two of kind 1.
type demand struct {
	check *cancelCheck
	gpus  []GPULayout
	inMIG []int // indexes in gpus of the GPUs in MIG mode; nth below is an index in inMIG
	kinds []kind
	parts int // number of parts; the last is the whole demand
	// packed has, for each part, its digits in bit fields with a spare bit above each. spare has
	// the spare bits set. See addable.
	packed []uint64
	spare  uint64
	// optionsByKey caches what options returns, so that we search once for all equal GPUs.
	optionsByKey map[string][]*option
}

// kind joins the needs that the same profiles meet, so that their instances are interchangeable.
type kind struct {
	fits  [][]*searchProfile // for each GPU in MIG mode, which of its profiles meet the needs
	needs []int              // for each instance of the kind, the index of the need that it is for
	base  int                // how much one instance adds to the number of a part
}

func (k kind) fitsNowhere() bool {
	return !slices.ContainsFunc(k.fits, func(fits []*searchProfile) bool { return len(fits) > 0 })
}

func newDemand(check *cancelCheck, gpus []GPULayout, needs []Need) *demand {
	d := &demand{check: check, gpus: gpus, parts: 1, optionsByKey: map[string][]*option{}}
	for i := range gpus {
		if gpus[i].inMIG() {
			d.inMIG = append(d.inMIG, i)
		}
	}

	kindByFits := map[string]int{} // indices of kinds, by the key of fitsOf

	for i, n := range needs {
		if n.Count == 0 {
			continue
		}

		fits, key := d.fitsOf(n)

		j, known := kindByFits[key]
		if !known {
			j = len(d.kinds)
			kindByFits[key] = j
			d.kinds = append(d.kinds, kind{fits: fits})
		}

		for range n.Count {
			d.kinds[j].needs = append(d.kinds[j].needs, i)
		}
	}

	// The base of each digit is the product of the bases before it. planDemand refuses a demand of more
	// than maxParts, so we need not count further, and can't overflow.
	for j := range d.kinds {
		d.kinds[j].base = d.parts
		d.parts = min(d.parts*(len(d.kinds[j].needs)+1), maxParts+1)
	}

	if d.parts <= maxParts {
		d.pack()
	}

	return d
}

// fitsOf returns for each GPU in MIG mode the profiles that meet a need. key is the same for needs that
// the same profiles meet.
func (d *demand) fitsOf(n Need) (fits [][]*searchProfile, key string) {
	var names strings.Builder

	for _, i := range d.inMIG {
		var ofGPU []*searchProfile

		for _, p := range searchProfiles(d.gpus[i].Profiles) {
			if n.metBy(p.Profile) {
				ofGPU = append(ofGPU, p)
				fmt.Fprintf(&names, "%d/%s ", p.ID, p.Name)
			}
		}

		names.WriteByte(';')
		fits = append(fits, ofGPU)
	}

	return fits, names.String()
}

// pack fills packed and spare.
func (d *demand) pack() {
	d.packed = make([]uint64, d.parts)
	shift := 0

	for j, k := range d.kinds {
		for part := range d.parts {
			d.packed[part] |= uint64(d.digit(part, j)) << shift
		}

		shift += bits.Len(uint(len(k.needs))) + 1
		d.spare |= 1 << (shift - 1)
	}
}

// digit returns how many instances of a kind a part has.
func (d *demand) digit(part, kind int) int {
	k := d.kinds[kind]
	return part / k.base % (len(k.needs) + 1)
}

// options returns, for each part of the demand, the best way for one GPU to meet it, or nil if it
// can't. We go from small parts to large ones: a GPU that meets a part also meets every part with
// fewer instances (see isPossible).
func (d *demand) options(nth int, p busyPolicy) []*option {
	g := d.seenBy(p, nth)
	groups := d.groups(nth)
	byCounts := map[string]*option{}
	room := roomOf(g, p)
	fits := make([][]*searchProfile, len(d.kinds))

	for j, k := range d.kinds {
		fits[j] = room.withoutExisting(g, p, k.fits[nth])
	}

	list := make([]*option, d.parts)

	for part := range d.parts {
		if !d.isPossible(list, part, room.start.axis) {
			continue
		}

		items, counts := d.items(nth, groups, part)

		o, ok := byCounts[counts]
		if !ok {
			for i := range items {
				items[i].fits = fits[items[i].kind]
			}

			f := fitting{check: d.check, gpu: g, policy: p, room: &room, items: items}
			o = f.findBest()
			byCounts[counts] = o
		}

		list[part] = o.forItems(items)
	}

	return list
}

// items returns the instances of a part. counts is a key that says how many each group of kinds
// has: a GPU meets parts with the same counts in the same way.
func (d *demand) items(nth int, groups [][]int, part int) (items []item, counts string) {
	var byGroup []byte

	for group, kinds := range groups {
		before := len(items)

		for _, j := range kinds {
			for range d.digit(part, j) {
				items = append(items, item{group: group, kind: j, fits: d.kinds[j].fits[nth]})
			}
		}

		byGroup = append(byGroup, byte(len(items)-before)) // maxDemand fits a byte
	}

	return items, string(byGroup)
}

// groups joins the kinds that the same profiles of one GPU meet. Two kinds can differ on an H100
// and be one group on an A30, in a node that has both. The search takes the instances of a group as
// equal, so it need not try them in every order.
func (d *demand) groups(nth int) [][]int {
	var groups [][]int

	for j, k := range d.kinds {
		alike := func(group []int) bool {
			return slices.EqualFunc(d.kinds[group[0]].fits[nth], k.fits[nth], (*searchProfile).same)
		}
		if i := slices.IndexFunc(groups, alike); i >= 0 {
			groups[i] = append(groups[i], j)
		} else {
			groups = append(groups, []int{j})
		}
	}

	return groups
}

// isPossible reports false if a GPU certainly cannot meet a part: the part has more instances than
// the GPU's axis has units, or the GPU cannot even meet it with one instance less. smaller has the
// options of all smaller parts.
func (d *demand) isPossible(smaller []*option, part, units int) bool {
	total := 0

	for j, k := range d.kinds {
		count := d.digit(part, j)
		total += count

		if total > units || count > 0 && smaller[part-k.base] == nil {
			return false
		}
	}

	return true
}

// planned returns the layouts of the GPUs that the best options change.
func (d *demand) planned(best []*option) []PlannedGPU {
	var list []PlannedGPU
	met := make([]int, len(d.kinds)) // how many instances of each kind the layouts so far have

	for nth, o := range best {
		if o.touched == 0 {
			continue
		}

		g := &d.gpus[d.inMIG[nth]]
		var after []Instance

		for i := range g.Instances {
			if !o.destroys(i) {
				kept := g.Instances[i]
				kept.ComputeInstances = placedComputeInstances(
					profileOf(g.Profiles, kept.Placed).ComputeSlices,
					&kept,
				)
				after = append(after, kept)
			}
		}

		for _, f := range o.fits {
			whole, _ := arrange(f.profile.ComputeSlices, []int{f.profile.ComputeSlices}, nil)
			after = append(after, Instance{
				Placed: placedAt(f.fitted), ComputeInstances: whole.computeInstances,
				New: true, Need: gpu.Some(d.kinds[f.kind].needs[met[f.kind]]),
			})
			met[f.kind]++
		}

		list = append(list, planned(g, d.inMIG[nth], after))
	}

	return list
}

// mostOnEmpty says how many instances would fit on empty GPUs. It is empty for several kinds: then
// there is no single number, since more of one kind leave room for fewer of another.
func (d *demand) mostOnEmpty() string {
	if len(d.kinds) != 1 {
		return ""
	}

	most := 0

	for nth := range d.inMIG {
		for part, option := range d.cachedOptions(nth, ignoreBusy) {
			if option != nil && part > 0 { // with one kind, part n is n instances
				most++
			}
		}
	}

	return fmt.Sprintf(": at most %d fit", most)
}

// infeasible returns the error that says why the demand cannot be met. If busy instances are in the
// way, it names the fewest that would have to be destroyed.
func (d *demand) infeasible(total int) error {
	problem := &InfeasibleError{GPU: -1}
	if d.solve(ignoreBusy) == nil {
		problem.Reason = fmt.Sprintf(
			"%d more instances do not fit on the GPUs with MIG on, not even if they were empty%s",
			total, d.mostOnEmpty(),
		)

		return problem
	}

	problem.FitsEmpty = true

	replacing := d.solve(replaceBusy)
	if replacing == nil {
		problem.Reason = fmt.Sprintf(
			"%d more instances do not fit beside the existing ones: free ones would only be "+
				"created again",
			total,
		)

		return problem
	}

	var parts []string

	for nth, o := range replacing {
		g := &d.gpus[d.inMIG[nth]]
		var here []Blocking

		for i := range g.Instances {
			if o.destroys(i) && g.Instances[i].inUse() {
				here = append(here, Blocking{GPU: d.inMIG[nth], Instance: i})
			}
		}

		if here != nil {
			problem.Blocking = append(problem.Blocking, here...)
			parts = append(parts, fmt.Sprintf("%s on GPU %d", g.listNames(here), g.Index))
		}
	}

	problem.Reason = fmt.Sprintf(
		"%d more instances fit only without %s, busy",
		total,
		strings.Join(parts, ", "),
	)

	return problem
}
