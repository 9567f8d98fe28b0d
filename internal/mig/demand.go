package mig

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Board is a GPU in MIG mode to plan for.
type Board struct {
	Profiles []gpu.Profile
	Standing []Standing
}

// Need asks for a number of further instances of at least so much memory and so many SMs, of whichever profile.
type Need struct {
	MemoryBytes uint64
	SMs         int
	Count       int
}

// BoardChange is what is done to one board. For says of each created instance which need it meets.
type BoardChange struct {
	Board int // index
	Change
	For []int
}

// maxDemand bounds how many instances one demand can ask for: the search is exact.
const maxDemand = 64

// PlanDemand finds room for further instances. What stands stays, but for idle instances that are in the way. Of all ways it
// takes the one that destroys the fewest instances, then the one that touches the fewest GPUs, then the one after which the
// largest profile is placeable somewhere, then the first GPUs. An *InfeasibleError says that there is none.
func PlanDemand(boards []Board, needs []Need) ([]BoardChange, error) {
	total := 0
	for i, n := range needs {
		if n.Count < 0 {
			return nil, fmt.Errorf("need %d: count %d: expected 0 or more", i, n.Count)
		}
		total += min(n.Count, maxDemand+1)
	}
	if total > maxDemand {
		return nil, fmt.Errorf("%d instances: expected at most %d in one demand", total, maxDemand)
	}
	for i, n := range needs {
		if n.Count > 0 && !offeredAnywhere(boards, n) {
			return nil, &InfeasibleError{Reason: fmt.Sprintf("need %d: no GPU offers a profile with %d bytes and %d SMs", i, n.MemoryBytes, n.SMs)}
		}
	}
	d := &demand{boards: boards, needs: needs}
	best := d.solve()
	if best == nil {
		return nil, &InfeasibleError{Reason: fmt.Sprintf("%d more instances do not fit without destroying what is busy", total)}
	}
	return best, nil
}

func offeredAnywhere(boards []Board, n Need) bool {
	return slices.ContainsFunc(boards, func(b Board) bool {
		return slices.ContainsFunc(b.Profiles, n.met)
	})
}

// met tells whether an instance of a profile is enough.
func (n Need) met(p gpu.Profile) bool {
	return p.MemoryBytes >= n.MemoryBytes && p.SMs >= n.SMs && len(p.Placements) > 0
}

// demand goes from board to board, and keeps for every part of the demand that can be met so far the best way to.
type demand struct {
	boards []Board
	needs  []Need
}

// way is how a part of the demand is met by the first boards. Their cost compares in the order of its fields; that of two
// groups of boards together adds up, or is the larger: so the best way of a whole is made of best ways of its parts.
type way struct {
	destroyed, touched int
	left               int // rank of the largest profile that can be placed somewhere afterwards
	changes            []BoardChange
}

func (w *way) better(than *way) bool {
	if than == nil {
		return true
	}
	return cmp.Or(cmp.Compare(w.destroyed, than.destroyed), cmp.Compare(w.touched, than.touched), cmp.Compare(than.left, w.left)) < 0
}

// solve returns the best way to meet all needs, nil for none.
func (d *demand) solve() []BoardChange {
	all := 1
	for _, n := range d.needs {
		all *= n.Count + 1
	}
	ways := make([]*way, all) // by how much of each need is met, see part
	ways[0] = &way{}
	for b := range d.boards {
		options := d.options(b, all)
		next := make([]*way, all)
		for met, w := range ways {
			if w == nil {
				continue
			}
			for more, o := range options {
				sum, ok := d.add(met, more)
				if o == nil || !ok {
					continue
				}
				joined := &way{destroyed: w.destroyed + o.destroyed, touched: w.touched + o.touched, left: max(w.left, o.left)}
				if joined.better(next[sum]) {
					joined.changes = append(w.changes[:len(w.changes):len(w.changes)], o.changes...)
					next[sum] = joined
				}
			}
		}
		ways = next
	}
	last := ways[all-1]
	if last == nil {
		return nil
	}
	return append([]BoardChange{}, last.changes...)
}

// part is how much of each need a number stands for: digits in mixed bases.
func (d *demand) part(n int) []int {
	counts := make([]int, len(d.needs))
	for i, need := range d.needs {
		counts[i] = n % (need.Count + 1)
		n /= need.Count + 1
	}
	return counts
}

// add adds two parts; false where that is more than is needed.
func (d *demand) add(a, b int) (int, bool) {
	sum, base := 0, 1
	for _, need := range d.needs {
		digits := need.Count + 1
		x := a%digits + b%digits
		if x >= digits {
			return 0, false
		}
		sum, base = sum+x*base, base*digits
		a, b = a/digits, b/digits
	}
	return sum, true
}

// options are the best ways of one board to meet each part of the demand, nil where it cannot.
func (d *demand) options(board, all int) []*way {
	list := make([]*way, all)
	for n := range all {
		counts := d.part(n)
		total := 0
		for _, c := range counts {
			total += c
		}
		if total > maxUnits { // more than any axis has
			continue
		}
		f := newFitting(&d.boards[board], d.needs, counts)
		if f.run(); f.best == nil {
			continue
		}
		w := &way{destroyed: bits.OnesCount64(f.gone), left: f.left}
		if total > 0 {
			w.touched = 1
			w.changes = []BoardChange{f.change(board)}
		}
		list[n] = w
	}
	return list
}
