package web

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// fixtureTime is when the fixture's Snapshot was made.
var fixtureTime = time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC)

// published is a Snapshots whose Snapshot a test sets.
type published struct {
	mu   sync.Mutex
	snap *gpu.Snapshot
	next chan struct{}
}

func publish(snap *gpu.Snapshot) *published { return &published{snap: snap, next: make(chan struct{})} }

func (p *published) Store(snap *gpu.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.snap = snap

	close(p.next)
	p.next = make(chan struct{})
}

func (p *published) Current() *gpu.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.snap
}

func (p *published) Next(after *gpu.Snapshot) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.snap != after {
		now := make(chan struct{})
		close(now)

		return now
	}

	return p.next
}

// judge returns how the node of the current Snapshot is.
func judge(snaps Snapshots) func() *health.Report {
	return func() *health.Report {
		tracker := health.New(0, fixtureTime)
		if s := snaps.Current(); s != nil {
			tracker.Observe(s)
		}

		return tracker.Report(fixtureTime)
	}
}

// nodeFixture is a node with one GPU of each kind that the page and the state tell apart.
func nodeFixture() *gpu.Snapshot {
	return &gpu.Snapshot{
		Generation: 42,
		Time:       fixtureTime,
		Hostname:   "dgx-a100",
		Driver:     gpu.Some(gpu.Driver{Version: "580.95.05", NVML: "13.580.95.05", CUDA: "13.0"}),
		Sources: []gpu.SourceState{
			{Name: gpu.SourceNVML, Up: true, LastSuccess: fixtureTime},
			{Name: gpu.SourceKubelet, Stale: true, LastSuccess: fixtureTime.Add(-40 * time.Second),
				Err: fmt.Errorf("list pod resources: %w", gpu.ErrUnavailable)},
		},
		GPUs: []gpu.GPU{wholeGPU(0), freeGPU(1), mixedGPU(2), splitGPU(3), downGPU(4), sharedGPU(5), pendingGPU(6),
			unprivilegedGPU(7)},
		Unmatched: []gpu.Assignment{unmatched("MIG-0b5a4ff2-54f4-5c7d-8f0e-9d3f0f5d5f4a", "etl-1")},
	}
}

// unmatched is an assignment whose device was destroyed.
func unmatched(id, pod string) gpu.Assignment {
	return gpu.Assignment{ID: id, Holder: gpu.Holder{
		Container: gpu.Container{Namespace: "batch", Pod: pod, Name: "main"}, Resource: "nvidia.com/mig-4g.20gb",
		Sharing: gpu.SharingExclusive,
	}}
}

// bareGPU is an A100-40GB that answers and says nothing but what it is.
func bareGPU(index int) gpu.GPU {
	return gpu.GPU{
		Facts: gpu.Facts{
			UUID:         gpu.UUID(fmt.Sprintf("GPU-5c1f6a2e-0000-4d1b-9f00-00000000000%d", index)),
			Index:        index,
			Minor:        gpu.Some(index),
			Name:         "NVIDIA A100-SXM4-40GB",
			Architecture: "ampere",
			PCIBusID:     fmt.Sprintf("00000000:%02X:00.0", 0x07+8*index),
			Serial:       fmt.Sprintf("156062001234%d", index),
			VBIOS:        "92.00.45.00.03",
			SMs:          gpu.Some(108),
		},
		Device:   gpu.Device{Up: true},
		Totals:   gpu.Totals{XIDs: gpu.Counter{Since: fixtureTime.Add(-time.Hour)}}, // none so far
		LastRead: fixtureTime.Add(-100 * time.Millisecond),
		MIG:      gpu.MIGState{Enabled: gpu.Some(false), Pending: gpu.Some(false), LayoutGeneration: 1},
		Readings: gpu.Readings{
			SlowReadings: gpu.SlowReadings{
				PowerLimitWatts: gpu.Some(400.0),
			},
			Memory:             memory(40*gib, 600*mib),
			PowerWatts:         gpu.Some(58.25),
			TemperatureCelsius: gpu.Some(33.0),
		},
	}
}

func memory(total, used uint64) gpu.Memory {
	return gpu.Memory{Total: gpu.Some(total), Used: gpu.Some(used), Free: gpu.Some(total - used)}
}

func holder(namespace, pod, resource string) []gpu.Holder {
	return []gpu.Holder{{
		Container: gpu.Container{Namespace: namespace, Pod: pod, Name: "main"},
		Workload:  "Deployment/" + pod,
		Resource:  resource,
		Sharing:   gpu.SharingExclusive,
	}}
}

// wholeGPU is held by one pod and gives every reading that there is.
func wholeGPU(index int) gpu.GPU {
	g := bareGPU(index)
	since := fixtureTime.Add(-time.Hour)
	g.Holders = holder("vision", "resnet-0", "nvidia.com/gpu")
	g.Holders[0].Labels = []gpu.Label{{Name: "team", Value: "perception"}}
	g.Allocated = gpu.Some(true)
	g.Power = gpu.PowerEstimate{IdleWatts: gpu.Some(52.0)}
	r := &g.Readings
	r.Memory = memory(40*gib, 31*gib)
	r.Memory.Reserved = gpu.Some(uint64(500 * mib))
	r.Utilization, r.MemoryCopy = gpu.Some(0.87), gpu.Some(0.0)
	r.PowerWatts, r.EnergyJoules = gpu.Some(318.5), gpu.Some(1234567.5)
	r.TemperatureCelsius, r.MemoryCelsius = gpu.Some(61.0), gpu.Some(72.0)
	r.ClockHertz = gpu.Clocks{SM: gpu.Some(1.41e9), Memory: gpu.Some(1.215e9), Graphics: gpu.Some(1.41e9),
		Video: gpu.Some(1.275e9)}
	r.PerformanceState = gpu.Some(0)
	r.Fans = []gpu.Fan{{Index: 0, Speed: 0.35}}
	r.Media = gpu.Media{Encoder: gpu.Some(0.0), Decoder: gpu.Some(0.4)}
	r.PCIe = gpu.PCIe{Replays: gpu.Some(uint64(3)), LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(4)}
	r.NVLink.Errors = []gpu.NVLinkErrors{{Kind: "replay", Count: 2}}
	r.ECC = []gpu.ECCCount{{Severity: "corrected", Lifetime: "volatile", Location: "device_memory", Count: 5}}
	r.RemappedRows = gpu.Some(gpu.RemappedRows{Correctable: 1, Pending: true})
	r.RecoveryAction = gpu.Some(gpu.RecoveryNone)
	r.ExclusiveComputeMode, r.PersistenceMode = gpu.Some(false), gpu.Some(true)
	r.Processes = gpu.Some([]gpu.Process{{PID: 4711}})
	g.ActivitySource, g.Activity = gpu.ActivityDCGM, busy(0.75)
	g.Activity.DRAM = gpu.Some(0.25)
	g.Rates = gpu.LinkRates{PCIeReceive: gpu.Some(1.5e9), PCIeTransmit: gpu.Some(0.0), NVLinkReceive: gpu.Some(2e10),
		NVLinkTransmit: gpu.Some(1e10)}
	g.Jobs = []string{"90210"}
	g.Totals = gpu.Totals{
		XIDs: gpu.Counter{Value: 2, Since: since},
		XIDErrors: []gpu.XIDCount{{XID: 31, Counter: gpu.Counter{Value: 2, Since: since},
			Last: fixtureTime.Add(-time.Minute)}},
		Unavailable:     gpu.Some(gpu.Counter{Value: 1, Since: since}),
		RecoveryActions: gpu.Some(gpu.Counter{Value: 2, Since: since}),
		ReadErrors: []gpu.ErrorCount{{Reading: gpu.ReadingPower, Reason: gpu.ReasonTimeout,
			Counter: gpu.Counter{Value: 1, Since: since}}},
		ClockEvents: []gpu.ReasonSeconds{{Reason: "sw_power_cap", Active: true,
			Seconds: gpu.Counter{Value: 12.5, Since: since}}},
		PCIeReceive:   gpu.Some(gpu.Counter{Value: 8e12, Since: since}),
		PCIeTransmit:  gpu.Some(gpu.Counter{Value: 2e12, Since: since}),
		NVLinkReceive: gpu.Some(gpu.Counter{Value: 9e12, Since: since}),
	}

	return g
}

// busy is the activity of a device that has no memory of its own.
func busy(sm float64) gpu.Activity {
	return gpu.Activity{
		GraphicsEngine: gpu.Some(0.9), SM: gpu.Some(sm), SMOccupancy: gpu.Some(sm / 2), Tensor: gpu.Some(sm / 4),
		FP64: gpu.Some(0.0), FP32: gpu.Some(0.125), FP16: gpu.Some(0.0625),
	}
}

func freeGPU(index int) gpu.GPU {
	g := bareGPU(index)
	g.Allocated = gpu.Some(false)
	g.Readings.Utilization = gpu.Some(0.0)
	g.Readings.Processes = gpu.Some([]gpu.Process{})

	return g
}

// migGPU has MIG on and the profiles of an A100-40GB.
func migGPU(index int, free, stranded int, available ...int) gpu.GPU {
	g := bareGPU(index)
	g.MIG.Enabled, g.MIG.Pending, g.MIG.LayoutGeneration = gpu.Some(true), gpu.Some(true), 3
	g.Totals.LayoutChanges = gpu.Counter{Value: 2}
	g.Allocated = gpu.Some(true)
	g.Power = gpu.PowerEstimate{Method: gpu.PowerByActivity, IdleWatts: gpu.Some(52.0), UnallocatedWatts: gpu.Some(14.5)}
	g.Profiles = a100Profiles()

	c := gpu.Capacity{
		Compute: gpu.SliceCount{Used: 7 - free, Free: free},
		Memory:  gpu.SliceCount{Used: 8 - free - stranded, Free: free, Stranded: stranded},
	}
	for i, p := range g.Profiles {
		c.Profiles = append(c.Profiles, gpu.ProfileCapacity{Name: p.Name, Max: p.MaxInstances, Available: available[i]})
	}

	g.Capacity = gpu.Some(c)

	return g
}

func a100Profiles() []gpu.Profile {
	at := func(size int, starts ...int) []gpu.Placement {
		var list []gpu.Placement
		for _, s := range starts {
			list = append(list, gpu.Placement{Start: s, Size: size})
		}

		return list
	}

	return []gpu.Profile{
		{ID: 19, Name: "1g.5gb", ComputeSlices: 1, MemorySlices: 1, SMs: 14, MemoryBytes: 4864 * mib, MaxInstances: 7,
			Placements: at(1, 0, 1, 2, 3, 4, 5, 6)},
		{ID: 14, Name: "2g.10gb", ComputeSlices: 2, MemorySlices: 2, SMs: 28, MemoryBytes: 9856 * mib, MaxInstances: 3,
			Placements: at(2, 0, 2, 4)},
		{ID: 9, Name: "3g.20gb", ComputeSlices: 3, MemorySlices: 4, SMs: 42, MemoryBytes: 19968 * mib, MaxInstances: 2,
			Placements: at(4, 0, 4)},
	}
}

// instance is a GPU instance with one compute instance that has all of it.
func instance(id gpu.InstanceID, profile string, slices, start, size int, used uint64,
	holders []gpu.Holder) gpu.GPUInstance {
	total := uint64(size) * 5 * gib

	return gpu.GPUInstance{
		ID: id, Generation: 2, Profile: profile,
		Placement:     gpu.Some(gpu.Placement{Start: start, Size: size}),
		ComputeSlices: gpu.Some(slices), MemorySlices: gpu.Some(size), SMs: gpu.Some(14 * slices),
		Device:   gpu.Device{Up: true, Allocated: gpu.Some(len(holders) > 0), Holders: holders},
		LastRead: fixtureTime.Add(-100 * time.Millisecond),
		Memory:   memory(total, used), Processes: gpu.Some(len(holders)),
		PowerWatts: gpu.Some(float64(20 * slices)), EnergyJoules: gpu.Some(gpu.Counter{Value: 4321.5}),
		ComputeInstances: []gpu.ComputeInstance{compute(id, 0, profile, 0, slices, holders)},
	}
}

func compute(gi gpu.InstanceID, id gpu.ComputeID, profile string, start, slices int,
	holders []gpu.Holder) gpu.ComputeInstance {
	return gpu.ComputeInstance{
		ID: id, Generation: 2, Profile: profile,
		UUID:          gpu.MIGUUID(fmt.Sprintf("MIG-6f7d2a10-0000-5e11-8a00-0000000%02d%03d", gi, id)),
		Placement:     gpu.Some(gpu.Placement{Start: start, Size: slices}),
		ComputeSlices: gpu.Some(slices), SMs: gpu.Some(14 * slices),
		Device:    gpu.Device{Up: true, Allocated: gpu.Some(len(holders) > 0), Holders: holders},
		Processes: gpu.Some(len(holders)),
	}
}

// mixedGPU has used, idle, free and stranded slices.
func mixedGPU(index int) gpu.GPU {
	g := migGPU(index, 2, 1, 1, 0, 0)
	g.Readings.Memory = memory(40*gib, 17*gib)
	g.Readings.PowerWatts, g.Power.UnallocatedWatts = gpu.Some(172.0), gpu.Some(72.0)
	g.Instances = []gpu.GPUInstance{
		instance(7, "1g.5gb", 1, 0, 1, 3*gib, holder("ml", "notebook-7d9c", "nvidia.com/mig-1g.5gb")),
		instance(5, "2g.10gb", 2, 2, 2, 20*mib, nil),
		instance(1, "2g.10gb", 2, 4, 2, 9*gib, holder("serving", "triton-llm-6c7f8d9b5-x2x4z", "nvidia.com/mig-2g.10gb")),
	}
	g.ActivitySource, g.ActivityRollup, g.Activity = gpu.ActivityGPM, true, gpu.Activity{SM: gpu.Some(0.3125),
		DRAM: gpu.Some(0.0)}
	g.Instances[0].Activity, g.Instances[0].Jobs = busy(1.0211), []string{"7", "8"}
	g.Instances[0].Activity.DRAM = gpu.Some(0.5)
	g.Instances[1].Activity = gpu.Activity{SM: gpu.Some(0.0)}

	return g
}

// splitGPU has a GPU instance that two pods share by compute instances, and one without any.
func splitGPU(index int) gpu.GPU {
	g := migGPU(index, 0, 0, 0, 0, 0)
	g.Readings.PowerWatts, g.Power.UnallocatedWatts = gpu.Some(240.0), gpu.Some(120.0)
	split := instance(2, "3g.20gb", 3, 0, 4, 15*gib, nil)
	split.Allocated = gpu.Some(true)
	split.ComputeInstances = []gpu.ComputeInstance{
		compute(2, 0, "1c.3g.20gb", 0, 1, holder("ml", "embed-0", "nvidia.com/mig-1c.3g.20gb")),
		compute(2, 1, "2c.3g.20gb", 1, 2, holder("ml", "train-0", "nvidia.com/mig-2c.3g.20gb")),
	}
	split.Activity, split.ComputeInstances[0].Activity = busy(0.5), busy(0.65)
	orphan := instance(1, "3g.20gb", 3, 4, 4, 5*mib, nil)
	orphan.ComputeInstances = nil
	g.Instances = []gpu.GPUInstance{split, orphan}

	return g
}

// downGPU has fallen off the bus; its readings are dropped.
func downGPU(index int) gpu.GPU {
	g := bareGPU(index)
	g.Up = false
	g.LastRead = fixtureTime.Add(-95 * time.Second)
	g.Readings = gpu.Readings{}
	g.Allocated = gpu.Some(true)
	g.Holders = holder("vision", `<script>alert("pod")</script>`, "nvidia.com/gpu")
	g.Errors = []gpu.ReadError{{Reading: gpu.ReadingDevice, Err: fmt.Errorf("get handle: %w", gpu.ErrLost)}}

	return g
}

// sharedGPU is time-sliced between two containers.
func sharedGPU(index int) gpu.GPU {
	g := bareGPU(index)
	g.Allocated = gpu.Some(true)
	g.Readings.Memory = memory(40*gib, 22*gib)
	g.Readings.Utilization = gpu.Some(0.412)

	for i, pod := range []string{"jupyter-anna", "jupyter-ben"} {
		c := gpu.Container{Namespace: "hub", Pod: pod, Name: "notebook"}
		g.Holders = append(g.Holders,
			gpu.Holder{Container: c, Resource: "nvidia.com/gpu.shared", Sharing: gpu.SharingTimeSlicing, Replica: fmt.Sprint(i)})
		g.Containers = append(g.Containers,
			gpu.ContainerUse{Container: c, Sharing: gpu.SharingTimeSlicing, MemoryUsed: gpu.Some(uint64(8+5*i) * gib)})
	}

	return g
}

// pendingGPU waits for a reset, and one of its readings fails.
func pendingGPU(index int) gpu.GPU {
	g := freeGPU(index)
	g.MIG.Pending = gpu.Some(true)
	g.Readings.RecoveryAction = gpu.Some(gpu.RecoveryReset)
	g.Errors = []gpu.ReadError{{Reading: gpu.ReadingRowRemap,
		Err: fmt.Errorf("get remapped rows: %w", gpu.ErrNoPermission)}}

	return g
}

// unprivilegedGPU is in MIG mode, read by a process that may not see placements.
func unprivilegedGPU(index int) gpu.GPU {
	g := bareGPU(index)
	g.MIG.Enabled, g.MIG.Pending = gpu.Some(true), gpu.Some(true)
	g.Readings.Memory = gpu.Memory{}
	g.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrNoPermission}}
	inst := instance(3, "3g.20gb", 3, 0, 4, 12*gib, nil)
	inst.Placement = gpu.None[gpu.Placement]()
	inst.Errors = []gpu.ReadError{{Reading: gpu.ReadingMemory, Err: errors.New("<b>unreadable</b>")}}
	g.Instances = []gpu.GPUInstance{inst}

	return g
}

// slicedNode is a node of eight GPUs in seven slices each, all of them held.
func slicedNode() *gpu.Snapshot {
	snap := nodeFixture()
	snap.GPUs = nil

	for i := range 8 {
		g := migGPU(i, 0, 1, 0, 0, 0)
		g.Readings = wholeGPU(i).Readings
		g.ActivitySource, g.Activity = gpu.ActivityGPM, busy(0.5)

		for n := range 7 {
			held := holder("search", fmt.Sprintf("embedder-%03d", 7*i+n), "nvidia.com/mig-1g.5gb")
			slice := instance(gpu.InstanceID(7+n), "1g.5gb", 1, n, 1, uint64(n+1)*300*mib, held)
			slice.Activity = busy(float64(n) / 10)
			slice.ComputeInstances[0].UUID = gpu.MIGUUID(fmt.Sprintf("MIG-%08x-6a0b-5c1d-8e2f-%012x", 0x9e3779b9*(7*i+n+1),
				0x5851f42d4c95*(7*i+n+1)))
			g.Instances = append(g.Instances, slice)
		}

		snap.GPUs = append(snap.GPUs, g)
	}

	return snap
}
