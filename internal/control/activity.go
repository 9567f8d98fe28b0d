package control

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// activity remembers when instances were active last: a Snapshot has the last moment alone.
type activity struct {
	mu   sync.Mutex
	last map[gpu.InstanceKey]time.Time
	seen uint64 // generation of the last Snapshot
}

// observe takes in a Snapshot. Instances that are gone are forgotten.
func (a *activity) observe(s *gpu.Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s == nil || s.Generation == a.seen {
		return
	}
	last := map[gpu.InstanceKey]time.Time{}
	for n := range s.GPUs {
		g := &s.GPUs[n]
		for m := range g.Instances {
			i := &g.Instances[m]
			key := g.Key(i)
			if active(i) {
				last[key] = s.Time
			} else if t, ok := a.last[key]; ok {
				last[key] = t
			}
		}
	}
	a.last, a.seen = last, s.Generation
}

// active tells whether anything of an instance was at work, or whether processes were on it.
func active(i *gpu.GPUInstance) bool {
	if i.Processes.Or(0) > 0 || working(i.Activity) {
		return true
	}
	return slices.ContainsFunc(i.Computes, func(c gpu.ComputeInstance) bool { return c.Processes.Or(0) > 0 || working(c.Activity) })
}

func working(a gpu.Activity) bool {
	for _, v := range a.All() {
		if v.Or(0) > 0 {
			return true
		}
	}
	return false
}

// since tells whether an instance was active at that time or later.
func (a *activity) since(key gpu.InstanceKey, t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, ok := a.last[key]
	return ok && !last.Before(t)
}

// askSnapshot adds what the last poll knows: batch jobs, activity, and readings of those that have failed. An instance that
// the poll has not seen yet may be anything.
func (e *Engine) askSnapshot(c *census) {
	for _, g := range c.gpus {
		e.askPolled(c, g, allActivity)
	}
}

// activityCheck says what of the activity of instances counts.
type activityCheck int

const (
	noActivity   activityCheck = iota
	seenActivity               // that which was seen
	allActivity                // also that which could not be seen
)

// activityOf says what counts of an instance that is to be destroyed.
func activityOf(own bool) activityCheck {
	if own {
		return seenActivity
	}
	return allActivity
}

// askPolled is askSnapshot for one GPU.
func (e *Engine) askPolled(c *census, g mig.NodeGPU, check activityCheck) {
	s := e.o.Node.Current()
	e.active.observe(s)
	if s == nil {
		c.all(g, api.Hold{Kind: api.HoldUnknown, What: "activity: nothing was polled yet"})
		return
	}
	e.askJobs(c, g, s)
	if check == noActivity || len(g.Instances) == 0 {
		return
	}
	at := slices.IndexFunc(s.GPUs, func(p gpu.GPU) bool { return p.UUID == g.UUID })
	if at < 0 || !s.GPUs[at].Up {
		if check == allActivity {
			c.all(g, api.Hold{Kind: api.HoldUnknown, What: "activity: the last poll could not read the GPU"})
		}
		return
	}
	e.askActivity(c, g, &s.GPUs[at], s.Time, check)
}

// askLastPoll is askPolled where there may have been no poll yet: right after the start.
func (e *Engine) askLastPoll(ctx context.Context, c *census, g mig.NodeGPU, check activityCheck) {
	if e.o.Node.Current() == nil {
		call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		defer cancel()
		if err := e.o.Node.Poll(call, nil); err != nil {
			c.all(g, unknown("activity and batch jobs", err))
			return
		}
	}
	e.askPolled(c, g, check)
}

// askJobs adds the batch jobs of the GPU as a whole and of its instances.
func (e *Engine) askJobs(c *census, g mig.NodeGPU, s *gpu.Snapshot) {
	for _, source := range s.Sources {
		if source.Name == gpu.SourceJobs && !source.Up {
			c.all(g, api.Hold{Kind: api.HoldUnknown, What: "batch jobs: their source does not answer"})
		}
	}
	at := slices.IndexFunc(s.GPUs, func(p gpu.GPU) bool { return p.UUID == g.UUID })
	if at < 0 {
		return
	}
	for _, job := range s.GPUs[at].Jobs {
		c.all(g, api.Hold{Kind: api.HoldJob, What: "job " + job})
	}
	for _, i := range g.Instances {
		if p := polledInstance(&s.GPUs[at], i); p != nil {
			for _, job := range p.Jobs {
				c.add(unit{gpu: g.UUID, instance: i.ID}, api.Hold{Kind: api.HoldJob, What: "job " + job})
			}
		}
	}
}

// polledInstance is an instance as the poll has seen it; nil where it has not.
func polledInstance(polled *gpu.GPU, i mig.NodeInstance) *gpu.GPUInstance {
	at := slices.IndexFunc(polled.Instances, func(p gpu.GPUInstance) bool {
		return p.ID == i.ID && p.Placement.Or(i.Placement) == i.Placement && p.ProfileID.Or(i.ProfileID) == i.ProfileID
	})
	if at < 0 {
		return nil
	}
	return &polled.Instances[at]
}

func (e *Engine) askActivity(c *census, g mig.NodeGPU, polled *gpu.GPU, now time.Time, check activityCheck) {
	failed := slices.ContainsFunc(polled.Errors, activityFailed)
	for _, i := range g.Instances {
		u := unit{gpu: g.UUID, instance: i.ID}
		p := polledInstance(polled, i)
		if p == nil {
			if check == allActivity {
				c.add(u, api.Hold{Kind: api.HoldUnknown, What: "activity: the last poll has not seen it yet"})
			}
			continue
		}
		if check == allActivity && (failed || !p.Up || slices.ContainsFunc(p.Errors, activityFailed)) {
			c.add(u, api.Hold{Kind: api.HoldUnknown, What: "activity: its reading has failed"})
		}
		if e.active.since(polled.Key(p), now.Add(-e.o.IdleFor)) {
			c.add(u, api.Hold{Kind: api.HoldActivity, What: "active within the last " + e.o.IdleFor.String()})
		}
	}
}

func activityFailed(r gpu.ReadError) bool {
	return r.Reading == gpu.ReadingActivity || r.Reading == gpu.ReadingProcesses
}
