package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Count is how many GPUs the driver knows, those that are lost included.
func (n *Node) Count() int { return len(n.gpus) }

// Driver answers for the driver as a whole: nil, ErrVersionMismatch, ErrNoDriver or ErrClosed.
func (n *Node) Driver() error {
	_, err := n.enterAny(driverAsWhole, gpu.ReadingDevice)
	if err == nil {
		n.mu.Unlock()
	}
	return err
}

// Read is one call to the driver about one GPU. It blocks if a fault makes it hang, and fails as a fault wants it to;
// reading decides which faults strike it.
func (n *Node) Read(index int, reading gpu.Reading) (GPUState, error) {
	now, err := n.beginCall(index, reading)
	if err != nil {
		return GPUState{}, err
	}
	defer n.mu.Unlock()
	return n.state(n.gpus[index], now), nil
}

// Remaining counts the GPU instances of a profile that could be made now, by the driver's id of it.
func (n *Node) Remaining(index int, profileID uint32) (int, error) {
	now, err := n.beginCall(index, gpu.ReadingMIG)
	if err != nil {
		return 0, err
	}
	defer n.mu.Unlock()
	if !n.privileged(index, now) {
		return 0, gpu.ErrNoPermission
	}
	b := n.gpus[index]
	for _, f := range b.mig.Profiles {
		if f.ID == profileID {
			return b.remaining(f), nil
		}
	}
	return 0, gpu.ErrInvalidArgument
}

// state is called with the lock held.
func (n *Node) state(b *simGPU, now time.Time) GPUState {
	t := b.totals.after(b.sample, now.Sub(n.at).Seconds())
	s := GPUState{
		Time:             now,
		Privileged:       n.privileged(b.index, now),
		Index:            b.index,
		Minor:            b.minor,
		UUID:             b.uuid,
		Name:             b.model.name,
		Architecture:     b.model.arch,
		Capability:       b.model.capability,
		SMs:              b.model.sms,
		Cores:            b.model.sms * b.model.coresPerSM,
		Serial:           fmt.Sprintf("1%012d", b.noise%1_000_000_000_000),
		VBIOS:            b.model.vbios,
		PCI:              b.pci(),
		MIGEnabled:       b.migOn,
		MIGPending:       b.migPending,
		MemoryTotal:      b.model.memoryMiB << 20,
		MemoryUsed:       b.sample.memoryUsed,
		MemoryReserved:   b.model.reservedMiB << 20,
		Activity:         b.sample.activity,
		Watts:            b.sample.watts,
		LimitWatts:       b.model.limitWatts,
		Joules:           t.joules,
		Celsius:          int(math.Round(b.sample.temperature)),
		SMMHz:            b.sample.smMHz,
		MemoryMHz:        b.model.memoryMHz,
		VideoMHz:         b.sample.smMHz * 9 / 10,
		MaxSMMHz:         b.model.maxSMMHz,
		ClockEvents:      b.sample.reasons,
		PerformanceState: b.performanceState(),
		Fans:             b.fans(),
		PCIeBytes:        uint64(t.pcie),
		PCIeRate:         b.sample.pcie,
		NVLinks:          b.model.nvlinks,
		NVLinkBytes:      uint64(t.nvlink),
		ECC:              b.errors.ecc,
		Recovery:         n.recovery(b.index, now),
		ExclusiveProcess: b.mps != 0,
		Processes:        b.processes(),
	}
	if b.migOn {
		s.MaxMIGDevices = b.mig.ComputeSlices
	} else {
		s.Utilization = gpu.Some(Utilization{GPU: percent(b.sample.activity.Graphics),
			Memory: percent(b.sample.activity.DRAM)})
		s.Media = gpu.Some(b.sample.activity.Media.percents())
	}
	if b.model.memoryTemp {
		s.MemoryCelsius = gpu.Some(s.Celsius + 4)
	}
	if len(b.instances) == 0 {
		s.Remapped = gpu.Some(b.errors.remapped)
	}
	b.describeTree(&s)
	return s
}

func percent(ratio float64) uint32 { return uint32(math.Round(100 * ratio)) }

func (b *simGPU) pci() PCI {
	domain, bus := pciBus(b.index, b.model.arch)
	p := PCI{
		Domain: domain, Bus: bus,
		DeviceID: b.model.pciDevice, Subsystem: b.model.pciSubsys,
		Generation: b.model.pcieGen, Width: 16, MaxGeneration: b.model.pcieGen,
	}
	if len(b.tasks) == 0 {
		p.Generation = 1
	}
	return p
}

// describeTree fills in profiles, instances and MIG devices. It runs with every call to the driver, so with few
// allocations.
func (b *simGPU) describeTree(s *GPUState) {
	s.Profiles = b.mig.Profiles
	count := 0
	for _, i := range b.instances {
		count += len(i.ComputeInstances)
	}
	s.Instances = make([]Instance, len(b.instances))
	copies := make([]struct {
		compute Compute
		device  MIGDevice
	}, count)
	computes := make([]*Compute, 0, count)
	s.Devices = make([]*MIGDevice, len(b.devices))
	for k, i := range b.instances {
		d := &s.Instances[k]
		*d = *i
		first := len(computes)
		for _, c := range i.ComputeInstances {
			own := &copies[len(computes)]
			own.compute = *c
			computes = append(computes, &own.compute)
			if at := slices.Index(b.devices, c); at >= 0 {
				own.device = MIGDevice{Instance: d, Compute: &own.compute}
				s.Devices[at] = &own.device
			}
		}
		d.ComputeInstances = computes[first:len(computes):len(computes)]
	}
}

// processes lists what runs on the GPU: the MPS server first, then by start.
func (b *simGPU) processes() []Process {
	list := make([]Process, 0, 1+len(b.tasks))
	if b.mps != 0 {
		list = append(list, Process{PID: b.mps, MemoryBytes: mpsServerMemory, Speed: 1})
	}
	for _, t := range b.tasks {
		p := Process{PID: t.proc.pid, MemoryBytes: t.memory, Speed: t.speed, MPSClient: b.mps != 0 && t.proc.pod != ""}
		p.SMShare = t.sms / float64(t.on.sms())
		if t.on.compute != nil {
			p.Instance = gpu.Some(t.on.instance.ID)
			p.Compute = gpu.Some(t.on.compute.ID)
		}
		list = append(list, p)
	}
	return list
}

// Instance finds a GPU instance by its id.
func (s *GPUState) Instance(id gpu.InstanceID) (*Instance, bool) {
	for k := range s.Instances {
		if s.Instances[k].ID == id {
			return &s.Instances[k], true
		}
	}
	return nil, false
}

// Compute finds a compute instance by its id.
func (i *Instance) Compute(id gpu.ComputeID) (*Compute, bool) {
	for _, c := range i.ComputeInstances {
		if c.ID == id {
			return c, true
		}
	}
	return nil, false
}

// Device finds a MIG device by the ids of its instances.
func (s *GPUState) Device(id gpu.InstanceID, ci gpu.ComputeID) (*MIGDevice, bool) {
	for _, d := range s.Devices {
		if d != nil && d.Instance.ID == id && d.Compute.ID == ci {
			return d, true
		}
	}
	return nil, false
}
