package advise

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Gain is what it brings to move a workload from its whole GPU to a slice.
type Gain struct {
	// FreedGPUs is the workload's share of the whole GPUs that the packing sets free: four that
	// move from GPUs of their own to one free GPU have 0.75 each.
	FreedGPUs float64 `json:"freedGpus"`
	// Room is the largest profile that can be created beside the slice and could not on the node
	// before; if FreedGPUs is 0 and there is none, the workload moves with the other replicas of
	// its owner, since one template asks for all.
	Room string `json:"room,omitempty"`
}

// String says what is gained, to follow the sentence on a recommendation.
func (g *Gain) String() string {
	if g.FreedGPUs >= 1 {
		return "frees a whole GPU"
	}

	if g.FreedGPUs > 0 {
		return fmt.Sprintf("frees %.2f of a GPU, packed with others", g.FreedGPUs)
	}

	if g.Room == "" {
		return "frees no whole GPU, and moves with the other replicas of its owner"
	}

	return "frees no whole GPU, room for " + g.Room
}

// SharedGain returns the gain of each of some workloads that move together to so many GPUs that are
// whole now.
func SharedGain(workloads, gpus int) Gain {
	return Gain{FreedGPUs: round3(float64(workloads-gpus) / float64(workloads))}
}

// RoomBeside returns the largest of the profiles that can be created on an empty GPU beside an
// instance of another one, wherever that is placed, and that is none of those that could be created
// before; empty if there is none.
func RoomBeside(profiles []gpu.Profile, instance *gpu.Profile, before map[string]bool) string {
	var best *gpu.Profile

	for _, place := range mig.FreePlacements(profiles, nil, *instance) {
		placed := []mig.Placed{{ProfileID: instance.ID, Profile: instance.Name, Placement: place}}

		for i := range profiles {
			p := &profiles[i]
			if before[p.Name] || best != nil && !isLarger(p, best) {
				continue
			}

			if len(mig.FreePlacements(profiles, placed, *p)) > 0 {
				best = p
			}
		}
	}

	if best == nil {
		return ""
	}

	return best.Name
}

// isLarger reports whether a profile has more memory, or as much memory and more SMs. If both are
// equal, a plain profile is larger than one with attributes.
func isLarger(p, than *gpu.Profile) bool {
	return cmp.Or(cmp.Compare(p.MemorySlices, than.MemorySlices), cmp.Compare(p.SMs, than.SMs),
		cmp.Compare(len(than.Name), len(p.Name))) > 0
}

// weighGains fills in what each moved workload gains, and returns the indices of the devices of
// those that gain nothing: they need a GPU for themselves, and what fits beside them had room on
// the node before.
func (p *packer) weighGains(report *Report) (idle []int) {
	if report.SingleStrategy {
		return p.weighNode(report)
	}

	before := p.placeable()
	for i := range p.targets {
		t := &p.targets[i]
		if t.taken = p.best[i]; len(t.taken) == 0 {
			continue
		}

		gain := SharedGain(len(t.taken), t.cost)
		if gain.FreedGPUs == 0 {
			gain.Room = RoomBeside(p.profiles, p.moved[t.taken[0]].profile, before)
		}

		idle = append(idle, p.setGain(report, gain, t.taken)...)
	}

	return withoutReplicas(report.Devices, idle)
}

// withoutReplicas leaves those out that have a replica that gains: it makes them move, too.
func withoutReplicas(devices []Recommendation, idle []int) []int {
	return slices.DeleteFunc(idle, func(at int) bool {
		moves := slices.ContainsFunc(devices, func(r Recommendation) bool {
			return r.Gain != nil && *r.Gain != (Gain{}) && *r.Workload == *devices[at].Workload
		})
		if moves {
			devices[at].Gain = &Gain{}
		}

		return moves
	})
}

// setGain fills in the gain of some moved workloads, and returns the indices of their devices if it
// is none. It is unknown if the search was stopped before it could find a way that gains more.
func (p *packer) setGain(report *Report, gain Gain, moved []int) (idle []int) {
	for _, k := range moved {
		at := p.moved[k].device
		switch {
		case gain != Gain{}:
			report.Devices[at].Gain = &gain
		case p.steps < maxPackingSteps:
			idle = append(idle, at)
		}
	}

	return idle
}

// weighNode fills in the gains under the single strategy: the node moves as a whole, or not at all.
// Without a GPU that is set free, it gains if another slice of its one profile fits beside a
// workload's.
func (p *packer) weighNode(report *Report) (idle []int) {
	gain := SharedGain(len(p.moved), p.bestCost)
	if gain.FreedGPUs <= 0 {
		one := p.moved[0].profile
		gain = Gain{}

		if p.arrange(&target{taken: []int{0, 0}}) != nil {
			gain.Room = one.Name
		}
	}

	all := make([]int, 0, len(p.moved))
	for k := range p.moved {
		all = append(all, k)
	}

	return p.setGain(report, gain, all)
}

// placeable returns the profiles that can be created without that anything moves: on a free GPU, or
// beside what a GPU in MIG mode has.
func (p *packer) placeable() map[string]bool {
	found := map[string]bool{}

	for i := range p.targets {
		t := &p.targets[i]
		if t.drained {
			continue
		}

		for k := range p.profiles {
			profile := &p.profiles[k]

			stands := slices.ContainsFunc(t.free, func(f mig.Placed) bool {
				return f.Profile == profile.Name
			})
			if stands || len(mig.FreePlacements(p.profiles, t.fixed, *profile)) > 0 {
				found[profile.Name] = true
			}
		}
	}

	return found
}

// refuseGain changes the answer for a whole GPU to keeping it: a slice would do, but it would gain
// nothing.
func (r *Recommendation) refuseGain() {
	r.Explanation = r.Recommended + " would do, and " + NoGainText
	r.Action = ActionKeep
	r.Reason = ReasonNoGain
	r.Recommended = ""
	r.Gain = nil
	r.Predicted = nil
	r.Reclaimable = 0
}

// NoGainText says why what would do is not recommended.
const NoGainText = "it would gain nothing: no whole GPU becomes free, and what " +
	"fits beside it has room already"
