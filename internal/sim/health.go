package sim

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// fabricLinks is how many NVLinks a GPU from Hopper on has if it is connected to NVSwitches.
const fabricLinks = 18

// Fabric returns the GPU's registration in the NVLink fabric. It is completed for GPUs of HGX
// systems, whose fabric is the one node; other GPUs have none.
func (s *GPUState) Fabric() gpu.Opt[gpu.Fabric] {
	if s.Architecture == Ampere || s.NVLinks != fabricLinks {
		return gpu.None[gpu.Fabric]()
	}

	return gpu.Some(
		gpu.Fabric{
			State:  gpu.FabricCompleted,
			Status: gpu.Some(uint32(0)),
			Health: gpu.FabricHealthy,
		},
	)
}

// HasVolatileECC reports whether the driver answers how many ECC errors there were since it was
// loaded. With MIG on an H200 does (a capture with driver 590.48.01). Whether GPUs before Hopper do
// is unknown: here they do not.
func (s *GPUState) HasVolatileECC() bool { return !s.MIGEnabled || s.Architecture != Ampere }

// CountsByLink reports whether the driver counts bytes and errors of NVLink only for each link, as
// it does from NVLink 5 on (nvml.h, fields 201 to 225; DCGM adds up the links). What a driver answers
// about the older totals then is unknown: here they are not supported.
func (s *GPUState) CountsByLink() bool { return s.Architecture == Blackwell && s.NVLinks > 0 }
