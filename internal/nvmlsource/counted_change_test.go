package nvmlsource_test

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// What changes the partition is counted, too.

func (d countedDevice) mutable() nvmlsource.MutableDevice { return d.Device.(nvmlsource.MutableDevice) }

func (d countedDevice) CreateGpuInstanceWithPlacement(id uint32,
	at nvml.GpuInstancePlacement) (nvmlsource.MutableInstance, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceCreateGpuInstanceWithPlacement", id, at)
	i, ret := d.mutable().CreateGpuInstanceWithPlacement(id, at)

	return countedInstance{i, d.calls, fmt.Sprintf("GPU-instance %s/created", d.name)}, ret
}

func (i countedInstance) mutable() nvmlsource.MutableInstance {
	return i.GPUInstance.(nvmlsource.MutableInstance)
}

func (i countedInstance) GetComputeInstancesOf(id uint32, capacity int) ([]nvmlsource.ComputeInstance, nvml.Return) {
	i.calls.note(i.name, "nvmlGpuInstanceGetComputeInstances", id)

	list, ret := i.mutable().GetComputeInstancesOf(id, capacity)
	for k := range list {
		list[k] = countedCompute{list[k], i.calls, fmt.Sprintf("compute-instance %s/%d/%d", i.name, id, k)}
	}

	return list, ret
}

func (i countedInstance) CreateComputeInstanceWithPlacement(id uint32,
	at nvml.ComputeInstancePlacement) (nvmlsource.ComputeInstance, nvml.Return) {
	i.calls.note(i.name, "nvmlGpuInstanceCreateComputeInstanceWithPlacement", id, at)
	c, ret := i.mutable().CreateComputeInstanceWithPlacement(id, at)

	return countedCompute{c, i.calls, fmt.Sprintf("compute-instance %s/created", i.name)}, ret
}

type countedCompute struct {
	nvmlsource.ComputeInstance
	calls *calls
	name  string
}
