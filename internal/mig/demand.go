package mig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Need asks for a number of further instances of at least so much memory and so many SMs, of whichever profile, each with
// one compute instance of all its slices.
type Need struct {
	MemoryBytes uint64
	SMs         int
	Count       int
}

const (
	// maxDemand bounds how many instances one demand can ask for, maxParts in how many ways it can be split up between
	// GPUs: the search is exact.
	maxDemand = 64
	maxParts  = 4096
)

// met tells whether an instance of a profile is enough.
func (n Need) met(p gpu.Profile) bool {
	return p.MemoryBytes >= n.MemoryBytes && p.SMs >= n.SMs && len(p.Placements) > 0
}

// planDemand finds room for further instances on the GPUs that are in MIG mode. What stands stays, but for idle instances
// that are in the way. Of equally good ways it takes the one that uses the first GPUs.
func planDemand(gpus []NodeGPU, needs []Need) ([]PlannedGPU, error) {
	total := 0
	for i, n := range needs {
		if n.Count < 0 || n.SMs < 0 {
			return nil, &SpecError{fmt.Sprintf("need %d: count %d, SMs %d: expected 0 or more", i, n.Count, n.SMs)}
		}
		total += min(n.Count, maxDemand+1)
	}
	if total > maxDemand {
		return nil, &SpecError{fmt.Sprintf("%d or more instances: expected at most %d in one demand", total, maxDemand)}
	}
	d := newDemand(gpus, needs)
	if len(d.boards) == 0 && total > 0 {
		return nil, &InfeasibleError{GPU: -1, Reason: "no GPU of this node has MIG on"}
	}
	for _, k := range d.kinds {
		if k.fitsNowhere() {
			n := needs[k.needs[0]]
			return nil, &InfeasibleError{GPU: -1, Reason: fmt.Sprintf("need %d: no GPU with MIG on offers a profile with %d bytes and %d SMs",
				k.needs[0], n.MemoryBytes, n.SMs)}
		}
	}
	if d.parts > maxParts {
		return nil, &SpecError{fmt.Sprintf("a demand of %d instances of %d different kinds can be split up in too many ways: ask for some of them at a time",
			total, len(d.kinds))}
	}
	best := d.solve(true)
	if best == nil {
		return nil, d.infeasible(total)
	}
	return d.planned(best), nil
}

// demand goes from GPU to GPU, and keeps for every part of the demand that can be met so far the best way to. A part is a
// number whose digits, in mixed bases, say how many instances of each kind it has.
type demand struct {
	gpus   []NodeGPU
	boards []int // indexes of the GPUs in MIG mode
	kinds  []kind
	parts  int // number of parts; the last is the whole
}

// kind is all needs that the same profiles meet.
type kind struct {
	fits  [][]gpu.Profile // for each board
	needs []int           // index of the need, for each of its instances
	base  int             // of its digit
}

func (k kind) fitsNowhere() bool {
	return !slices.ContainsFunc(k.fits, func(fits []gpu.Profile) bool { return len(fits) > 0 })
}

func newDemand(gpus []NodeGPU, needs []Need) *demand {
	d := &demand{gpus: gpus, parts: 1}
	for i := range gpus {
		if gpus[i].inMIG() {
			d.boards = append(d.boards, i)
		}
	}
	at := map[string]int{}
	for i, n := range needs {
		if n.Count == 0 {
			continue
		}
		var k kind
		var key strings.Builder
		for _, b := range d.boards {
			var fits []gpu.Profile
			for _, p := range gpus[b].Profiles {
				if n.met(p) {
					fits = append(fits, p)
					fmt.Fprintf(&key, "%d/%s ", p.ID, p.Name)
				}
			}
			key.WriteByte(';')
			k.fits = append(k.fits, fits)
		}
		j, known := at[key.String()]
		if !known {
			j = len(d.kinds)
			at[key.String()] = j
			d.kinds = append(d.kinds, k)
		}
		for range n.Count {
			d.kinds[j].needs = append(d.kinds[j].needs, i)
		}
	}
	for j := range d.kinds {
		d.kinds[j].base = d.parts
		d.parts = min(d.parts*(len(d.kinds[j].needs)+1), maxParts+1)
	}
	return d
}

// digit is how many instances of a kind a part has.
func (d *demand) digit(part, kind int) int {
	k := d.kinds[kind]
	return part / k.base % (len(k.needs) + 1)
}

// way is how a part of the demand is met by the first boards.
type way struct {
	cost
	before *way
	option *option // of the last of them
}

// solve returns the best way to meet the whole demand, nil for none; with minding false busy instances may go.
func (d *demand) solve(minding bool) *way {
	ways := make([]*way, d.parts)
	ways[0] = &way{}
	known := map[string][]*option{}
	for b := range d.boards {
		key := d.likeness(b)
		options, ok := known[key]
		if !ok {
			options = d.options(b, minding)
			known[key] = options
		}
		ways = d.join(ways, options)
	}
	return ways[d.parts-1]
}

// likeness is the same for boards that have the same options.
func (d *demand) likeness(board int) string {
	g := &d.gpus[d.boards[board]]
	var key strings.Builder
	fmt.Fprint(&key, g.Profiles)
	for i := range g.Instances {
		instance := &g.Instances[i]
		fmt.Fprint(&key, instance.Placed, instance.inUse(), len(instance.Computes))
	}
	return key.String()
}

// join adds a board. Of equally good ways the one stays that has more done by the boards before.
func (d *demand) join(ways []*way, options []*option) []*way {
	next := make([]*way, d.parts)
	for more, o := range options {
		if o == nil {
			continue
		}
		for met, w := range ways {
			if w == nil || !d.addable(met, more) {
				continue
			}
			joined := w.plus(o.cost)
			if sum := met + more; next[sum] == nil || joined.compare(next[sum].cost) < 0 {
				next[sum] = &way{cost: joined, before: w, option: o}
			}
		}
	}
	return next
}

// addable tells whether two parts together are not more than the whole.
func (d *demand) addable(a, b int) bool {
	if a+b >= d.parts {
		return false
	}
	for j, k := range d.kinds {
		if d.digit(a, j)+d.digit(b, j) > len(k.needs) {
			return false
		}
	}
	return true
}

// options are the best ways of one board to meet each part of the demand, nil where it cannot. What meets a part meets
// every smaller one.
func (d *demand) options(board int, minding bool) []*option {
	list := make([]*option, d.parts)
	for part := range d.parts {
		possible := true
		f := newFitting(&d.gpus[d.boards[board]], minding)
		for j, k := range d.kinds {
			count := d.digit(part, j)
			possible = possible && (count == 0 || list[part-k.base] != nil)
			for range count {
				f.items = append(f.items, item{group: j, fits: k.fits[board]})
			}
		}
		if possible {
			list[part] = f.run()
		}
	}
	return list
}

// choices are the options of a way, by board.
func (d *demand) choices(w *way) []*option {
	list := make([]*option, len(d.boards))
	for b := len(d.boards) - 1; b >= 0; b-- {
		list[b], w = w.option, w.before
	}
	return list
}

// planned says what becomes of the GPUs that are touched.
func (d *demand) planned(w *way) []PlannedGPU {
	var list []PlannedGPU
	met := make([]int, len(d.kinds))
	for b, o := range d.choices(w) {
		if o.touched == 0 {
			continue
		}
		g := &d.gpus[d.boards[b]]
		var after []PlannedInstance
		for i := range g.Instances {
			if o.gone>>i&1 == 0 {
				own := profileOf(g.Profiles, g.Instances[i].Placed)
				after = append(after, PlannedInstance{
					Placed: g.Instances[i].Placed, Standing: gpu.Some(i), Computes: asItIs(own.ComputeSlices, &g.Instances[i]).computes,
				})
			}
		}
		for _, f := range o.fits {
			whole, _ := arrange(f.profile.ComputeSlices, []int{f.profile.ComputeSlices}, nil)
			after = append(after, PlannedInstance{
				Placed: placedAt(f.fitted), Computes: whole.computes, Need: gpu.Some(d.kinds[f.group].needs[met[f.group]]),
			})
			met[f.group]++
		}
		list = append(list, planned(g, d.boards[b], after))
	}
	return list
}

// infeasible names the fewest busy instances that would have to go.
func (d *demand) infeasible(total int) error {
	problem := &InfeasibleError{GPU: -1}
	without := d.solve(false)
	if without == nil {
		problem.Reason = fmt.Sprintf("%d more instances do not fit on the GPUs with MIG on, not even if they were empty", total)
		return problem
	}
	problem.FitsEmpty = true
	var parts []string
	for b, o := range d.choices(without) {
		g := &d.gpus[d.boards[b]]
		var here []Blocking
		for i := range g.Instances {
			if o.gone>>i&1 == 1 && g.Instances[i].inUse() {
				here = append(here, Blocking{GPU: d.boards[b], Instance: i})
			}
		}
		if here != nil {
			problem.Blocking = append(problem.Blocking, here...)
			parts = append(parts, fmt.Sprintf("%s on GPU %d", g.names(here), g.Index))
		}
	}
	problem.Reason = fmt.Sprintf("%d more instances fit only without %s, busy", total, strings.Join(parts, ", "))
	return problem
}
