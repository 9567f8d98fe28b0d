package capture

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// device is a physical GPU. Each handle of the driver has one, so that handles of the same GPU are equal.
type device struct {
	entity
	name   gpuName
	lib    *library
	driver nvmlsource.Device // nil in a replay
	record *gpuRecord        // guarded by the timeline's mu
}

// migDevice is a MIG device handle.
type migDevice struct {
	entity
	driver nvmlsource.MIGDevice // nil in a replay
}

// gpuInstance is a GPU instance handle.
type gpuInstance struct {
	entity
	driver nvmlsource.GPUInstance // nil in a replay
}

// GetFieldValues records the call and each field separately: which fields are read together varies. The timestamps of
// the values are not recorded, since they are not used.
func (d *device) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	const function = "nvmlDeviceGetFieldValues"

	ret := queryCode(
		d.entity,
		function,
		func() nvml.Return { return d.driver.GetFieldValues(values) },
	)
	if ret != nvml.SUCCESS {
		return ret
	}

	for i := range values {
		v := &values[i]

		// The scope is one link, or all of them.
		scope := numbers.name(uint64(v.ScopeId))
		call := callOf(function, fieldNames.name(uint64(v.FieldId)), scope)

		answer, ret := query(d.entity, call, func() (fieldValue, nvml.Return) {
			return fieldValue{v.ValueType, v.Value}, nvml.Return(int32(v.NvmlReturn))
		})
		v.NvmlReturn = uint32(ret)
		v.ValueType = answer.kind
		v.Value = answer.bytes
	}

	return nvml.SUCCESS
}

// GetProcessUtilization is recorded without lastSeen: a replay is called for the samples of the same polls.
func (d *device) GetProcessUtilization(
	lastSeen uint64,
) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return query(
		d.entity,
		"nvmlDeviceGetProcessUtilization",
		func() ([]nvml.ProcessUtilizationSample, nvml.Return) {
			return d.driver.GetProcessUtilization(lastSeen)
		},
	)
}

// GetMigDeviceHandleByIndex returns a handle whose calls are recorded by its index. After a repartition they are
// those of another MIG device.
func (d *device) GetMigDeviceHandleByIndex(index int) (nvmlsource.MIGDevice, nvml.Return) {
	m := migDevice{}

	ret := queryCode(
		d.entity,
		callOf("nvmlDeviceGetMigDeviceHandleByIndex", numbers.name(uint64(index))),
		func() (ret nvml.Return) {
			m.driver, ret = d.driver.GetMigDeviceHandleByIndex(index)
			return ret
		},
	)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	m.entity = entityIn(d.time, d.record.MIGDevices, index)

	return m, ret
}

// GetGpuInstances records how many there are; the calls of each are recorded by profile and position.
func (d *device) GetGpuInstances(
	profileID uint32,
	capacity int,
) ([]nvmlsource.GPUInstance, nvml.Return) {
	var handles []nvmlsource.GPUInstance
	call := callOf("nvmlDeviceGetGpuInstances", numbers.name(uint64(profileID)))

	count, ret := query(d.entity, call, func() (handleCount, nvml.Return) {
		var ret nvml.Return
		handles, ret = d.driver.GetGpuInstances(profileID, capacity)

		return handleCount(len(handles)), ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	list := make([]nvmlsource.GPUInstance, 0, count)
	for i := range int(count) {
		g := gpuInstance{entity: entityIn(d.time, d.record.GPUInstances, slotOf(profileID, i))}
		if i < len(handles) {
			g.driver = handles[i]
		}

		list = append(list, g)
	}

	return list, ret
}
