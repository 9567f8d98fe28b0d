package nvmlsrc_test

import (
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

// calls notes every call that a Source makes, the event queue's own excepted: of which entity, and with which arguments.
type calls struct {
	mu   sync.Mutex
	made map[call]int
}

// call is one function of NVML with its arguments, asked of one entity. The part of an entity's name before the first
// space is its kind.
type call struct{ entity, function, arguments string }

func (c *calls) note(entity, function string, arguments ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := call{entity: entity, function: function}
	if len(arguments) > 0 {
		made.arguments = fmt.Sprint(arguments...)
	}
	c.made[made]++
}

// taken returns the calls since the last time.
func (c *calls) taken() map[call]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.made
	c.made = map[call]int{}
	return made
}

// countedLibrary is a Library whose calls, and those of everything that it gives out, are noted.
type countedLibrary struct {
	nvmlsrc.Library
	*calls
}

const ofNode = "node"

func (l countedLibrary) Init() nvml.Return {
	l.note(ofNode, "nvmlInit")
	return l.Library.Init()
}

func (l countedLibrary) SystemGetDriverVersion() (string, nvml.Return) {
	l.note(ofNode, "nvmlSystemGetDriverVersion")
	return l.Library.SystemGetDriverVersion()
}

func (l countedLibrary) SystemGetNVMLVersion() (string, nvml.Return) {
	l.note(ofNode, "nvmlSystemGetNVMLVersion")
	return l.Library.SystemGetNVMLVersion()
}

func (l countedLibrary) SystemGetCudaDriverVersion() (int, nvml.Return) {
	l.note(ofNode, "nvmlSystemGetCudaDriverVersion")
	return l.Library.SystemGetCudaDriverVersion()
}

func (l countedLibrary) DeviceGetCount() (int, nvml.Return) {
	l.note(ofNode, "nvmlDeviceGetCount")
	return l.Library.DeviceGetCount()
}

func (l countedLibrary) DeviceGetHandleByIndex(index int) (nvmlsrc.Device, nvml.Return) {
	l.note(ofNode, "nvmlDeviceGetHandleByIndex", index)
	d, ret := l.Library.DeviceGetHandleByIndex(index)
	return countedDevice{d, l.calls, fmt.Sprintf("GPU %d", index)}, ret
}

type countedDevice struct {
	nvmlsrc.Device
	calls *calls
	name  string
}

func (d countedDevice) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetCudaComputeCapability")
	return d.Device.GetCudaComputeCapability()
}

func (d countedDevice) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	d.calls.note(d.name, "nvmlDeviceGetFieldValues")
	return d.Device.GetFieldValues(values)
}

func (d countedDevice) GetRemappedRows() (correctable, uncorrectable int, pending, failure bool, ret nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetRemappedRows")
	return d.Device.GetRemappedRows()
}

func (d countedDevice) GetMigMode() (current, pending int, ret nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetMigMode")
	return d.Device.GetMigMode()
}

func (d countedDevice) GetMigDeviceHandleByIndex(index int) (nvmlsrc.MIGDevice, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetMigDeviceHandleByIndex", index)
	m, ret := d.Device.GetMigDeviceHandleByIndex(index)
	return countedMIG{m, d.calls, fmt.Sprintf("MIG-device %s/%d", d.name, index)}, ret
}

func (d countedDevice) GetGpuInstances(profileID uint32, capacity int) ([]nvmlsrc.GPUInstance, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetGpuInstances", profileID)
	list, ret := d.Device.GetGpuInstances(profileID, capacity)
	for i := range list {
		list[i] = countedInstance{list[i], d.calls, fmt.Sprintf("GPU-instance %s/%d/%d", d.name, profileID, i)}
	}
	return list, ret
}

type countedInstance struct {
	nvmlsrc.GPUInstance
	calls *calls
	name  string
}

func (i countedInstance) GetInfo() (nvmlsrc.GPUInstanceInfo, nvml.Return) {
	i.calls.note(i.name, "nvmlGpuInstanceGetInfo")
	return i.GPUInstance.GetInfo()
}

func (i countedInstance) GetComputeInstances() ([]nvmlsrc.ComputeInstanceInfo, nvml.Return) {
	i.calls.note(i.name, "nvmlGpuInstanceGetComputeInstances")
	return i.GPUInstance.GetComputeInstances()
}

type countedMIG struct {
	nvmlsrc.MIGDevice
	calls *calls
	name  string
}

func (d countedDevice) GetUUID() (string, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetUUID")
	return d.Device.GetUUID()
}

func (d countedDevice) GetName() (string, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetName")
	return d.Device.GetName()
}

func (d countedDevice) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetMemoryInfo")
	return d.Device.GetMemoryInfo()
}

func (d countedDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetComputeRunningProcesses")
	return d.Device.GetComputeRunningProcesses()
}

func (d countedDevice) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetArchitecture")
	return d.Device.GetArchitecture()
}

func (d countedDevice) GetNumGpuCores() (int, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetNumGpuCores")
	return d.Device.GetNumGpuCores()
}

func (d countedDevice) GetSerial() (string, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetSerial")
	return d.Device.GetSerial()
}

func (d countedDevice) GetVbiosVersion() (string, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetVbiosVersion")
	return d.Device.GetVbiosVersion()
}

func (d countedDevice) GetMinorNumber() (int, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetMinorNumber")
	return d.Device.GetMinorNumber()
}

func (d countedDevice) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetPciInfo")
	return d.Device.GetPciInfo()
}

func (d countedDevice) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetUtilizationRates")
	return d.Device.GetUtilizationRates()
}

func (d countedDevice) GetPowerUsage() (uint32, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetPowerUsage")
	return d.Device.GetPowerUsage()
}

func (d countedDevice) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetEnforcedPowerLimit")
	return d.Device.GetEnforcedPowerLimit()
}

func (d countedDevice) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetTotalEnergyConsumption")
	return d.Device.GetTotalEnergyConsumption()
}

func (d countedDevice) GetTemperature() (int, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetTemperature")
	return d.Device.GetTemperature()
}

func (d countedDevice) GetClockInfo(clock nvml.ClockType) (uint32, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetClockInfo", clock)
	return d.Device.GetClockInfo(clock)
}

func (d countedDevice) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetCurrentClocksEventReasons")
	return d.Device.GetCurrentClocksEventReasons()
}

func (d countedDevice) GetPcieReplayCounter() (int, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetPcieReplayCounter")
	return d.Device.GetPcieReplayCounter()
}

func (d countedDevice) GetCurrPcieLinkWidth() (int, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetCurrPcieLinkWidth")
	return d.Device.GetCurrPcieLinkWidth()
}

func (d countedDevice) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetCurrPcieLinkGeneration")
	return d.Device.GetCurrPcieLinkGeneration()
}

func (d countedDevice) GetMemoryErrorCounter(severity nvml.MemoryErrorType, lifetime nvml.EccCounterType, location nvml.MemoryLocation) (uint64, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetMemoryErrorCounter", severity, lifetime, location)
	return d.Device.GetMemoryErrorCounter(severity, lifetime, location)
}

func (d countedDevice) GetTotalEccErrors(severity nvml.MemoryErrorType, lifetime nvml.EccCounterType) (uint64, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetTotalEccErrors", severity, lifetime)
	return d.Device.GetTotalEccErrors(severity, lifetime)
}

func (d countedDevice) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetComputeMode")
	return d.Device.GetComputeMode()
}

func (d countedDevice) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetGraphicsRunningProcesses")
	return d.Device.GetGraphicsRunningProcesses()
}

func (d countedDevice) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetMPSComputeRunningProcesses")
	return d.Device.GetMPSComputeRunningProcesses()
}

func (d countedDevice) GetMaxMigDeviceCount() (int, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetMaxMigDeviceCount")
	return d.Device.GetMaxMigDeviceCount()
}

func (d countedDevice) GetGpuInstanceProfileInfo(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetGpuInstanceProfileInfo", profile)
	return d.Device.GetGpuInstanceProfileInfo(profile)
}

func (d countedDevice) GetGpuInstancePossiblePlacements(profileID uint32) ([]nvml.GpuInstancePlacement, nvml.Return) {
	d.calls.note(d.name, "nvmlDeviceGetGpuInstancePossiblePlacements", profileID)
	return d.Device.GetGpuInstancePossiblePlacements(profileID)
}

func (m countedMIG) GetUUID() (string, nvml.Return) {
	m.calls.note(m.name, "nvmlDeviceGetUUID")
	return m.MIGDevice.GetUUID()
}

func (m countedMIG) GetName() (string, nvml.Return) {
	m.calls.note(m.name, "nvmlDeviceGetName")
	return m.MIGDevice.GetName()
}

func (m countedMIG) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	m.calls.note(m.name, "nvmlDeviceGetMemoryInfo")
	return m.MIGDevice.GetMemoryInfo()
}

func (m countedMIG) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	m.calls.note(m.name, "nvmlDeviceGetComputeRunningProcesses")
	return m.MIGDevice.GetComputeRunningProcesses()
}

func (m countedMIG) GetGpuInstanceId() (int, nvml.Return) {
	m.calls.note(m.name, "nvmlDeviceGetGpuInstanceId")
	return m.MIGDevice.GetGpuInstanceId()
}

func (m countedMIG) GetComputeInstanceId() (int, nvml.Return) {
	m.calls.note(m.name, "nvmlDeviceGetComputeInstanceId")
	return m.MIGDevice.GetComputeInstanceId()
}

func (m countedMIG) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	m.calls.note(m.name, "nvmlDeviceGetAttributes")
	return m.MIGDevice.GetAttributes()
}
