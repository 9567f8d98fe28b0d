package mig

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The oracle of the planner's tests: every layout that there is, every way to keep existing
// instances. It shares no code with the planner.

// naiveExisting is an instance of a naive GPU with its compute instances.
type naiveExisting struct {
	naiveInstance
	busy             bool
	computeInstances []naiveCompute
}

type naiveCompute struct {
	start, size int
	busy        bool
	unreported  bool // the driver does not report the start
}

// naiveWant is one instance that there shall be.
type naiveWant struct {
	profile int
	sizes   []int
}

// naiveCost is what a plan comes to, in the order in which it counts: GPU instances destroyed,
// compute instances destroyed, GPUs touched, minus the rank of what is left.
type naiveCost [4]int

func (c naiveCost) less(d naiveCost) bool { return slices.Compare(c[:], d[:]) < 0 }

// naiveKeep is the least number of compute instances of an existing instance that go if it is kept
// with other sizes.
func naiveKeep(slicesOfInstance int, s naiveExisting, sizes []int, minding bool) (gone int, ok bool) {
	has := []int{}
	unreported := false

	for _, c := range s.computeInstances {
		has = append(has, c.size)
		unreported = unreported || c.unreported && c.size != slicesOfInstance
	}

	if unreported {
		want := slices.Clone(sizes)
		slices.Sort(has)
		slices.Sort(want)

		return 0, slices.Equal(has, want)
	}

	for subset := range 1 << len(s.computeInstances) {
		left := slices.Clone(sizes)
		taken := make([]bool, slicesOfInstance)
		lost := 0
		allowed := true

		for i, c := range s.computeInstances {
			if subset>>i&1 == 0 {
				lost++
				allowed = allowed && (!minding || !c.busy && !s.busy)
				continue
			}

			at := slices.Index(left, c.size)
			if at < 0 {
				allowed = false
				break
			}

			left = slices.Delete(left, at, at+1)

			for u := c.start; u < c.start+c.size; u++ {
				taken[u] = true
			}
		}

		if allowed && naivePack(taken, left) && (!ok || lost < gone) {
			gone = lost
			ok = true
		}
	}

	return gone, ok
}

// naivePack reports whether the sizes fit into what is not taken.
func naivePack(taken []bool, sizes []int) bool {
	if len(sizes) == 0 {
		return true
	}

	for start := 0; start+sizes[0] <= len(taken); start++ {
		more := slices.Clone(taken)

		fits := true
		for u := start; u < start+sizes[0]; u++ {
			fits = fits && !more[u]
			more[u] = true
		}

		if fits && naivePack(more, sizes[1:]) {
			return true
		}
	}

	return false
}

// naiveBest is the least cost of a layout with exactly the wanted instances; ok is false where none
// will do.
func (g *naiveGPU) naiveBest(existing []naiveExisting, wants []naiveWant, minding bool) (best naiveCost, ok bool) {
	counts := make([]int, len(g.profiles))
	for _, w := range wants {
		counts[w.profile]++
	}

	kept := map[[2]int]naiveKept{}

	for _, layout := range g.withCounts(counts) {
		left := g.naiveLeft(layout)
		naiveAssignments(layout, wants, func(given []int) {
			c, allowed := g.naiveCostOf(existing, layout, wants, given, minding, kept)

			c[3] = -left
			if allowed && (!ok || c.less(best)) {
				best = c
				ok = true
			}
		})
	}

	return best, ok
}

// withCounts lists the reachable layouts with so many instances of each profile.
func (g *naiveGPU) withCounts(counts []int) [][]naiveInstance {
	if g.byCounts == nil {
		g.byCounts = map[string][][]naiveInstance{}
		for _, layout := range g.reachable {
			has := make([]int, len(g.profiles))
			for _, x := range layout {
				has[x.profile]++
			}

			g.byCounts[fmt.Sprint(has)] = append(g.byCounts[fmt.Sprint(has)], layout)
		}
	}

	return g.byCounts[fmt.Sprint(counts)]
}

// naiveLeft ranks the largest profile that can be added to a layout.
func (g *naiveGPU) naiveLeft(layout []naiveInstance) int {
	key := naiveKey(layout)
	if rank, known := g.lefts[key]; known {
		return rank
	}

	rank := 0
	for _, x := range g.all {
		if p := g.profiles[x.profile]; p.MemorySlices*1000+p.ComputeSlices > rank && g.canAdd(layout, x) {
			rank = p.MemorySlices*1000 + p.ComputeSlices
		}
	}

	if g.lefts == nil {
		g.lefts = map[string]int{}
	}

	g.lefts[key] = rank

	return rank
}

// naiveAssignments gives the wants to the instances of a layout in every way: given[i] is the want
// of the i-th instance.
func naiveAssignments(layout []naiveInstance, wants []naiveWant, visit func(given []int)) {
	var keys []string
	for _, w := range wants {
		keys = append(keys, fmt.Sprint(w))
	}

	var assign func(given []int)
	assign = func(given []int) {
		if len(given) == len(layout) {
			visit(given)
			return
		}

		tried := map[string]bool{}
		for k, w := range wants {
			if w.profile == layout[len(given)].profile && !slices.Contains(given, k) && !tried[keys[k]] {
				tried[keys[k]] = true
				assign(append(given[:len(given):len(given)], k))
			}
		}
	}
	assign(nil)
}

// naiveKept is what naiveKeep said.
type naiveKept struct {
	gone int
	ok   bool
}

func (g *naiveGPU) naiveCostOf(existing []naiveExisting, layout []naiveInstance, wants []naiveWant, given []int,
	minding bool,
	known map[[2]int]naiveKept,
) (naiveCost, bool) {
	var c naiveCost

	kept := 0
	computesKept := 0

	computesWanted := 0
	for _, w := range wants {
		computesWanted += len(w.sizes)
	}

	for i, s := range existing {
		if k := slices.Index(layout, s.naiveInstance); k >= 0 {
			key := [2]int{i, given[k]}

			keep, said := known[key]
			if !said {
				keep.gone, keep.ok = naiveKeep(g.profiles[s.profile].ComputeSlices, s, wants[given[k]].sizes, minding)
				known[key] = keep
			}

			if keep.ok {
				c[1] += keep.gone
				kept++
				computesKept += len(s.computeInstances) - keep.gone
				continue
			}
		}

		if minding && (s.busy || slices.ContainsFunc(s.computeInstances, func(c naiveCompute) bool { return c.busy })) {
			return c, false
		}

		c[0]++
		c[1] += len(s.computeInstances)
	}

	if c[0] > 0 || c[1] > 0 || kept < len(layout) || computesKept < computesWanted {
		c[2] = 1
	}

	return c, true
}

// nodeGPU is the naive GPU as the planner takes it.
func (g *naiveGPU) nodeGPU(index int, existing []naiveExisting) GPULayout {
	n := GPULayout{
		Facts: gpu.Facts{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", index)), Index: index, Name: "model",
			PCIBusID: fmt.Sprintf("00000000:%02X:00.0", index+1), Profiles: g.profiles},
		PCIDevice: 0x20B010DE, MIG: gpu.Some(true), Pending: gpu.Some(true),
	}
	for i, s := range existing {
		instance := Instance{ID: gpu.InstanceID(i + 1), Placed: g.placed([]naiveInstance{s.naiveInstance})[0], Busy: s.busy}
		for k, c := range s.computeInstances {
			compute := ComputeInstance{
				ID: gpu.ComputeID(k), UUID: gpu.MIGUUID(fmt.Sprintf("MIG-%d-%d-%d", index, i, k)), Slices: c.size, Busy: c.busy,
			}
			if !c.unreported {
				compute.Placement = gpu.Some(gpu.Placement{Start: c.start, Size: c.size})
			}

			instance.ComputeInstances = append(instance.ComputeInstances, compute)
		}

		n.Instances = append(n.Instances, instance)
	}

	return n
}

// randomExisting is one of the GPU's layouts. Each instance has one compute instance of all its
// slices, or with parts any.
func (g *naiveGPU) randomExisting(rng *rand.Rand, layout []naiveInstance, parts bool) []naiveExisting {
	var list []naiveExisting

	for _, x := range layout {
		s := naiveExisting{naiveInstance: x}

		inSlices := g.profiles[x.profile].ComputeSlices
		if !parts || rng.IntN(3) == 0 {
			s.computeInstances = []naiveCompute{{size: inSlices, busy: rng.IntN(6) == 0, unreported: parts && rng.IntN(3) == 0}}
			list = append(list, s)
			continue
		}

		s.busy = rng.IntN(8) == 0

		unreported := rng.IntN(6) == 0
		for start := 0; start < inSlices; {
			size := 1 + rng.IntN(4)
			if rng.IntN(3) == 0 || start+size > inSlices {
				start++
				continue
			}

			s.computeInstances = append(s.computeInstances, naiveCompute{start: start, size: size, busy: rng.IntN(5) == 0, unreported: unreported})
			start += size
		}

		list = append(list, s)
	}

	return list
}

// randomSizes are sizes of compute instances that fit into so many slices.
func randomSizes(rng *rand.Rand, slicesOfInstance int) []int {
	sizes := []int{}

	for left := slicesOfInstance; left > 0 && rng.IntN(8) > 0; {
		size := 1 + rng.IntN(min(4, left))
		sizes = append(sizes, size)
		left -= size
	}

	return sizes
}

// asWants says naive wants in the planner's terms, one by one and in any order.
func (g *naiveGPU) asWants(rng *rand.Rand, wants []naiveWant) []Want {
	var list []Want

	for _, w := range wants {
		p := g.profiles[w.profile]

		want := Want{Profile: p.Name, Count: 1, ComputeInstances: slices.Clone(w.sizes)}
		if rng.IntN(4) == 0 {
			want.Profile = fmt.Sprint(p.ID)
		}

		rng.Shuffle(len(want.ComputeInstances), func(i, j int) {
			want.ComputeInstances[i], want.ComputeInstances[j] = want.ComputeInstances[j], want.ComputeInstances[i]
		})
		list = append(list, want)
	}

	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })

	return list
}
