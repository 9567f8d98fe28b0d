package sim

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// GPUState is what the driver knows of one GPU at one moment. The caller owns it, but must not modify
// what its slices and pointers refer to. If the driver answers "not supported" for a value, on this
// GPU and in its present mode, the value is absent.
type GPUState struct {
	Time         time.Time
	Privileged   bool   // whether the caller has root's rights
	EventTypes   uint64 // for which clients can register (nvmlEventType*)
	Index, Minor int
	UUID         gpu.UUID
	Name         string
	Architecture Architecture
	Capability   [2]int // CUDA compute capability
	SMs, Cores   int
	Serial       string
	VBIOS        string
	PCI          PCI

	MIGEnabled, MIGPending bool
	MaxMIGDevices          int
	Profiles               []gpu.Profile
	Instances              []Instance // by placement
	// Devices are the MIG devices by handle index. The list is sparse: an index without device is
	// nil.
	Devices []*MIGDevice

	MemoryTotal, MemoryUsed, MemoryReserved uint64 // bytes; MemoryUsed leaves out MemoryReserved
	Activity                                Activity
	Utilization                             gpu.Opt[Utilization]
	Media                                   gpu.Opt[MediaUtilization]
	Watts, LimitWatts                       float64
	// ReportedWatts is absent if the driver reports no power in this mode: see gpuModel.noMIGPower.
	ReportedWatts              gpu.Opt[float64]
	Joules                     float64
	Celsius                    int
	MemoryCelsius              gpu.Opt[int]
	SMMHz, MemoryMHz, VideoMHz uint32
	MaxSMMHz                   uint32
	ClockEvents                gpu.ClockEvents
	// PowerViolation and ThermalViolation are how long the power limit and the temperature have
	// held clocks down.
	PowerViolation, ThermalViolation time.Duration
	PerformanceState                 int
	Fans                             []uint32 // speeds in percent
	PCIeBytes                        uint64   // since the start, in each direction
	PCIeRate                         float64  // now, in bytes per second and direction
	NVLinks                          int
	NVLinkBytes                      uint64 // since the start, in each direction
	ECC                              ECC
	Remapped                         gpu.Opt[gpu.RemappedRows]
	Recovery                         gpu.RecoveryAction
	ExclusiveProcess                 bool // compute mode
	PersistenceMode                  bool
	Processes                        []Process
}

// PCI is where a GPU is plugged in.
type PCI struct {
	Domain, Bus, Device uint32
	DeviceID, Subsystem uint32
	Generation, Width   int // of the link as it runs now: an idle one falls back to generation 1
	MaxGeneration       int
}

// Utilization is the utilization in percent that the driver reports.
type Utilization struct{ GPU, Memory uint32 }

// ECC counts memory errors: volatile counts since the driver was loaded, aggregate counts over the
// GPU's life.
type ECC struct {
	CorrectedVolatile, UncorrectedVolatile   uint64
	CorrectedAggregate, UncorrectedAggregate uint64
}

// Instance is a GPU instance.
type Instance struct {
	ID               gpu.InstanceID
	Profile          gpu.Profile
	Placement        gpu.Placement
	MemoryUsed       uint64 // bytes, in the running step
	Activity         Activity
	ComputeInstances []*Compute // by id
}

// Compute is a compute instance. Its placement is in compute slices of its GPU instance.
type Compute struct {
	ID        gpu.ComputeID
	UUID      gpu.MIGUUID
	Profile   string // "1c.3g.20gb", or "3g.20gb" if it has all slices of its GPU instance
	Placement gpu.Placement
	SMs       int
	Activity  Activity
}

// MIGDevice is a MIG device: the compute instance that its handle refers to.
type MIGDevice struct {
	Instance *Instance
	Compute  *Compute
}

// Process is one process on the GPU. Instance and Compute are present under MIG.
type Process struct {
	PID         uint32
	MemoryBytes uint64
	Instance    gpu.Opt[gpu.InstanceID]
	Compute     gpu.Opt[gpu.ComputeID]
	MPSClient   bool
	SMShare     float64 // the share of its device's SMs that it keeps busy, 0-1
	Speed       float64 // its throughput relative to that on a device large enough, 0-1
}
