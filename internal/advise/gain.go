package advise

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Gain is what a move of a workload from its whole GPU to a slice brings.
type Gain struct {
	// FreedGPUs is the workload's share of the whole GPUs that the packing sets free: four that
	// move from GPUs of their own to one free GPU have 0.75 each.
	FreedGPUs float64 `json:"freedGpus"`
	// Room is the largest profile that can be created beside the slice and could not be created on
	// the node before. If FreedGPUs is 0 and Room is empty, the workload moves with the other
	// replicas of its owner, since one template asks for all.
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

// SharedGain returns the gain of each workload if several move together to a number of GPUs that are
// whole now.
func SharedGain(workloads, gpus int) Gain {
	return Gain{FreedGPUs: round3(float64(workloads-gpus) / float64(workloads))}
}

// RoomBeside returns the largest profile that can be created on an empty GPU beside an instance of
// another profile, wherever the instance is placed. It skips the profiles that could be created
// before, and returns "" if no other one fits.
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

// weighGains fills in what each move gains, and returns the recommendations that gain nothing: they
// need a GPU for themselves, and the node had room before for what fits beside them.
func (p *packer) weighGains(report *Report) (gainless []*Recommendation) {
	if report.SingleStrategy {
		return p.weighNode()
	}

	before := p.placeable()
	p.restoreBest()

	for i := range p.targets {
		t := &p.targets[i]
		if len(t.taken) == 0 {
			continue
		}

		gain := SharedGain(len(t.taken), t.cost)
		if gain.FreedGPUs == 0 {
			gain.Room = RoomBeside(p.profiles, p.moves[t.taken[0]].profile, before)
		}

		gainless = append(gainless, p.setGain(gain, t.taken)...)
	}

	return withoutReplicas(report.Devices, gainless)
}

// mayGainNothing reports whether one of the moves that may be refused could gain nothing, however the
// search assigns it. What shares a GPU, or goes to one in MIG mode, always gains, so that we look at
// what each would gain alone.
func (p *packer) mayGainNothing(report *Report, mayRefuse func(*Recommendation) bool) bool {
	refusable := slices.DeleteFunc(slices.Clone(p.moves), func(m move) bool {
		return !mayRefuse(m.recommendation)
	})
	if len(refusable) == 0 {
		return false
	}

	if report.SingleStrategy {
		return !p.fitsTwice()
	}

	before := p.placeable()

	return slices.ContainsFunc(refusable, func(m move) bool {
		return RoomBeside(p.profiles, m.profile, before) == ""
	})
}

// fitsTwice reports whether two slices of the node's one profile fit on a GPU.
func (p *packer) fitsTwice() bool { return p.arrange(&target{taken: []int{0, 0}}) != nil }

// withoutReplicas leaves out the recommendations with a replica that gains: its template makes them
// move, too.
func withoutReplicas(devices []Recommendation, gainless []*Recommendation) []*Recommendation {
	return slices.DeleteFunc(gainless, func(d *Recommendation) bool {
		moves := slices.ContainsFunc(devices, func(r Recommendation) bool {
			return r.Gain != nil && *r.Gain != (Gain{}) && *r.Workload == *d.Workload
		})
		if moves {
			d.Gain = &Gain{}
		}

		return moves
	})
}

// setGain fills in the gain of some moves, and returns their recommendations if they gain nothing.
// If the search was stopped it could still have found an assignment that gains more: then the gain
// is unknown.
func (p *packer) setGain(gain Gain, moves []int) (gainless []*Recommendation) {
	for _, k := range moves {
		r := p.moves[k].recommendation
		switch {
		case gain != Gain{}:
			r.Gain = &gain
		case p.steps < maxPackingSteps:
			gainless = append(gainless, r)
		}
	}

	return gainless
}

// weighNode fills in the gains under the single strategy: the node moves as a whole, or not at all.
// No GPU stays whole, so that it gains if two slices of its one profile fit on a GPU.
func (p *packer) weighNode() (gainless []*Recommendation) {
	gain := Gain{}
	if p.fitsTwice() {
		gain.Room = p.moves[0].profile.Name
	}

	all := make([]int, len(p.moves))
	for k := range all {
		all[k] = k
	}

	return p.setGain(gain, all)
}

// placeable returns the profiles that the node has room for before anything moves: on a free GPU, or
// beside the instances of a GPU in MIG mode.
func (p *packer) placeable() map[string]bool {
	found := map[string]bool{}

	for i := range p.targets {
		t := &p.targets[i]
		if t.drained {
			continue
		}

		for k := range p.profiles {
			profile := &p.profiles[k]

			exists := slices.ContainsFunc(t.free, func(f mig.Placed) bool {
				return f.Profile == profile.Name
			})
			if exists || len(mig.FreePlacements(p.profiles, t.existing, *profile)) > 0 {
				found[profile.Name] = true
			}
		}
	}

	return found
}

// refuseGain withdraws the recommendation of a slice that would be large enough, but would gain nothing.
func (r *Recommendation) refuseGain() {
	r.Explanation = r.Recommended + " would do, and " + NoGainText + r.explainApart()
	r.withdraw(ReasonNoGain)
	r.Gain = nil
}

// explainApart says which limit keeps a slice from sharing a GPU with others; it is empty if none does.
func (r *Recommendation) explainApart() string {
	switch {
	case r.apart.pcieUnread && r.Evidence.pcieUnread:
		return ". It shares no GPU with others, since its PCIe traffic could not be read"
	case r.apart.pcieUnread:
		return ". It shares no GPU with others, since their PCIe traffic could not be read"
	case r.apart.pcie > 0:
		return fmt.Sprintf(". With others on one GPU it would pass %.0f %% of the PCIe link", 100*maxPCIe)
	case r.apart.power > 0:
		return fmt.Sprintf(". With others on one GPU it would pass %.0f %% of the power limit", 100*maxPower)
	}

	return ""
}

// NoGainText says why a slice that would be large enough is not recommended.
const NoGainText = "it would gain nothing: no whole GPU becomes free, and what " +
	"fits beside it has room already"
