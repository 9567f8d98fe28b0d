package control

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// activity remembers when each instance was last active, which a Snapshot doesn't say.
type activity struct {
	mu   sync.Mutex
	last map[gpu.DeviceID]time.Time
	seen uint64 // generation of the last Snapshot
}

// observe updates the times from a Snapshot, and drops instances that it does not have.
func (a *activity) observe(s *gpu.Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if s == nil || s.Generation == a.seen {
		return
	}

	last := map[gpu.DeviceID]time.Time{}

	for n := range s.GPUs {
		g := &s.GPUs[n]
		for m := range g.Instances {
			i := &g.Instances[m]
			id := gpu.IDOfInstance(g.UUID, i)

			if isActive(i) {
				last[id] = s.Time
			} else if t, ok := a.last[id]; ok {
				last[id] = t
			}
		}
	}

	a.last = last
	a.seen = s.Generation
}

// isActive reports whether any activity of an instance was above zero, or processes ran on it.
func isActive(i *gpu.GPUInstance) bool {
	if i.Processes.Or(0) > 0 || hasActivity(i.Activity) {
		return true
	}

	return slices.ContainsFunc(i.ComputeInstances, func(c gpu.ComputeInstance) bool {
		return c.Processes.Or(0) > 0 || hasActivity(c.Activity)
	})
}

func hasActivity(a gpu.Activity) bool {
	for _, v := range a.All() {
		if v.Or(0) > 0 {
			return true
		}
	}

	return false
}

// wasActiveSince reports whether an instance was active at that time or later.
func (a *activity) wasActiveSince(id gpu.DeviceID, t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	last, ok := a.last[id]

	return ok && !last.Before(t)
}

// addLastPolls adds what the last poll found on all GPUs: batch jobs, activity, and what it could not
// read of either. An instance that the poll has not seen yet counts as possibly busy.
func (e *Engine) addLastPolls(u *usage) {
	for _, g := range u.gpus {
		e.addLastPoll(u, g, pollCheck{activity: true, unknown: true})
	}
}

// pollCheck selects which findings of the last poll make an instance busy, besides known batch jobs.
type pollCheck struct {
	activity bool // activity that was seen and, with unknown, activity that could not be read
	unknown  bool // batch jobs that could not be read
}

// checkBeforeDestroy returns the check for a step that is about to destroy an instance. When we destroy a
// GPU instance, it has no compute instance left that could be active. A rollback destroys what its
// operation has created: the poll may not have seen that yet, so what it does not know does not count.
func checkBeforeDestroy(op mig.StepOp, rollback bool) pollCheck {
	return pollCheck{activity: op == mig.DestroyCompute, unknown: !rollback}
}

// addLastPoll adds what the last poll found of one GPU, as far as check asks for it.
func (e *Engine) addLastPoll(u *usage, g mig.GPULayout, check pollCheck) {
	s := e.o.Poller.Current()
	e.active.observe(s)

	if s == nil {
		u.addToGPU(g, api.Hold{Kind: api.HoldUnknown, What: "activity: nothing was polled yet"})
		return
	}

	u.addJobs(g, s, check)

	if !check.activity || len(g.Instances) == 0 {
		return
	}

	at := slices.IndexFunc(s.GPUs, func(p gpu.GPU) bool { return p.UUID == g.UUID })
	if at < 0 || !s.GPUs[at].Up {
		if check.unknown {
			u.addToGPU(
				g,
				api.Hold{
					Kind: api.HoldUnknown,
					What: "activity: the last poll could not read the GPU",
				},
			)
		}

		return
	}

	limit := max(e.o.IdleFor, s.Pace.Fast.Now)
	if check.unknown && s.Time.Sub(s.GPUs[at].LastRead) > limit {
		u.addToGPU(
			g,
			api.Hold{
				Kind: api.HoldUnknown,
				What: "activity: the last reading is older than " + limit.String(),
			},
		)
	}

	e.addActivity(u, g, &s.GPUs[at], s.Time, check)
}

// pollSkipped polls those of the GPUs that the poller's last cycle has left out. While driver calls
// are expensive or slow, the poller reads GPUs less often, and a program may have started since. A
// GPU that cannot be read keeps its old reading.
func (e *Engine) pollSkipped(ctx context.Context, gpus []mig.GPULayout) {
	s := e.o.Poller.Current()
	if s == nil {
		return
	}

	var old []gpu.UUID

	for i := range s.GPUs {
		g := &s.GPUs[i]

		isMeant := slices.ContainsFunc(gpus, func(l mig.GPULayout) bool { return l.UUID == g.UUID })
		if isMeant && g.Up && s.Pace.Fast.Configured > 0 &&
			s.Time.Sub(g.LastRead) > s.Pace.Fast.Configured {
			old = append(old, g.UUID)
		}
	}

	if len(old) == 0 {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	_ = e.o.Poller.PollGPUs(ctx, old...) // addLastPoll says of which GPUs the readings are too old
}

// pollAndAdd is addLastPoll, but polls first if nothing was polled yet, as right after the start. If
// activity counts, it also polls if the last reading is old.
func (e *Engine) pollAndAdd(ctx context.Context, u *usage, g mig.GPULayout, check pollCheck) {
	if e.o.Poller.Current() == nil {
		callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		defer cancel()

		if err := e.o.Poller.Poll(callCtx, nil); err != nil {
			u.addToGPU(g, unknownHold("activity and batch jobs", err))
			return
		}
	}

	if check.activity {
		e.pollSkipped(ctx, []mig.GPULayout{g})
	}

	e.addLastPoll(u, g, check)
}

// addJobs adds the batch jobs of the GPU as a whole and of its instances and, if check asks for it, which
// of them may have jobs that are unknown.
func (u *usage) addJobs(g mig.GPULayout, s *gpu.Snapshot, check pollCheck) {
	unknown, listed := unknownJobs(s)

	at := slices.IndexFunc(s.GPUs, func(p gpu.GPU) bool { return p.UUID == g.UUID })
	if at < 0 {
		if check.unknown && listed {
			u.addToGPU(g, unknown)
		}

		return
	}

	polled := &s.GPUs[at]
	if check.unknown && polled.JobsUnknown {
		u.addToGPU(g, unknown)
	}

	for _, job := range polled.Jobs {
		u.addToGPU(g, api.Hold{Kind: api.HoldJob, What: "job " + job})
	}

	for _, i := range g.Instances {
		key := holdKey{gpu: g.UUID, instance: i.ID}
		mayHaveJobs := listed // if the poll has not seen it

		if p := polledInstance(polled, i); p != nil {
			mayHaveJobs = p.JobsUnknown

			for _, job := range p.Jobs {
				u.addHold(key, api.Hold{Kind: api.HoldJob, What: "job " + job})
			}
		}

		// A job of the whole GPU, which may have any of its instances, holds them all already.
		if check.unknown && mayHaveJobs && len(polled.Jobs) == 0 {
			u.addHold(key, unknown)
		}
	}
}

// unknownJobs returns the hold on a device whose batch jobs the poll does not know, and whether the jobs are
// among the sources of a Snapshot. Before their first call has ended they are not, even on a node with jobs:
// JobsUnknown of a device decides whether it has the hold.
func unknownJobs(s *gpu.Snapshot) (unknown api.Hold, listed bool) {
	unknown = api.Hold{Kind: api.HoldUnknown, What: "batch jobs: they have not been read yet"}

	at := slices.IndexFunc(s.Sources, func(src gpu.SourceState) bool { return src.Name == gpu.SourceJobs })
	if at < 0 {
		return unknown, false
	}

	if !s.Sources[at].Up {
		unknown.What = "batch jobs: their source does not answer"
	}

	return unknown, true
}

// polledInstance returns an instance as the last poll has read it, or nil if the poll has not seen
// it.
func polledInstance(polled *gpu.GPU, i mig.Instance) *gpu.GPUInstance {
	at := slices.IndexFunc(polled.Instances, func(p gpu.GPUInstance) bool {
		return p.ID == i.ID && p.Placement.Or(i.Placement) == i.Placement &&
			p.ProfileID.Or(i.ProfileID) == i.ProfileID
	})
	if at < 0 {
		return nil
	}

	return &polled.Instances[at]
}

// addActivity adds a hold to each instance that was active within the last IdleFor and, if what is
// unknown counts, to those whose activity is.
func (e *Engine) addActivity(
	u *usage,
	g mig.GPULayout,
	polled *gpu.GPU,
	now time.Time,
	check pollCheck,
) {
	failed := slices.ContainsFunc(polled.Errors, activityFailed)

	for _, i := range g.Instances {
		device := holdKey{gpu: g.UUID, instance: i.ID}

		p := polledInstance(polled, i)
		if p == nil || !wasRead(polled, p) {
			if check.unknown {
				u.addHold(
					device,
					api.Hold{
						Kind: api.HoldUnknown,
						What: "activity: the last poll has not seen it yet",
					},
				)
			}

			continue
		}

		if check.unknown &&
			(failed || !p.Up || slices.ContainsFunc(p.Errors, activityFailed)) {
			u.addHold(
				device,
				api.Hold{Kind: api.HoldUnknown, What: "activity: its reading has failed"},
			)
		}

		if e.active.wasActiveSince(gpu.IDOfInstance(polled.UUID, p), now.Add(-e.o.IdleFor)) {
			u.addHold(
				device,
				api.Hold{
					Kind: api.HoldActivity,
					What: "active within the last " + e.o.IdleFor.String(),
				},
			)
		}
	}
}

// wasRead reports whether an instance and all of its compute instances existed at the last reading
// of their GPU. If not, we have only read that they exist.
func wasRead(g *gpu.GPU, i *gpu.GPUInstance) bool {
	return !i.Since.After(g.LastRead) && !slices.ContainsFunc(i.ComputeInstances,
		func(c gpu.ComputeInstance) bool { return c.Since.After(g.LastRead) })
}

// activityFailed reports whether a reading that shows activity has failed. Processes that are
// hidden from our PID namespace are no failure: addProcesses decides what they mean.
func activityFailed(r gpu.ReadError) bool {
	return r.Reading == gpu.ReadingActivity ||
		r.Reading == gpu.ReadingProcesses && !errors.Is(r.Err, gpu.ErrPIDNamespace)
}
