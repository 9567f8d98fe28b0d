package sim

import (
	"fmt"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Counters are the profiling counters of one entity: its Activity added up over time, in seconds.
// The growth between two readings, divided by the time between them, is the mean activity. Counters
// never decrease: an instance that is created with the ids of a destroyed one continues the counters
// of that. So a window over a layout change has the mean over both instances.
type Counters struct {
	Time     time.Time
	Of       CountersOf
	Odd      Odd // how a fault distorts them
	Activity Activity
	Engines  gpu.Engines // the device's own; a compute instance has none
	// PCIe and NVLink are bytes in each direction since the start of the node. A GPU instance has
	// only PCIe, a compute instance neither.
	PCIe, NVLink float64
}

// MonitorGPU reads the counters of a whole GPU for a client of the driver. With MIG on they show
// what runs in all instances, so the client needs root's rights, as for the memory of a whole GPU.
func (n *Node) MonitorGPU(index int) (Counters, error) {
	now, err := n.beginCall(index, gpu.ReadingActivity)
	if err != nil {
		return Counters{}, err
	}
	defer n.mu.Unlock()

	if n.gpus[index].migOn && !n.privileged(index, now) {
		return Counters{}, gpu.ErrNoPermission
	}

	return n.countersOf(n.gpus[index], now), nil
}

// GPUCounters reads the counters of a whole GPU for a caller with root's rights.
func (n *Node) GPUCounters(index int) (Counters, error) {
	now, err := n.beginCall(index, gpu.ReadingActivity)
	if err != nil {
		return Counters{}, err
	}
	defer n.mu.Unlock()

	return n.countersOf(n.gpus[index], now), nil
}

func (n *Node) countersOf(g *simGPU, now time.Time) Counters {
	t := g.totals.after(g.sample, now.Sub(n.stateTime).Seconds())

	return Counters{
		Time:     now,
		Of:       CountersOf{GPU: g.index},
		Odd:      n.odd(g.index, now),
		Activity: t.activity,
		Engines:  g.engines(),
		PCIe:     t.pcie,
		NVLink:   t.nvlink,
	}
}

// InstanceCounters reads the counters of a GPU instance. The error is gpu.ErrNotFound if there is no
// instance with this id, and gpu.ErrDriver if it has no compute instance.
func (n *Node) InstanceCounters(index int, id gpu.InstanceID) (Counters, error) {
	now, err := n.beginCall(index, gpu.ReadingActivity)
	if err != nil {
		return Counters{}, err
	}
	defer n.mu.Unlock()

	i := n.gpus[index].instance(id)
	if i == nil {
		return Counters{}, gpu.ErrNotFound
	}

	// DCGM skips such an instance. NVML answers with an error, but we do not know which.
	if len(i.ComputeInstances) == 0 {
		return Counters{}, fmt.Errorf(
			"%w: GPU instance %d has no compute instance",
			gpu.ErrDriver,
			id,
		)
	}

	entity := CountersOf{GPU: index, Instance: gpu.Some(id)}
	counted := n.gpus[index].counters[entity].plus(i.Activity, now.Sub(n.stateTime).Seconds())

	return Counters{
		Time: now, Of: entity, Odd: n.odd(index, now), Activity: counted,
		Engines: i.Profile.Engines.Or(gpu.Engines{}), PCIe: counted.PCIe,
	}, nil
}

// ComputeCounters reads the counters of a compute instance. DRAM is 0, because the memory belongs to
// the GPU instance. The error is gpu.ErrNotFound if there is no compute instance with these ids.
func (n *Node) ComputeCounters(index int, id gpu.InstanceID, ci gpu.ComputeID) (Counters, error) {
	now, err := n.beginCall(index, gpu.ReadingActivity)
	if err != nil {
		return Counters{}, err
	}
	defer n.mu.Unlock()

	_, c := n.gpus[index].compute(id, ci)
	if c == nil {
		return Counters{}, gpu.ErrNotFound
	}

	entity := CountersOf{GPU: index, Instance: gpu.Some(id), Compute: gpu.Some(ci)}
	counted := n.gpus[index].counters[entity].plus(c.Activity, now.Sub(n.stateTime).Seconds())
	counted.DRAM = 0

	return Counters{Time: now, Of: entity, Odd: n.odd(index, now), Activity: counted}, nil
}

// Odd is how a fault distorts counters.
type Odd int

// The ways in which counters can be distorted.
const (
	OddNot Odd = iota
	OddNaN
	OddAboveOne
)

// odd returns how the active faults distort a GPU's counters.
func (n *Node) odd(index int, now time.Time) Odd {
	odd := OddNot
	n.eachActiveFault(index, now, func(f *FaultSpec) {
		switch f.Kind {
		case FaultActivityNaN:
			odd = OddNaN
		case FaultActivityAbove:
			odd = max(odd, OddAboveOne)
		}
	})

	return odd
}

// plus returns the sum a after an activity has lasted for some seconds. The fields of a sum are
// seconds, or bytes for PCIe.
func (a Activity) plus(during Activity, seconds float64) Activity {
	a.Graphics += during.Graphics * seconds
	a.SM += during.SM * seconds
	a.Occupancy += during.Occupancy * seconds
	a.Tensor += during.Tensor * seconds
	a.FP64 += during.FP64 * seconds
	a.FP32 += during.FP32 * seconds
	a.FP16 += during.FP16 * seconds
	a.DRAM += during.DRAM * seconds
	a.PCIe += during.PCIe * seconds

	for kind := range a.Media {
		a.Media[kind] += during.Media[kind] * seconds
	}

	return a
}

// countInstances adds the activity of the running step, of which some seconds have passed, to the
// counters of the GPU's instances. The GPU's own counters are its totals.
func (g *simGPU) countInstances(seconds float64) {
	for _, i := range g.instances {
		entity := CountersOf{GPU: g.index, Instance: gpu.Some(i.ID)}
		g.counters[entity] = g.counters[entity].plus(i.Activity, seconds)

		for _, c := range i.ComputeInstances {
			entity.Compute = gpu.Some(c.ID)
			g.counters[entity] = g.counters[entity].plus(c.Activity, seconds)
		}
	}
}

// HasGPM reports whether the driver itself can profile a GPU (GPM), as from Hopper on.
func (n *Node) HasGPM(index int) bool { return n.gpus[index].model.arch != Ampere }
