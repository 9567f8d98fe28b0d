package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Count returns the number of GPUs that the driver knows, including lost ones.
func (n *Node) Count() int { return len(n.gpus) }

// Driver returns the error of the driver as a whole: nil, ErrVersionMismatch, ErrNoDriver or
// ErrClosed.
func (n *Node) Driver() error {
	_, err := n.beginAnyCall(noSingleGPU, gpu.ReadingDevice)
	if err == nil {
		n.mu.Unlock()
	}

	return err
}

// Read makes one driver call about one GPU and returns its state. A fault can make it hang or fail;
// reading decides which faults affect it.
func (n *Node) Read(index int, reading gpu.Reading) (GPUState, error) {
	now, err := n.beginCall(index, reading)
	if err != nil {
		return GPUState{}, err
	}
	defer n.mu.Unlock()

	return n.state(n.gpus[index], now), nil
}

// Remaining returns how many more GPU instances of the profile whose id in the driver is profileID
// can be created.
func (n *Node) Remaining(index int, profileID uint32) (int, error) {
	now, err := n.beginCall(index, gpu.ReadingMIG)
	if err != nil {
		return 0, err
	}
	defer n.mu.Unlock()

	if !n.privileged(index, now) {
		return 0, gpu.ErrNoPermission
	}

	g := n.gpus[index]
	for _, f := range g.mig.Profiles {
		if f.ID == profileID {
			return g.remaining(f), nil
		}
	}

	return 0, gpu.ErrInvalidArgument
}

// state returns a GPU's state for a driver call. The caller holds n.mu.
func (n *Node) state(g *simGPU, now time.Time) GPUState {
	// Most of the state stays the same for all calls of a step.
	if g.described == nil {
		g.described = n.describe(g)
	}

	s := *g.described
	t := g.totals.after(g.sample, now.Sub(n.stateTime).Seconds())
	s.Time = now
	s.Joules = t.joules
	s.PowerViolation = durationOf(t.powerCapped)
	s.ThermalViolation = durationOf(t.thermal)
	s.PCIeBytes = uint64(t.pcie)
	s.NVLinkBytes = uint64(t.nvlink)

	s.Privileged = n.privileged(g.index, now)
	s.Recovery = n.recovery(g.index, now)

	return s
}

// forgetDescriptions drops the cached states. Every change of a GPU must call it, with n.mu held.
func (n *Node) forgetDescriptions() {
	for _, g := range n.gpus {
		g.described = nil
	}
}

// describe returns the part of a GPU's state that stays the same until the step ends.
func (n *Node) describe(g *simGPU) *GPUState {
	s := &GPUState{
		EventTypes:       n.EventTypes(),
		Index:            g.index,
		Minor:            g.minor,
		UUID:             g.uuid,
		Name:             g.model.name,
		Architecture:     g.model.arch,
		Capability:       g.model.capability,
		SMs:              g.model.sms,
		Cores:            g.model.sms * g.model.coresPerSM,
		Serial:           fmt.Sprintf("1%012d", g.noiseKey%1_000_000_000_000),
		VBIOS:            g.model.vbios,
		PCI:              g.pci(),
		MIGEnabled:       g.migOn,
		MIGPending:       g.migPending,
		MemoryTotal:      g.model.memoryMiB << 20,
		MemoryUsed:       g.sample.memoryUsed,
		MemoryReserved:   g.model.reservedMiB << 20,
		Activity:         g.sample.activity,
		Watts:            g.sample.watts,
		LimitWatts:       g.model.limitWatts,
		Celsius:          int(math.Round(g.sample.temperature)),
		SMMHz:            g.sample.smMHz,
		MemoryMHz:        g.model.memoryMHz,
		VideoMHz:         g.sample.smMHz * 9 / 10,
		MaxSMMHz:         g.model.maxSMMHz,
		ClockEvents:      g.sample.reasons,
		PerformanceState: g.performanceState(),
		Fans:             g.fanSpeeds(),
		PCIeRate:         g.sample.pcie,
		NVLinks:          g.model.nvlinks,
		ECC:              g.errors.ecc,
		ExclusiveProcess: g.mps != 0,
		PersistenceMode:  n.scenario.Node.PersistenceMode,
		ReportedWatts:    g.reportedWatts(),
		Processes:        n.listedProcesses(g),
	}
	g.describeModes(s)
	g.describeTree(s)

	return s
}

// describeModes sets the fields that depend on the MIG mode and on the model.
func (g *simGPU) describeModes(s *GPUState) {
	if g.migOn {
		s.MaxMIGDevices = g.mig.ComputeSlices
	} else {
		s.Utilization = gpu.Some(
			Utilization{GPU: percent(s.Activity.Graphics), Memory: percent(s.Activity.DRAM)},
		)
		s.Media = gpu.Some(s.Activity.Media.percents())
	}

	if !g.model.noMemoryTemp {
		s.MemoryCelsius = gpu.Some(s.Celsius + 4) // memory is a little hotter than the GPU (our choice)
	}

	if len(g.instances) == 0 {
		s.Remapped = gpu.Some(g.errors.remapped)
	}
}

// reportedWatts returns the power that the driver reports.
func (g *simGPU) reportedWatts() gpu.Opt[float64] {
	if g.migOn && g.model.noMIGPower {
		return gpu.None[float64]()
	}

	return gpu.Some(g.sample.watts)
}

func durationOf(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds * float64(time.Second)))
}

func percent(ratio float64) uint32 { return uint32(math.Round(100 * ratio)) }

func (g *simGPU) pci() PCI {
	domain, bus := pciBus(g.index, g.model.arch)

	p := PCI{
		Domain: domain, Bus: bus,
		DeviceID: g.model.pciDevice, Subsystem: g.model.pciSubsys,
		Generation: g.model.pcieGen, Width: 16, MaxGeneration: g.model.pcieGen,
	}
	if len(g.tasks) == 0 {
		p.Generation = 1 // an idle link saves power
	}

	return p
}

// describeTree sets profiles, instances and MIG devices. It copies instances and devices, because
// they can change later.
func (g *simGPU) describeTree(s *GPUState) {
	s.Profiles = g.mig.Profiles
	s.Instances = make([]Instance, len(g.instances))
	s.Devices = make([]*MIGDevice, len(g.devices))

	// This runs in each step, so we put all copies into one slice.
	count := 0
	for _, inst := range g.instances {
		count += len(inst.ComputeInstances)
	}

	copies := make([]struct {
		compute Compute
		device  MIGDevice
	}, count)
	computeInstances := make([]*Compute, 0, count)

	for i, inst := range g.instances {
		instance := &s.Instances[i]
		*instance = *inst
		first := len(computeInstances)

		for _, c := range inst.ComputeInstances {
			own := &copies[len(computeInstances)]
			own.compute = *c
			computeInstances = append(computeInstances, &own.compute)

			if at := slices.Index(g.devices, c); at >= 0 {
				own.device = MIGDevice{Instance: instance, Compute: &own.compute}
				s.Devices[at] = &own.device
			}
		}

		instance.ComputeInstances = computeInstances[first:len(computeInstances):len(computeInstances)]
	}
}

// listedProcesses returns the processes of a GPU that the driver lists to its callers: none if the
// callers run in a container's PID namespace, because no process of a simulated node is in that.
//
// The real driver translates ids into the PID namespace of its caller, unless that is the initial
// one. Its lists leave out processes that have no id there, without an error
// (open-gpu-kernel-modules 595.45.04, src/nvidia/src/kernel/gpu/gpu_rmapi.c 810-972, _gpuConvertPid;
// kernel-open/nvidia/os-interface.c, os_find_ns_pid). Samples of process utilization have the host's
// ids in the kernel's answer (subdeviceCtrlCmdPerfGetGpumonPerfmonUtilSamplesV2_KERNEL). We do not
// know whether libnvidia-ml, which is closed, passes those on: here it drops them.
func (n *Node) listedProcesses(g *simGPU) []Process {
	if n.scenario.Node.PIDNamespace == PIDNamespaceContainer {
		return nil
	}

	return g.processes()
}

// processes returns the processes on the GPU: the MPS server first, then the others by their start.
func (g *simGPU) processes() []Process {
	list := make([]Process, 0, 1+len(g.tasks))
	if g.mps != 0 {
		list = append(list, Process{PID: g.mps, MemoryBytes: mpsServerMemory, Speed: 1})
	}

	for _, t := range g.tasks {
		p := Process{
			PID:         t.proc.pid,
			MemoryBytes: t.memory,
			Speed:       t.speed,
			MPSClient:   g.mps != 0 && t.proc.podName != "",
		}

		p.SMShare = t.sms / float64(t.on.sms())
		if t.on.compute != nil {
			p.Instance = gpu.Some(t.on.instance.ID)
			p.Compute = gpu.Some(t.on.compute.ID)
		}

		list = append(list, p)
	}

	return list
}

// Instance returns the GPU instance with an id.
func (s *GPUState) Instance(id gpu.InstanceID) (*Instance, bool) {
	for i := range s.Instances {
		if s.Instances[i].ID == id {
			return &s.Instances[i], true
		}
	}

	return nil, false
}

// Compute returns the compute instance with an id.
func (i *Instance) Compute(id gpu.ComputeID) (*Compute, bool) {
	for _, c := range i.ComputeInstances {
		if c.ID == id {
			return c, true
		}
	}

	return nil, false
}

// Device returns the MIG device with the ids of its instances.
func (s *GPUState) Device(id gpu.InstanceID, ci gpu.ComputeID) (*MIGDevice, bool) {
	for _, d := range s.Devices {
		if d != nil && d.Instance.ID == id && d.Compute.ID == ci {
			return d, true
		}
	}

	return nil, false
}
