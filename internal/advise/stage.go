package advise

import "slices"

// Stage is a GPU that gets slices, as a step of a procedure.
type Stage struct {
	*PackedGPU
	// Whole is the answer for the GPU as a whole; nil if its MIG mode is on.
	Whole *Recommendation
}

// IsFree reports whether the GPU is whole, and nothing holds it.
func (s *Stage) IsFree() bool { return s.Whole != nil && s.Whole.Action == ActionFree }

// OfWhole returns the recommendation for a whole GPU by its index; nil if there is none.
func (r *Report) OfWhole(index int) *Recommendation {
	at := slices.IndexFunc(r.Devices, func(d Recommendation) bool {
		return d.Index == index && !d.Instance.Present()
	})
	if at < 0 {
		return nil
	}

	return &r.Devices[at]
}

// TargetOf returns the index of the GPU on which the workload of a whole GPU gets its slice; -1 if it
// gets none.
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

// Profile returns the profile of the slices of a node under the single strategy: all have the same.
func (p *Packing) Profile() string {
	for i := range p.GPUs {
		for _, s := range p.GPUs[i].Slices {
			return s.Profile
		}
	}

	return ""
}

// Stages returns the GPUs that get slices: those that can have them at once, and those that a workload
// must leave first, in the order in which to empty them. If the workload of GPU 1 gets its slice on GPU
// 0, GPU 0 comes first. If the workload of GPU 0 also gets its slice on GPU 1, this is a circle: one of
// them comes first, and its workload must wait for its slice.
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
		if at < 0 {
			at = r.Packing.onCircle(waiting)
		}

		held = append(held, waiting[at])
		waiting = slices.Delete(waiting, at, at+1)
	}

	return ready, held
}

// onCircle returns the index of a stage on a circle, if each stage waits for another one of them. From
// any stage, as many steps as there are stages lead onto a circle.
func (p *Packing) onCircle(waiting []Stage) int {
	on := waiting[0].Index
	for range waiting {
		on = p.TargetOf(on)
	}

	return slices.IndexFunc(waiting, func(s Stage) bool { return s.Index == on })
}
