package capture

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

func (d *device) GetMigMode() (current, pending int, ret nvml.Return) {
	m, ret := of(d, "nvmlDeviceGetMigMode", func(h nvmlsrc.Device) (migMode, nvml.Return) {
		current, pending, ret := h.GetMigMode()
		return migMode{current, pending}, ret
	})
	return m.Current, m.Pending, ret
}

func (d *device) GetMaxMigDeviceCount() (int, nvml.Return) {
	return of(d, "nvmlDeviceGetMaxMigDeviceCount", nvmlsrc.Device.GetMaxMigDeviceCount)
}

// GetMigDeviceHandleByIndex: what is asked of the handle stands under its index. After a re-cut another device answers
// there.
func (d *device) GetMigDeviceHandleByIndex(index int) (nvmlsrc.MIGDevice, nvml.Return) {
	m := migDevice{}
	_, ret := of(d, fmt.Sprintf("nvmlDeviceGetMigDeviceHandleByIndex(%d)", index), func(h nvmlsrc.Device) (none, nvml.Return) {
		var ret nvml.Return
		m.real, ret = h.GetMigDeviceHandleByIndex(index)
		return none{}, ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	m.entity = entityAt(d.tape, d.migs, index)
	return m, ret
}

// entityAt returns the entity of a place, a new one where there is none yet.
func entityAt[K comparable](t *tape, all map[K]*entity, at K) *entity {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all[at] == nil {
		all[at] = newEntity(t, nil)
	}
	return all[at]
}

func (d *device) GetGpuInstanceProfileInfo(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	question := fmt.Sprintf("nvmlDeviceGetGpuInstanceProfileInfo(%d)", profile)
	return of(d, question, func(h nvmlsrc.Device) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
		return h.GetGpuInstanceProfileInfo(profile)
	})
}

func (d *device) GetGpuInstancePossiblePlacements(profileID uint32) ([]nvml.GpuInstancePlacement, nvml.Return) {
	question := fmt.Sprintf("nvmlDeviceGetGpuInstancePossiblePlacements(%d)", profileID)
	return of(d, question, func(h nvmlsrc.Device) ([]nvml.GpuInstancePlacement, nvml.Return) {
		return h.GetGpuInstancePossiblePlacements(profileID)
	})
}

// GetGpuInstances: the answer is how many there are; what is asked of them stands under profile and position.
func (d *device) GetGpuInstances(profileID uint32, capacity int) ([]nvmlsrc.GPUInstance, nvml.Return) {
	var handles []nvmlsrc.GPUInstance
	count, ret := of(d, fmt.Sprintf("nvmlDeviceGetGpuInstances(%d)", profileID), func(h nvmlsrc.Device) (count, nvml.Return) {
		var ret nvml.Return
		handles, ret = h.GetGpuInstances(profileID, capacity)
		return count(len(handles)), ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	list := make([]nvmlsrc.GPUInstance, 0, count)
	for i := range int(count) {
		g := gpuInstance{entity: entityAt(d.tape, d.instances, slot{profileID, i})}
		if i < len(handles) {
			g.real = handles[i]
		}
		list = append(list, g)
	}
	return list, ret
}

// migDevice is a MIG device handle.
type migDevice struct {
	*entity
	real nvmlsrc.MIGDevice // nil in a replay
}

func (m migDevice) GetUUID() (string, nvml.Return) {
	return put(m.entity, m.real, "nvmlDeviceGetUUID", nvmlsrc.MIGDevice.GetUUID)
}

func (m migDevice) GetName() (string, nvml.Return) {
	return put(m.entity, m.real, "nvmlDeviceGetName", nvmlsrc.MIGDevice.GetName)
}

func (m migDevice) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	return put(m.entity, m.real, "nvmlDeviceGetMemoryInfo", nvmlsrc.MIGDevice.GetMemoryInfo)
}

func (m migDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return put(m.entity, m.real, "nvmlDeviceGetComputeRunningProcesses", nvmlsrc.MIGDevice.GetComputeRunningProcesses)
}

func (m migDevice) GetGpuInstanceId() (int, nvml.Return) {
	return put(m.entity, m.real, "nvmlDeviceGetGpuInstanceId", nvmlsrc.MIGDevice.GetGpuInstanceId)
}

func (m migDevice) GetComputeInstanceId() (int, nvml.Return) {
	return put(m.entity, m.real, "nvmlDeviceGetComputeInstanceId", nvmlsrc.MIGDevice.GetComputeInstanceId)
}

func (m migDevice) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	return put(m.entity, m.real, "nvmlDeviceGetAttributes", nvmlsrc.MIGDevice.GetAttributes)
}

// gpuInstance is a GPU instance handle.
type gpuInstance struct {
	*entity
	real nvmlsrc.GPUInstance // nil in a replay
}

func (g gpuInstance) GetInfo() (nvmlsrc.GPUInstanceInfo, nvml.Return) {
	return put(g.entity, g.real, "nvmlGpuInstanceGetInfo", nvmlsrc.GPUInstance.GetInfo)
}

func (g gpuInstance) GetComputeInstances() ([]nvmlsrc.ComputeInstanceInfo, nvml.Return) {
	return put(g.entity, g.real, "nvmlGpuInstanceGetComputeInstances", nvmlsrc.GPUInstance.GetComputeInstances)
}
