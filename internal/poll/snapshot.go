package poll

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// snapshot merges what is known into a Snapshot that shares nothing with the loop's own state.
func (p *Poller) snapshot(now time.Time) *gpu.Snapshot {
	p.generation++
	s := &gpu.Snapshot{Generation: p.generation, Time: now, Hostname: p.opts.Hostname}
	driver := gpu.SourceState{Name: gpu.SourceNVML, Up: p.driverErr == nil, LastSuccess: p.driverSeen, Err: p.driverErr}
	driver.Stale = !driver.Up && !p.driverSeen.IsZero()
	s.Sources = append(s.Sources, driver)
	if driver.Up {
		s.Driver = gpu.Some(p.inventory.Driver)
	}
	if k, ok := p.pods.state(); ok {
		s.Sources = append(s.Sources, k)
	}
	s.GPUs = p.gpuList(now)
	if p.pods.known {
		s.Unmatched = p.pods.last.Garbled + attach(s.GPUs, p.pods.last.List, p.opts.Containers)
		for i := range s.GPUs {
			s.GPUs[i].Containers = containerMemory(&s.GPUs[i], p.opts.Containers)
		}
	}
	for _, t := range p.gpus {
		if t.read.hung(now, p.opts.Timeout) {
			s.HungCalls++
		}
	}
	if p.discover.hung(now, p.opts.Timeout) {
		s.HungCalls++
	}
	return s
}

// gpuList is every GPU that has ever answered, and those that the driver counts but gives no handle for, by index.
func (p *Poller) gpuList(now time.Time) []gpu.GPU {
	list := make([]gpu.GPU, 0, len(p.gpus))
	present := make(map[gpu.UUID]bool, len(p.inventory.GPUs))
	for _, id := range p.inventory.GPUs {
		present[id] = true
	}
	known := map[int]bool{}
	for id, t := range p.gpus {
		if !t.last.LastRead.IsZero() && !present[id] && t.up {
			t.fail(p.goneBecause(t.last.Index), now)
		}
		if t.last.Index < 0 && !present[id] {
			continue // it was announced, never answered, and is gone
		}
		g := t.publish(now, p.opts.StaleAfter)
		if g.Index < 0 {
			g.Index = slices.Index(p.inventory.GPUs, id)
		}
		known[g.Index] = true
		list = append(list, g)
	}
	for _, m := range p.inventory.Missing {
		if known[m.Index] {
			continue
		}
		list = append(list, gpu.GPU{
			Facts:  gpu.Facts{Index: m.Index},
			Errors: []gpu.ReadError{{Reading: gpu.ReadingDevice, Err: m.Err}},
		})
	}
	slices.SortFunc(list, func(a, b gpu.GPU) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	return list
}

// goneBecause tells why a GPU that answered before is no longer among those that can be asked.
func (p *Poller) goneBecause(index int) error {
	for _, m := range p.inventory.Missing {
		if m.Index == index {
			return m.Err
		}
	}
	if p.driverErr != nil {
		return p.driverErr
	}
	return fmt.Errorf("GPU %d: %w", index, gpu.ErrLost)
}

// publish returns the GPU as it stands, without readings where they are stale.
func (t *tracked) publish(now time.Time, staleAfter time.Duration) gpu.GPU {
	g := t.last
	g.Up = t.up
	if !t.up {
		g.Errors = t.failure
	}
	g.Totals = t.totals
	g.Totals.XIDErrors = slices.Clone(t.totals.XIDErrors)
	g.Totals.ReadErrors = slices.Clone(t.totals.ReadErrors)
	g.Totals.ClockEvents = slices.Clone(t.totals.ClockEvents)
	stale := !g.LastRead.IsZero() && now.Sub(g.LastRead) >= staleAfter
	g.Instances = slices.Clone(g.Instances)
	for i := range g.Instances {
		gi := &g.Instances[i]
		gi.Computes = slices.Clone(gi.Computes)
		if it := t.instances[gi.ID]; it != nil {
			gi.XIDErrors = slices.Clone(it.xids)
		}
		gi.Up = gi.Up && t.up
		for c := range gi.Computes {
			gi.Computes[c].Up = gi.Computes[c].Up && t.up
		}
	}
	if stale {
		dropReadings(&g)
	}
	return g
}

// dropReadings leaves identity, facts, counts of errors and the last layout: a hung GPU must not stay at 98 % for hours.
func dropReadings(g *gpu.GPU) {
	g.Readings = gpu.Readings{}
	g.Capacity = gpu.None[gpu.Capacity]()
	g.Power = gpu.PowerEstimate{}
	g.Totals.ClockEvents = nil
	none := gpu.None[gpu.Counter]()
	g.Totals.PCIeReceive, g.Totals.PCIeTransmit = none, none
	g.Totals.NVLinkReceive, g.Totals.NVLinkTransmit = none, none
	g.Totals.EnergyUnallocatedJoules = none
	for i := range g.Instances {
		gi := &g.Instances[i]
		gi.Memory = gpu.Memory{}
		gi.Processes = gpu.None[int]()
		gi.PowerWatts, gi.EnergyJoules = gpu.None[float64](), none
		for c := range gi.Computes {
			gi.Computes[c].Processes = gpu.None[int]()
		}
	}
}

// report logs what changed and what is missing, once each.
func (p *Poller) report(before, now *gpu.Snapshot) {
	d := gpu.Diff(before, now)
	info, warn := level.Info(p.opts.Logger), level.Warn(p.opts.Logger)
	for _, id := range d.Appeared {
		info.Log("msg", "Found GPU", "gpu", id)
	}
	for _, id := range d.Vanished {
		warn.Log("msg", "GPU is gone", "gpu", id)
	}
	for _, id := range d.WentUp {
		info.Log("msg", "GPU answers again", "gpu", id)
	}
	for _, id := range d.WentDown {
		warn.Log("msg", "GPU does not answer", "gpu", id, "err", p.gpus[id].failure[0].Err)
	}
	for _, id := range d.ModeChanged {
		info.Log("msg", "MIG mode changed", "gpu", id)
	}
	if before != nil {
		for _, c := range d.Created {
			info.Log("msg", "MIG instance created", "gpu", c.Key.GPU, "gpu_instance", c.Key.ID, "profile", c.Profile, "mig_uuid", c.UUID)
		}
		for _, c := range d.Destroyed {
			info.Log("msg", "MIG instance destroyed", "gpu", c.Key.GPU, "gpu_instance", c.Key.ID, "profile", c.Profile, "mig_uuid", c.UUID)
		}
	}
	for _, s := range now.Sources {
		p.reportSource(before, s)
	}
}

// reportSource logs a source that went away or came back.
func (p *Poller) reportSource(before *gpu.Snapshot, now gpu.SourceState) {
	was := gpu.SourceState{Up: true}
	if before != nil {
		for _, s := range before.Sources {
			if s.Name == now.Name {
				was = s
			}
		}
	}
	switch {
	case !now.Up && was.Up:
		level.Warn(p.opts.Logger).Log("msg", "Source does not answer; it is asked again in every cycle", "source", now.Name, "err", now.Err)
	case now.Up && !was.Up:
		level.Info(p.opts.Logger).Log("msg", "Source answers", "source", now.Name)
	}
}
