package sim

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// fabricLinks is how many NVLinks a GPU has that is connected to NVSwitches, from Hopper on.
const fabricLinks = 18

// Fabric returns the GPU's registration in the NVLink fabric: completed on GPUs of HGX systems,
// whose fabric is one node without a cluster.
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

// HasVolatileECC reports whether the driver has the errors since it was loaded. With MIG on they
// could be read of an H200 and of its MIG devices, by a capture with driver 590.48.01; of GPUs
// before Hopper that is unknown.
func (s *GPUState) HasVolatileECC() bool { return !s.MIGEnabled || s.Architecture != Ampere }

// CountsByLink reports whether the driver counts bytes and errors of NVLink for each link alone, as
// from NVLink 5 on (nvml.h, fields 201 to 225; DCGM adds them up over the links). What a driver
// answers about the older totals there is unknown: here they are not supported.
func (s *GPUState) CountsByLink() bool { return s.Architecture == Blackwell && s.NVLinks > 0 }
