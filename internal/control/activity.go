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

// addLastPolls adds what the last poll found on all GPUs: batch jobs, activity, and failed readings
// of activity. An instance that the poll has not seen yet counts as possibly busy.
func (e *Engine) addLastPolls(u *usage) {
	for _, g := range u.gpus {
		e.addLastPoll(u, g, allActivity)
	}
}

// activityCheck selects which evidence of activity makes an instance busy.
type activityCheck int

const (
	noActivity   activityCheck = iota
	seenActivity               // activity that was seen
	allActivity                // also activity that could not be read
)

// checkBeforeDestroy returns the check for a compute instance that we are about to destroy. A
// rollback destroys what its operation has created: the poll may not have seen that yet, so only
// activity that was seen counts.
func checkBeforeDestroy(rollback bool) activityCheck {
	if rollback {
		return seenActivity
	}

	return allActivity
}

// addLastPoll adds what the last poll found of one GPU, as far as check asks for it.
func (e *Engine) addLastPoll(u *usage, g mig.GPULayout, check activityCheck) {
	s := e.o.Poller.Current()
	e.active.observe(s)

	if s == nil {
		u.addToGPU(g, api.Hold{Kind: api.HoldUnknown, What: "activity: nothing was polled yet"})
		return
	}

	e.addJobs(u, g, s)

	if check == noActivity || len(g.Instances) == 0 {
		return
	}

	at := slices.IndexFunc(s.GPUs, func(p gpu.GPU) bool { return p.UUID == g.UUID })
	if at < 0 || !s.GPUs[at].Up {
		if check == allActivity {
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
	if check == allActivity && s.Time.Sub(s.GPUs[at].LastRead) > limit {
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
func (e *Engine) pollAndAdd(ctx context.Context, u *usage, g mig.GPULayout, check activityCheck) {
	if e.o.Poller.Current() == nil {
		callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		defer cancel()

		if err := e.o.Poller.Poll(callCtx, nil); err != nil {
			u.addToGPU(g, unknownHold("activity and batch jobs", err))
			return
		}
	}

	if check != noActivity {
		e.pollSkipped(ctx, []mig.GPULayout{g})
	}

	e.addLastPoll(u, g, check)
}

// addJobs adds the batch jobs of the GPU as a whole and of its instances.
func (e *Engine) addJobs(u *usage, g mig.GPULayout, s *gpu.Snapshot) {
	for _, source := range s.Sources {
		if source.Name == gpu.SourceJobs && !source.Up {
			u.addToGPU(
				g,
				api.Hold{Kind: api.HoldUnknown, What: "batch jobs: their source does not answer"},
			)
		}
	}

	at := slices.IndexFunc(s.GPUs, func(p gpu.GPU) bool { return p.UUID == g.UUID })
	if at < 0 {
		return
	}

	for _, job := range s.GPUs[at].Jobs {
		u.addToGPU(g, api.Hold{Kind: api.HoldJob, What: "job " + job})
	}

	for _, i := range g.Instances {
		if p := polledInstance(&s.GPUs[at], i); p != nil {
			for _, job := range p.Jobs {
				u.addHold(
					holdKey{gpu: g.UUID, instance: i.ID},
					api.Hold{Kind: api.HoldJob, What: "job " + job},
				)
			}
		}
	}
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

// addActivity adds a hold to each instance that was active within the last IdleFor and, with
// allActivity, to those whose activity is unknown.
func (e *Engine) addActivity(
	u *usage,
	g mig.GPULayout,
	polled *gpu.GPU,
	now time.Time,
	check activityCheck,
) {
	failed := slices.ContainsFunc(polled.Errors, activityFailed)

	for _, i := range g.Instances {
		device := holdKey{gpu: g.UUID, instance: i.ID}

		p := polledInstance(polled, i)
		if p == nil || !wasRead(polled, p) {
			if check == allActivity {
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

		if check == allActivity &&
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
