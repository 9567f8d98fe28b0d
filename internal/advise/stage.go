package advise

import (
	"slices"
)

// Stage is a GPU that gets slices, when its turn comes.
type Stage struct {
	*PackedGPU
	// Whole is the answer for the GPU as a whole; nil if its MIG mode is on.
	Whole *Recommendation
}

// IsFree reports whether the GPU is whole, and nothing holds it.
func (s *Stage) IsFree() bool { return s.Whole != nil && s.Whole.Action == ActionFree }

// OfWhole returns the answer for a GPU without MIG mode, nil if there is none.
func (r *Report) OfWhole(index int) *Recommendation {
	at := slices.IndexFunc(r.Devices, func(d Recommendation) bool {
		return d.Index == index && !d.Instance.Present()
	})
	if at < 0 {
		return nil
	}

	return &r.Devices[at]
}

// TargetOf returns the index of the GPU on which the workload of a whole GPU gets its slice, -1 if
// it gets none.
func (p *Packing) TargetOf(from int) int {
	if p == nil {
		return -1
	}

	for i := range p.GPUs {
		if slices.ContainsFunc(p.GPUs[i].Slices, func(s PackedSlice) bool { return s.From == from }) {
			return p.GPUs[i].Index
		}
	}

	return -1
}

// hasTarget reports whether a GPU gets slices.
func (p *Packing) hasTarget(index int) bool {
	return p != nil && slices.ContainsFunc(p.GPUs, func(g PackedGPU) bool { return g.Index == index })
}

// Profile returns the profile of the slices of a node under the single strategy, which have one.
func (p *Packing) Profile() string {
	for i := range p.GPUs {
		for _, s := range p.GPUs[i].Slices {
			return s.Profile
		}
	}

	return ""
}

// Stages returns the GPUs that get slices: those that can have them at once, and those that a
// workload must leave first, in the order in which they are to be emptied. A GPU whose own workload
// gets its slice on another of them comes after that one. Of a circle one comes first: its workload
// must wait for its slice.
func (r *Report) Stages() (ready, held []Stage) {
	var waiting []Stage

	for i := range r.Packing.GPUs {
		s := Stage{PackedGPU: &r.Packing.GPUs[i], Whole: r.OfWhole(r.Packing.GPUs[i].Index)}
		if s.Whole == nil || s.IsFree() {
			ready = append(ready, s)
		} else {
			waiting = append(waiting, s)
		}
	}

	for len(waiting) > 0 {
		at := slices.IndexFunc(waiting, func(s Stage) bool {
			to := r.Packing.TargetOf(s.Index)

			return to == s.Index ||
				!slices.ContainsFunc(waiting, func(o Stage) bool { return o.Index == to })
		})
		if at < 0 { // each waits for another: after as many steps as there are GPUs, one is on a circle
			on := waiting[0].Index
			for range waiting {
				on = r.Packing.TargetOf(on)
			}

			at = slices.IndexFunc(waiting, func(s Stage) bool { return s.Index == on })
		}

		held = append(held, waiting[at])
		waiting = slices.Delete(waiting, at, at+1)
	}

	return ready, held
}
