package sim

import (
	"fmt"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Counters are the profiling counters of one entity: its Activity added up over time, in seconds.
// The difference of two by the time between them is the mean activity. They never decrease: an
// instance that is created under the ids of a destroyed one continues its counters, so a window
// over a layout change is the mean over both.
type Counters struct {
	Time     time.Time
	Of       CountersOf
	Odd      Odd // what a fault makes of them
	Activity Activity
	// Engines are those that the device has of its own: a compute instance has none.
	Engines gpu.Engines
	// Traffic in each direction since the start of the node, in bytes; of a GPU, PCIe also of a GPU
	// instance.
	PCIe, NVLink float64
}

// MonitorGPU reads the counters of a whole GPU for a client of the driver. In MIG mode they show
// what runs in all instances, so they take root's rights, as the memory of the whole GPU does.
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

// GPUCounters reads those of a whole GPU, with root's rights.
func (n *Node) GPUCounters(index int) (Counters, error) {
	now, err := n.beginCall(index, gpu.ReadingActivity)
	if err != nil {
		return Counters{}, err
	}
	defer n.mu.Unlock()

	return n.countersOf(n.gpus[index], now), nil
}

func (n *Node) countersOf(g *simGPU, now time.Time) Counters {
	t := g.totals.after(g.sample, now.Sub(n.at).Seconds())

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

// InstanceCounters reads those of a GPU instance; gpu.ErrNotFound if there is none with this id,
// gpu.ErrDriver if it has no compute instance.
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

	// DCGM skips it. We do not know with which error NVML answers, but it does not answer 0.
	if len(i.ComputeInstances) == 0 {
		return Counters{}, fmt.Errorf(
			"%w: GPU instance %d has no compute instance",
			gpu.ErrDriver,
			id,
		)
	}

	of := CountersOf{GPU: index, Instance: gpu.Some(id)}
	counted := n.gpus[index].counters[of].plus(i.Activity, now.Sub(n.at).Seconds())

	return Counters{
		Time: now, Of: of, Odd: n.odd(index, now), Activity: counted,
		Engines: i.Profile.Engines.Or(gpu.Engines{}), PCIe: counted.PCIe,
	}, nil
}

// ComputeCounters reads those of a compute instance, without the memory's, which belongs to its GPU
// instance; gpu.ErrNotFound if there is none with these ids.
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

	of := CountersOf{GPU: index, Instance: gpu.Some(id), Compute: gpu.Some(ci)}
	counted := n.gpus[index].counters[of].plus(c.Activity, now.Sub(n.at).Seconds())
	counted.DRAM = 0

	return Counters{Time: now, Of: of, Odd: n.odd(index, now), Activity: counted}, nil
}

// Odd says what a fault makes of counters.
type Odd int

// The ways in which counters are odd.
const (
	OddNot Odd = iota
	OddNaN
	OddAboveOne
)

// odd is what the faults of the moment make of a GPU's counters.
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

// plus is the sum after an activity has lasted for some seconds.
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

// count adds to the counters of the GPU's instances what the running step comes to; those of the
// GPU are its totals.
func (g *simGPU) count(seconds float64) {
	for _, i := range g.instances {
		of := CountersOf{GPU: g.index, Instance: gpu.Some(i.ID)}
		g.counters[of] = g.counters[of].plus(i.Activity, seconds)

		for _, c := range i.ComputeInstances {
			of.Compute = gpu.Some(c.ID)
			g.counters[of] = g.counters[of].plus(c.Activity, seconds)
		}
	}
}

// HasGPM reports whether the driver itself profiles a GPU: Hopper and later.
func (n *Node) HasGPM(index int) bool { return n.gpus[index].model.arch != Ampere }
