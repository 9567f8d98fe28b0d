package advise

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// endings counts the starts of a workload on a device that ended early, since one of its containers
// was last up for an hour.
type endings struct {
	of     *workload // nil if no start has ended
	killed int       // while memory grew, with another process in the same container: it was killed
	again  int       // see starts.RunsAgain
	short  int       // see starts.EndsShort
}

// failed reports whether starts of a workload failed. If restarts or short pods were usual for it
// before, they show no failure.
func (e *endings) failed(of *workload, usual *onLarger) bool {
	return e.of == of && (e.killed > usual.killed ||
		e.again > 0 && !usual.runsAgain ||
		e.short > 0 && !usual.endsShort)
}

// mostKilled is how many processes of a container may end while their memory grows before one comes up: a
// script or two that prepare data. With more of them, the container fails.
const mostKilled = 2

// noteKilled notes how many processes of a container were killed before it came up.
func (d *device) noteKilled() {
	if d.ended.of == d.workload && d.workload != nil {
		d.workload.Killed = max(d.workload.Killed, uint8(min(d.ended.killed, mostKilled)))
		d.ended.killed = 0
	}
}

// isIdle reports whether nothing has run for a day on a container that was up and held its memory.
func (d *device) isIdle(now time.Time) bool {
	return !d.idle.IsZero() && now.Sub(d.idle) >= idleAfter && !d.up.IsZero() &&
		now.Sub(d.up) >= idleAfter
}

// whyDown returns a sentence on the container of a slice that did not come up, or does not stay up; ""
// if it is up. It did not come up if it was killed or restarted within an hour, unless that was usual
// before, or if it holds no memory and no container of its workload has ever come up in such a slice.
func (d *device) whyDown(now time.Time, before *onLarger) string {
	w := d.workload
	unloads := w.Starts.RunsAgain && before.runsAgain
	hasBeenUp := w.HasBeenUp || unloads || w.Starts.seen() > 0 || d.start.earlier.up
	neverUp := !hasBeenUp && d.emptyFor() >= upWithin

	if neverUp || d.ended.failed(w, before) {
		return notUpText
	}

	return d.whyLost(now, before.ends)
}

// notUpText says that a container did not come up.
const notUpText = "it did not come up: the container was restarted or killed while it started, " +
	"or holds no memory"

// onLarger is what we know of a workload from larger devices of its GPU's model.
type onLarger struct {
	known bool
	need  float64 // memory in bytes

	runsAgain, endsShort bool      // see starts
	killed               int       // how many starts in a row were killed before it came up
	ends                 usualEnds // and how its containers ended after they were up
}

// onLargerThan returns what we know of a workload from devices with more memory than its slice.
func (a *Advisor) onLargerThan(g *gpu.GPU, key Key, slice capacity) onLarger {
	var o onLarger
	add := func(profile string) {
		k := key
		k.Profile = profile

		w := a.workloads[k]
		if w == nil {
			return
		}

		e := evidenceOf(w, a.now)
		a.addServer(w, &e, gpu.RightsizingHints{})

		if o.known {
			o.ends = o.ends.with(w.Ends)
		} else {
			o.ends = w.Ends
		}

		o.known = true
		o.need = max(o.need, needBytes(&e, a.options.Headroom))
		o.runsAgain = o.runsAgain || w.Starts.RunsAgain
		o.endsShort = o.endsShort || w.Starts.EndsShort
		o.killed = max(o.killed, int(w.Killed))
	}

	add("") // the whole GPU

	for i := range g.Profiles {
		if p := &g.Profiles[i]; p.MemorySlices > slice.memorySlices {
			add(p.Name)
		}
	}

	return o
}

// recommendDown fills in the recommendation for a GPU instance if its container did not come up, or does
// not stay up, and reports whether it has done so. If the workload ran on a larger device before, the
// slice is too small for it, and we recommend the smallest one with as much memory as it needed there.
func (a *Advisor) recommendDown(r *Recommendation, g *gpu.GPU, d *device, current capacity) bool {
	if d.workload.Key.Shared || d.whyDown(a.now, &onLarger{ends: areKnown}) == "" {
		return false
	}

	before := a.onLargerThan(g, d.workload.Key, current)
	if !before.known {
		// We do not know what is usual. It may restart and be short, so only a kill shows a failure.
		before.runsAgain = true
		before.endsShort = true
	}

	r.down = d.whyDown(a.now, &before)
	if r.down == "" {
		return false
	}

	r.Action = ActionKeep
	r.Reason = ReasonNotUp
	r.Confidence = idleConfidence(r.Evidence)

	if before.known {
		r.Action = ActionGrow
		r.Recommended = largerProfile(
			g,
			current,
			ReasonMemoryFull,
			max(before.need, needBytes(r.Evidence, a.options.Headroom)),
			a.largerEngines(r.Evidence, d.workload, current, g, [mediaKinds]bool{}),
		)
	}

	return true
}
