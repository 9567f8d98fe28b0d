package truth

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// smallNode is of how many GPUs a part of a node is whose packing is compared with the exhaustive
// optimum.
const smallNode = 4

// checkPacking packs each half of a node as a node of its own, and notes those that need more GPUs
// than the best of all assignments, or fewer than is possible.
func (res *result) checkPacking(report *advise.Report, gpus []gpu.GPU) {
	for from := 0; from < len(gpus); from += smallNode {
		half := *report
		half.Devices = slices.Clone(report.Devices[from : from+smallNode])
		half.Packing = nil
		half.Pack(&gpu.Snapshot{GPUs: gpus[from : from+smallNode]})
		want, placed := fewestGPUs(half.Devices, gpus[from:from+smallNode])
		res.smallPackings++

		got := 0
		if half.Packing != nil {
			got = half.Packing.Needed
		}

		if !placed && got == 0 {
			continue
		}

		if got < want {
			res.wrong = append(res.wrong, fmt.Sprintf("%s from GPU %d: packed on %d GPUs, of which %d are needed at least",
				report.Node, from, got, want))
		}

		if got > want {
			res.wrong = append(res.wrong, fmt.Sprintf("%s from GPU %d: packed on %d GPUs; %d do", report.Node, from, got, want))
		}

		if got > 0 && got < half.Packing.InUse {
			res.sharedPackings++
		}
	}
}

// assignment is a part of the candidates of a small node on its GPUs.
type assignment struct {
	gpus  []gpu.GPU
	all   map[string]int // replicas by their owner
	moved []*advise.Recommendation
	on    [smallNode][]*advise.Recommendation
}

// fewestGPUs tries every assignment of the candidates to GPUs that they hold or that are free, and
// returns on how many GPUs the best of them is.
func fewestGPUs(devices []advise.Recommendation, gpus []gpu.GPU) (fewest int, placed bool) {
	a := assignment{gpus: gpus, all: map[string]int{}}
	usable := [smallNode]bool{}

	for i := range devices {
		r := &devices[i]
		if r.Workload != nil {
			a.all[r.Workload.Owner]++
		}

		usable[i] = r.Candidate() || r.Action == advise.ActionFree
		if r.Candidate() {
			a.moved = append(a.moved, r)
		}
	}

	var try func(k int)
	try = func(k int) {
		if k == len(a.moved) {
			if used := a.used(); a.spreads() && (!placed || used < fewest) {
				fewest = used
				placed = true
			}

			return
		}

		for i := range gpus {
			if !usable[i] {
				continue
			}

			before := a.on[i]

			a.on[i] = append(slices.Clone(before), a.moved[k])
			if a.holds(i) {
				try(k + 1)
			}

			a.on[i] = before
		}
	}
	try(0)

	return fewest, placed
}

func (a *assignment) used() int {
	n := 0

	for _, list := range a.on {
		if len(list) > 0 {
			n++
		}
	}

	return n
}

// spreads reports whether no GPU gets all replicas of an owner that has several.
func (a *assignment) spreads() bool {
	for _, list := range a.on {
		on := map[string]int{}

		for _, r := range list {
			owner := r.Workload.Owner
			if on[owner]++; on[owner] > 1 && on[owner] == a.all[owner] {
				return false
			}
		}
	}

	return true
}

// holds reports whether a GPU has places for its slices, and power and traffic for them if there
// are several.
func (a *assignment) holds(at int) bool {
	g := &a.gpus[at]

	power := g.Power.IdleWatts.Or(0) / g.Readings.PowerLimitWatts.Or(1)
	traffic := 0.

	for _, r := range a.on[at] {
		power = power + r.Evidence.PowerP95.Or(0)
		traffic = traffic + r.Evidence.PCIeMax.Or(0)
	}

	if len(a.on[at]) > 1 && (power > 0.9 || traffic > 0.7) {
		return false
	}

	return fits(g.Profiles, a.on[at], nil)
}

// fits tries every place for every slice.
func fits(profiles []gpu.Profile, list []*advise.Recommendation, current []mig.Placed) bool {
	if len(list) == 0 {
		return true
	}

	at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == list[0].Recommended })
	for _, place := range mig.FreePlacements(profiles, current, profiles[at]) {
		next := mig.Placed{ProfileID: profiles[at].ID, Profile: profiles[at].Name, Placement: place}
		if fits(profiles, list[1:], append(slices.Clone(current), next)) {
			return true
		}
	}

	return false
}
