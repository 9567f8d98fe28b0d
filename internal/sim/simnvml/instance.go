package simnvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// migDevice is the handle of a MIG device. Once its compute instance is destroyed, calls return
// INVALID_ARGUMENT. If a device is created with the same ids, the handle refers to that: drivers
// reuse handles.
type migDevice struct {
	gpu      *gpuHandle
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

// readDevice makes one call to the driver about a MIG device.
func readDevice[T any](m *migDevice, reading gpu.Reading,
	value func(s *sim.GPUState, at *sim.MIGDevice) T) (T, nvml.Return) {
	return read(m.gpu, reading, func(s *sim.GPUState) (T, nvml.Return) {
		at, ok := s.Device(m.instance, m.compute)
		if !ok {
			var zero T
			return zero, nvml.ERROR_INVALID_ARGUMENT
		}

		return value(s, at), nvml.SUCCESS
	})
}

func (m *migDevice) GetUUID() (string, nvml.Return) {
	return readDevice(m, gpu.ReadingMIG, func(_ *sim.GPUState, at *sim.MIGDevice) string {
		return string(at.Compute.UUID)
	})
}

func (m *migDevice) GetName() (string, nvml.Return) {
	return readDevice(m, gpu.ReadingMIG, func(s *sim.GPUState, at *sim.MIGDevice) string {
		return s.Name + " MIG " + at.Compute.Profile
	})
}

func (m *migDevice) GetGpuInstanceId() (int, nvml.Return) {
	return readDevice(
		m,
		gpu.ReadingMIG,
		func(_ *sim.GPUState, at *sim.MIGDevice) int { return int(at.Instance.ID) },
	)
}

func (m *migDevice) GetComputeInstanceId() (int, nvml.Return) {
	return readDevice(
		m,
		gpu.ReadingMIG,
		func(_ *sim.GPUState, at *sim.MIGDevice) int { return int(at.Compute.ID) },
	)
}

// GetMemoryInfo returns the memory of the GPU instance, which its compute instances share.
func (m *migDevice) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	return readDevice(
		m,
		gpu.ReadingMemory,
		func(_ *sim.GPUState, at *sim.MIGDevice) nvml.Memory_v2 {
			total := at.Instance.Profile.MemoryBytes

			info := nvml.Memory_v2{
				Total: total,
				Used:  at.Instance.MemoryUsed,
				Free:  total - at.Instance.MemoryUsed,
			}
			if m.gpu.branch() >= 510 {
				info.Version = nvml.STRUCT_VERSION(info, 2)
			}

			return info
		},
	)
}

// GetComputeRunningProcesses lists the device's own processes. That does not need root's rights.
func (m *migDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return readDevice(
		m,
		gpu.ReadingProcesses,
		func(s *sim.GPUState, _ *sim.MIGDevice) []nvml.ProcessInfo {
			return processInfos(s.Processes, func(p sim.Process) bool {
				return p.Instance == gpu.Some(m.instance) && p.Compute == gpu.Some(m.compute)
			})
		},
	)
}

func (m *migDevice) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	return readDevice(
		m,
		gpu.ReadingMIG,
		func(_ *sim.GPUState, at *sim.MIGDevice) nvml.DeviceAttributes {
			engines := at.Instance.Profile.Engines.Or(gpu.Engines{})

			return nvml.DeviceAttributes{
				MultiprocessorCount:       uint32(at.Compute.SMs),
				SharedCopyEngineCount:     uint32(engines.Copy),
				SharedDecoderCount:        uint32(engines.Decoder),
				SharedEncoderCount:        uint32(engines.Encoder),
				SharedJpegCount:           uint32(engines.JPEG),
				SharedOfaCount:            uint32(engines.OFA),
				GpuInstanceSliceCount:     uint32(at.Instance.Profile.ComputeSlices),
				ComputeInstanceSliceCount: uint32(at.Compute.Placement.Size),
				MemorySizeMB:              at.Instance.Profile.MemoryBytes >> 20,
			}
		},
	)
}

// gpuInstance is the handle of a GPU instance. Once that is destroyed, calls return NOT_FOUND.
type gpuInstance struct {
	gpu *gpuHandle
	id  gpu.InstanceID
}

// readInstance makes one call to the driver about a GPU instance, which needs root's rights.
func readInstance[T any](g *gpuInstance, value func(i *sim.Instance) T) (T, nvml.Return) {
	return read(g.gpu, gpu.ReadingMIG, func(s *sim.GPUState) (T, nvml.Return) {
		var zero T
		if !s.Privileged {
			return zero, nvml.ERROR_NO_PERMISSION
		}

		i, ok := s.Instance(g.id)
		if !ok {
			return zero, nvml.ERROR_NOT_FOUND
		}

		return value(i), nvml.SUCCESS
	})
}

func (g *gpuInstance) GetInfo() (nvmlsource.GPUInstanceInfo, nvml.Return) {
	return readInstance(g, func(i *sim.Instance) nvmlsource.GPUInstanceInfo {
		return nvmlsource.GPUInstanceInfo{
			ID:        uint32(i.ID),
			ProfileID: i.Profile.ID,
			Placement: placement(i.Placement),
		}
	})
}

// GetComputeInstances counts the calls that the real binding makes for it: the info of every compute
// profile, a list for each profile that the GPU instance has, and the info of each compute instance.
func (g *gpuInstance) GetComputeInstances() ([]nvmlsource.ComputeInstanceInfo, nvml.Return) {
	for profile := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT + 1 {
		g.gpu.node.BeginCall("nvmlGpuInstanceGetComputeInstanceProfileInfo")

		_, ret := g.GetComputeInstanceProfileInfo(profile)
		if ret == nvml.SUCCESS && profile > 0 { // ObserveCalls counts the first
			g.gpu.node.BeginCall("nvmlGpuInstanceGetComputeInstances")
		}
	}

	return readInstance(g, func(i *sim.Instance) []nvmlsource.ComputeInstanceInfo {
		var list []nvmlsource.ComputeInstanceInfo

		for _, c := range i.ComputeInstances {
			g.gpu.node.BeginCall("nvmlComputeInstanceGetInfo")
			list = append(list, computeInfo(c))
		}

		return list
	})
}

func computeInfo(c *sim.Compute) nvmlsource.ComputeInstanceInfo {
	id, _ := sim.ComputeProfileID(c.Placement.Size)

	return nvmlsource.ComputeInstanceInfo{
		ID:        uint32(c.ID),
		ProfileID: id,
		Placement: nvml.ComputeInstancePlacement{
			Start: uint32(c.Placement.Start),
			Size:  uint32(c.Placement.Size),
		},
	}
}
