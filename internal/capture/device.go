package capture

import (
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

// device is a physical GPU. There is one for each handle, so that handles of the same GPU are equal.
type device struct {
	*entity
	name gpuName
	lib  *library
	real nvmlsrc.Device // nil in a replay
	// Both are guarded by the tape's mu.
	migs      map[int]*entity
	instances map[slot]*entity
}

func newDevice(l *library, r gpuRecord) *device {
	d := &device{
		entity: newEntity(l.tape, r.answers), name: gpuName(r.name), lib: l,
		migs: map[int]*entity{}, instances: map[slot]*entity{},
	}
	for index, known := range r.devices {
		d.migs[index] = newEntity(l.tape, known)
	}
	for at, known := range r.instances {
		d.instances[at] = newEntity(l.tape, known)
	}
	return d
}

// record copies what the GPU has said. The caller holds the tape's mu.
func (d *device) record() gpuRecord {
	r := gpuRecord{name: string(d.name), answers: d.said(), devices: map[int]answers{}, instances: map[slot]answers{}}
	for index, e := range d.migs {
		r.devices[index] = e.said()
	}
	for at, e := range d.instances {
		r.instances[at] = e.said()
	}
	return r
}

// of asks a GPU.
func of[T any](d *device, question string, f func(nvmlsrc.Device) (T, nvml.Return)) (T, nvml.Return) {
	return put(d.entity, d.real, question, f)
}

func (d *device) GetUUID() (string, nvml.Return) {
	return of(d, "nvmlDeviceGetUUID", nvmlsrc.Device.GetUUID)
}

func (d *device) GetName() (string, nvml.Return) {
	return of(d, "nvmlDeviceGetName", nvmlsrc.Device.GetName)
}

func (d *device) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	return of(d, "nvmlDeviceGetMemoryInfo", nvmlsrc.Device.GetMemoryInfo)
}

func (d *device) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return of(d, "nvmlDeviceGetComputeRunningProcesses", nvmlsrc.Device.GetComputeRunningProcesses)
}

func (d *device) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return of(d, "nvmlDeviceGetArchitecture", nvmlsrc.Device.GetArchitecture)
}

func (d *device) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	c, ret := of(d, "nvmlDeviceGetCudaComputeCapability", func(h nvmlsrc.Device) (capability, nvml.Return) {
		major, minor, ret := h.GetCudaComputeCapability()
		return capability{major, minor}, ret
	})
	return c.Major, c.Minor, ret
}

func (d *device) GetNumGpuCores() (int, nvml.Return) {
	return of(d, "nvmlDeviceGetNumGpuCores", nvmlsrc.Device.GetNumGpuCores)
}

func (d *device) GetSerial() (string, nvml.Return) {
	return of(d, "nvmlDeviceGetSerial", nvmlsrc.Device.GetSerial)
}

func (d *device) GetVbiosVersion() (string, nvml.Return) {
	return of(d, "nvmlDeviceGetVbiosVersion", nvmlsrc.Device.GetVbiosVersion)
}

func (d *device) GetMinorNumber() (int, nvml.Return) {
	return of(d, "nvmlDeviceGetMinorNumber", nvmlsrc.Device.GetMinorNumber)
}

func (d *device) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return of(d, "nvmlDeviceGetPciInfo", nvmlsrc.Device.GetPciInfo)
}

func (d *device) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return of(d, "nvmlDeviceGetUtilizationRates", nvmlsrc.Device.GetUtilizationRates)
}

func (d *device) GetPowerUsage() (uint32, nvml.Return) {
	return of(d, "nvmlDeviceGetPowerUsage", nvmlsrc.Device.GetPowerUsage)
}

func (d *device) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return of(d, "nvmlDeviceGetEnforcedPowerLimit", nvmlsrc.Device.GetEnforcedPowerLimit)
}

func (d *device) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	return of(d, "nvmlDeviceGetTotalEnergyConsumption", nvmlsrc.Device.GetTotalEnergyConsumption)
}

func (d *device) GetTemperature() (int, nvml.Return) {
	return of(d, "nvmlDeviceGetTemperature", nvmlsrc.Device.GetTemperature)
}

func (d *device) GetClockInfo(domain nvml.ClockType) (uint32, nvml.Return) {
	question := "nvmlDeviceGetClockInfo(" + clockArg().name(uint64(domain)) + ")"
	return of(d, question, func(h nvmlsrc.Device) (uint32, nvml.Return) { return h.GetClockInfo(domain) })
}

func (d *device) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return of(d, "nvmlDeviceGetCurrentClocksEventReasons", nvmlsrc.Device.GetCurrentClocksEventReasons)
}

// GetFieldValues records the call and each field apart: which fields are asked for together varies. The times that the
// driver puts beside a value are left out, nothing reads them.
func (d *device) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	_, ret := of(d, "nvmlDeviceGetFieldValues", func(h nvmlsrc.Device) (none, nvml.Return) {
		return none{}, h.GetFieldValues(values)
	})
	if ret != nvml.SUCCESS {
		return ret
	}
	for i := range values {
		v := &values[i]
		said, ret := ask(d.entity, fieldQuestion(v.FieldId, v.ScopeId), func() (fieldValue, nvml.Return) {
			return fieldValue{v.ValueType, binary.NativeEndian.Uint64(v.Value[:])}, nvml.Return(int32(v.NvmlReturn))
		})
		v.NvmlReturn, v.ValueType = uint32(ret), said.kind
		binary.NativeEndian.PutUint64(v.Value[:], said.bits)
	}
	return nvml.SUCCESS
}

func (d *device) GetPcieReplayCounter() (int, nvml.Return) {
	return of(d, "nvmlDeviceGetPcieReplayCounter", nvmlsrc.Device.GetPcieReplayCounter)
}

func (d *device) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return of(d, "nvmlDeviceGetCurrPcieLinkWidth", nvmlsrc.Device.GetCurrPcieLinkWidth)
}

func (d *device) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return of(d, "nvmlDeviceGetCurrPcieLinkGeneration", nvmlsrc.Device.GetCurrPcieLinkGeneration)
}

func (d *device) GetMemoryErrorCounter(severity nvml.MemoryErrorType, lifetime nvml.EccCounterType,
	location nvml.MemoryLocation) (uint64, nvml.Return) {
	question := fmt.Sprintf("nvmlDeviceGetMemoryErrorCounter(%s, %s, %s)", severityArg().name(uint64(severity)),
		lifetimeArg().name(uint64(lifetime)), locationArg().name(uint64(location)))
	return of(d, question, func(h nvmlsrc.Device) (uint64, nvml.Return) {
		return h.GetMemoryErrorCounter(severity, lifetime, location)
	})
}

func (d *device) GetTotalEccErrors(severity nvml.MemoryErrorType, lifetime nvml.EccCounterType) (uint64, nvml.Return) {
	question := fmt.Sprintf("nvmlDeviceGetTotalEccErrors(%s, %s)", severityArg().name(uint64(severity)),
		lifetimeArg().name(uint64(lifetime)))
	return of(d, question, func(h nvmlsrc.Device) (uint64, nvml.Return) { return h.GetTotalEccErrors(severity, lifetime) })
}

func (d *device) GetRemappedRows() (correctable, uncorrectable int, pending, failure bool, ret nvml.Return) {
	r, ret := of(d, "nvmlDeviceGetRemappedRows", func(h nvmlsrc.Device) (remappedRows, nvml.Return) {
		correctable, uncorrectable, pending, failure, ret := h.GetRemappedRows()
		return remappedRows{correctable, uncorrectable, pending, failure}, ret
	})
	return r.Correctable, r.Uncorrectable, r.Pending, r.Failure, ret
}

func (d *device) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return of(d, "nvmlDeviceGetComputeMode", nvmlsrc.Device.GetComputeMode)
}

func (d *device) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return of(d, "nvmlDeviceGetGraphicsRunningProcesses", nvmlsrc.Device.GetGraphicsRunningProcesses)
}

func (d *device) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return of(d, "nvmlDeviceGetMPSComputeRunningProcesses", nvmlsrc.Device.GetMPSComputeRunningProcesses)
}
