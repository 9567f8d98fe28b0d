package contract

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// The checks can fail: a driver that lies in one thing breaks the check that is there for it.

// liar is a GPU that lies in one thing.
type liar struct {
	nvmlsource.Device
	lie   string
	calls *uint64 // what counts backwards
}

type lyingLibrary struct {
	nvmlsource.Library
	lie   string
	calls uint64
}

func (l *lyingLibrary) DeviceGetHandleByIndex(index int) (nvmlsource.Device, nvml.Return) {
	if count, _ := l.DeviceGetCount(); l.lie == "no last GPU" && index >= count {
		index = 0
	}

	if l.lie == "one GPU twice" {
		index = 0
	}

	d, ret := l.Library.DeviceGetHandleByIndex(index)

	return liar{d, l.lie, &l.calls}, ret
}

func (l *lyingLibrary) SystemGetDriverVersion() (string, nvml.Return) {
	return lying(l.lie == "driver version", "R580", l.Library.SystemGetDriverVersion)
}

func (l *lyingLibrary) SystemGetCudaDriverVersion() (int, nvml.Return) {
	return lying(l.lie == "CUDA version", 13, l.Library.SystemGetCudaDriverVersion)
}

// lying answers with something else in place of a truth.
func lying[T any](lies bool, other T, truth func() (T, nvml.Return)) (T, nvml.Return) {
	v, ret := truth()

	if lies {
		return other, nvml.SUCCESS
	}

	return v, ret
}

func (l liar) GetUUID() (string, nvml.Return) {
	return lying(l.lie == "UUID", "GPU-1", l.Device.GetUUID)
}
func (l liar) GetName() (string, nvml.Return) { return lying(l.lie == "name", "", l.Device.GetName) }
func (l liar) GetMinorNumber() (int, nvml.Return) {
	return lying(l.lie == "minor", 0, l.Device.GetMinorNumber)
}
func (l liar) GetPowerUsage() (uint32, nvml.Return) {
	return lying(l.lie == "watts", 300, l.Device.GetPowerUsage)
}
func (l liar) GetTemperature() (int, nvml.Return) {
	return lying(l.lie == "kelvin", 310, l.Device.GetTemperature)
}
func (l liar) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return lying(l.lie == "P-state", 16, l.Device.GetPerformanceState)
}
func (l liar) GetFanSpeed(fan int) (uint32, nvml.Return) {
	return lying(l.lie == "no last fan", 30, func() (uint32, nvml.Return) { return l.Device.GetFanSpeed(fan) })
}
func (l liar) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	return lying(l.lie == "utilization", nvml.Utilization{Gpu: 50}, l.Device.GetUtilizationRates)
}
func (l liar) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return lying(l.lie == "architecture", nvml.DEVICE_ARCH_VOLTA, l.Device.GetArchitecture)
}
func (l liar) GetSerial() (string, nvml.Return) {
	s, ret := l.Device.GetSerial()
	if l.lie == "return code" {
		return "", nvml.ERROR_UNKNOWN
	}

	return s, ret
}

func (l liar) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	m, ret := l.Device.GetMemoryInfo()
	if l.lie == "memory" {
		m.Free += m.Total/2 + 1
		m.Used += m.Total / 2
	}

	return m, ret
}

func (l liar) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	pci, ret := l.Device.GetPciInfo()
	if l.lie == "PCI" {
		pci.Bus++
	}

	return pci, ret
}

func (l liar) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	mJ, ret := l.Device.GetTotalEnergyConsumption()
	switch l.lie {
	case "energy goes back":
		*l.calls++
		return 1_000_000 - *l.calls, ret
	case "energy in joules":
		return mJ / 1000, ret
	}

	return mJ, ret
}

func (l liar) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	ret := l.Device.GetFieldValues(values)
	if l.lie == "fields" && len(values) > 1 {
		values[1].NvmlReturn = uint32(nvml.SUCCESS)
	}

	return ret
}

func (l liar) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	list, ret := l.Device.GetComputeRunningProcesses()
	if l.lie == "process" && ret == nvml.SUCCESS {
		list = append(slices.Clone(list), nvml.ProcessInfo{Pid: 1, GpuInstanceId: 99, ComputeInstanceId: 0})
	}

	return list, ret
}

func (l liar) RegisterEvents(types uint64, set nvmlsource.EventSet) nvml.Return {
	if ret := l.Device.RegisterEvents(types, set); l.lie != "events" {
		return ret
	}

	return nvml.SUCCESS
}

func (l liar) GetMaxMigDeviceCount() (int, nvml.Return) {
	return lying(l.lie == "MIG mode" && !migOn(l.Device), 7, l.Device.GetMaxMigDeviceCount)
}

func (l liar) GetGpuInstanceProfileInfo(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	info, ret := l.Device.GetGpuInstanceProfileInfo(profile)
	if l.lie == "profile" {
		info.MemorySizeMB *= 10
	}

	return info, ret
}

func (l liar) GetGpuInstancePossiblePlacements(id uint32) ([]nvml.GpuInstancePlacement, nvml.Return) {
	places, ret := l.Device.GetGpuInstancePossiblePlacements(id)
	if l.lie == "placements" && len(places) > 0 {
		places = append(slices.Clone(places), places[0])
	}

	return places, ret
}

func (l liar) GetGpuInstances(id uint32, capacity int) ([]nvmlsource.GPUInstance, nvml.Return) {
	list, ret := l.Device.GetGpuInstances(id, capacity)
	if l.lie == "no GPU instances" {
		list = nil
	}

	for i := range list {
		list[i] = lyingInstance{list[i], l.lie}
	}

	return list, ret
}

func (l liar) GetMigDeviceHandleByIndex(index int) (nvmlsource.MIGDevice, nvml.Return) {
	m, ret := l.Device.GetMigDeviceHandleByIndex(index)
	if ret == nvml.SUCCESS {
		m = lyingMIG{m, l}
	}

	return m, ret
}

type lyingInstance struct {
	nvmlsource.GPUInstance
	lie string
}

func (l lyingInstance) GetInfo() (nvmlsource.GPUInstanceInfo, nvml.Return) {
	info, ret := l.GPUInstance.GetInfo()
	if l.lie == "overlap" {
		info.Placement.Start = 0
	}

	return info, ret
}

func (l lyingInstance) GetComputeInstances() ([]nvmlsource.ComputeInstanceInfo, nvml.Return) {
	list, ret := l.GPUInstance.GetComputeInstances()
	if l.lie == "compute placement" && len(list) > 0 {
		list[0].Placement.Start = 9
	}

	return list, ret
}

type lyingMIG struct {
	nvmlsource.MIGDevice
	of liar
}

func (m lyingMIG) GetName() (string, nvml.Return) {
	return lying(m.of.lie == "MIG name", "NVIDIA", m.MIGDevice.GetName)
}
func (m lyingMIG) GetUUID() (string, nvml.Return) {
	return lying(m.of.lie == "MIG UUID", "MIG-1", m.MIGDevice.GetUUID)
}
func (m lyingMIG) GetComputeInstanceId() (int, nvml.Return) {
	return lying(m.of.lie == "compute id", 5, m.MIGDevice.GetComputeInstanceId)
}
func (m lyingMIG) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	if m.of.lie == "MIG memory" {
		return m.of.Device.GetMemoryInfo() // the whole GPU's
	}

	return m.MIGDevice.GetMemoryInfo()
}
func (m lyingMIG) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	if m.of.lie == "MIG processes" {
		return m.of.Device.GetComputeRunningProcesses() // the whole GPU's
	}

	return m.MIGDevice.GetComputeRunningProcesses()
}
func (m lyingMIG) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	a, ret := m.MIGDevice.GetAttributes()
	if m.of.lie == "attributes" {
		a.GpuInstanceSliceCount++
	}

	return a, ret
}

func TestContractFindsLies(t *testing.T) {
	for lie, check := range map[string]string{
		"driver version": "Library.SystemGetDriverVersion", "CUDA version": "Library.SystemGetCudaDriverVersion",
		"one GPU twice": "Library.DeviceGetCount", "no last GPU": "Library.DeviceGetCount",
		"events": "Library.EventSetCreate",
		"UUID":   "Device.GetUUID", "name": "Device.GetName", "minor": "Device.GetMinorNumber", "PCI": "Device.GetPciInfo",
		"return code": "Device.GetSerial", "memory": "Device.GetMemoryInfo", "watts": "Device.GetPowerUsage",
		"P-state": "Device.GetPerformanceState", "no last fan": "Device.GetNumFans",
		"kelvin": "Device.GetTemperature", "utilization": "Device.GetUtilizationRates",
		"architecture":     "Device.GetArchitecture",
		"energy goes back": "Device.GetTotalEnergyConsumption", "energy in joules": "energy is power over time, mJ and mW",
		"fields": "Device.GetFieldValues", "process": "Device.GetComputeRunningProcesses",
		"MIG mode": "Device.GetMigMode", "profile": "Device.GetGpuInstanceProfileInfo",
		"placements": "Device.GetGpuInstancePossiblePlacements",
		"overlap":    "Device.GetGpuInstances", "compute placement": "GPUInstance.GetComputeInstances",
		"no GPU instances": "Device.GetMigDeviceHandleByIndex", "MIG UUID": "Device.GetMigDeviceHandleByIndex",
		"compute id": "Device.GetMigDeviceHandleByIndex", "MIG name": "MIGDevice.GetName",
		"MIG memory": "MIGDevice.GetMemoryInfo",
		"attributes": "MIGDevice.GetAttributes", "MIG processes": "MIGDevice.GetComputeRunningProcesses",
	} {
		t.Run(lie, func(t *testing.T) {
			s := simulated(t, scenarios+"dgx-a100-mixed.yaml", filepath.Join(t.TempDir(), "state"))
			s.lib = &lyingLibrary{Library: s.lib, lie: lie}
			table := slices.DeleteFunc(contractTable(), func(c checkOf) bool { return c.name != check })
			s.hold(table)

			if !slices.ContainsFunc(s.broken, func(b string) bool { return strings.HasPrefix(b, check+": ") }) {
				t.Errorf("%s does not find it out: %q", check, s.broken)
			}
		})
	}
}

// The checks of the source find out what only a source can get wrong: a driver whose GPUs change
// between two readings.
func TestContractFindsAChangingSource(t *testing.T) {
	for lie, check := range map[string]string{"UUID": "source: every GPU once",
		"energy goes back": "source: counters and units"} {
		s := simulated(t, scenarios+"dgx-a100-mixed.yaml", filepath.Join(t.TempDir(), "state"))
		open := s.open
		s.open = func() nvmlsource.Library { return &lyingLibrary{Library: open(), lie: lie} }
		s.hold(slices.DeleteFunc(contractTable(), func(c checkOf) bool { return c.name != check }))

		if len(s.broken) == 0 {
			t.Errorf("%s: %s does not find it out", lie, check)
		}
	}
}
