package advise

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// endings count the starts of a workload on a device that ended early. A container that is up for
// an hour sets them back to zero.
type endings struct {
	of     *workload // nil if there is none
	killed int       // while memory grew, with another process in the same container: it was killed
	again  int       // see starts.Again
	short  int       // see starts.Short
}

// failed reports whether the starts that ended early failed. Restarts and short pods that were
// usual before do not show it.
func (e *endings) failed(of *workload, usual starts) bool {
	return e.of == of &&
		(e.killed > 0 || e.again > 0 && usual.Again == 0 || e.short > 0 && usual.Short == 0)
}

// isIdle reports whether nothing has run for a day on a container that was up and held its memory.
func (d *device) isIdle(now time.Time) bool {
	return !d.idle.IsZero() && now.Sub(d.idle) >= idleAfter && !d.up.IsZero() &&
		now.Sub(d.up) >= idleAfter
}

// isDown reports whether the container of a slice did not come up: it was killed or restarted
// within an hour, unless that was usual before, or holds no memory although no other of its
// workload has come up in such a slice.
func (d *device) isDown(now time.Time, usual starts) bool {
	if d.ended.failed(d.workload, usual) {
		return true
	}

	return d.workload.Starts.Seen == 0 && !d.empty.IsZero() && now.Sub(d.empty) >= upWithin
}

// before is what we know of a workload from larger devices of its GPU's model.
type before struct {
	known  bool
	need   float64 // memory in bytes
	starts starts  // what they have in common with those in the slice, if all is well
}

// seenBefore returns what we know of a workload from devices larger than its slice.
func (a *Advisor) seenBefore(g *gpu.GPU, key Key, than capacity) before {
	var b before
	larger := func(name string) {
		k := key
		k.Profile = name

		if w := a.workloads[k]; w != nil {
			e := evidenceOf(w, a.now)
			a.addServer(w, &e, gpu.RightsizingHints{})
			b.known = true
			b.need = max(b.need, needBytes(&e, a.options.Headroom))
			b.starts.Again += w.Starts.Again
			b.starts.Short += w.Starts.Short
		}
	}

	larger("")

	for i := range g.Profiles {
		if p := &g.Profiles[i]; p.MemorySlices > than.memorySlices {
			larger(p.Name)
		}
	}

	return b
}

// recommendDown fills in the recommendation for a GPU instance if its container did not come up,
// and reports whether it has. After a move, the slice is too small for its start: more memory may
// do, and what it had before does.
func (a *Advisor) recommendDown(r *Recommendation, g *gpu.GPU, d *device, of capacity) bool {
	if d.workload.Key.Shared || !d.isDown(a.now, starts{}) {
		return false
	}

	before := a.seenBefore(g, d.workload.Key, of)
	if !before.known {
		before.starts = starts{Again: 1, Short: 1} // what is usual is not known
	}

	if !d.isDown(a.now, before.starts) {
		return false
	}

	r.Action = ActionKeep
	r.Reason = ReasonNotUp
	r.Confidence = idleConfidence(r.Evidence)

	if before.known {
		r.Action = ActionGrow
		r.Recommended = largerProfile(
			g,
			of,
			ReasonMemoryFull,
			max(before.need, needBytes(r.Evidence, a.options.Headroom)),
			a.largerEngines(r.Evidence, d.workload, of, g, [mediaKinds]bool{}),
		)
	}

	return true
}
