package contract

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// deviceChecks are those of what a GPU is.
func deviceChecks() []checkOf {
	return []checkOf{
		{name: "Device.GetUUID", check: checkUUIDs},
		{name: "Device.GetName", check: each(func(s *subject, d nvmlsource.Device) {
			name, ret := d.GetName()
			if s.must("Device.GetName", ret) {
				s.want(printable(name) && !strings.Contains(name, " MIG "), "name %q", name)
			}
		})},
		{name: "Device.GetArchitecture", methods: []string{"Device.GetCudaComputeCapability"},
			check: each(checkArchitecture)},
		{name: "Device.GetNumGpuCores", check: each(func(s *subject, d nvmlsource.Device) {
			if cores, ret := d.GetNumGpuCores(); s.has("Device.GetNumGpuCores", ret) {
				s.want(cores > 0 && cores%64 == 0 && cores < 100_000, "%d cores", cores)
			}
		})},
		{name: "Device.GetSerial", check: each(func(s *subject, d nvmlsource.Device) {
			if serial, ret := d.GetSerial(); s.has("Device.GetSerial", ret) {
				s.want(printable(serial), "serial %q", serial)
			}
		})},
		{name: "Device.GetVbiosVersion", check: each(func(s *subject, d nvmlsource.Device) {
			if version, ret := d.GetVbiosVersion(); s.has("Device.GetVbiosVersion", ret) {
				s.want(regexp.MustCompile(`^[0-9A-F]{2}(\.[0-9A-F]{2}){4}$`).MatchString(version), "VBIOS %q", version)
			}
		})},
		{name: "Device.GetMinorNumber", check: checkMinors},
		{name: "Device.GetPciInfo", check: checkPCI},
	}
}

// readingChecks are those of what a GPU reads at a moment.
func readingChecks() []checkOf {
	return []checkOf{
		{name: "Device.GetMemoryInfo", check: each(checkMemory)},
		{name: "Device.GetUtilizationRates", check: each(func(s *subject, d nvmlsource.Device) {
			if u, ret := d.GetUtilizationRates(); s.has("Device.GetUtilizationRates", ret) {
				s.want(u.Gpu <= 100 && u.Memory <= 100, "utilization %+v", u)
				s.want(!migOn(d), "utilization of a GPU with MIG") // nvml.h
			}
		})},
		{name: "Device.GetPowerUsage", check: each(func(s *subject, d nvmlsource.Device) {
			if mW, ret := d.GetPowerUsage(); s.has("Device.GetPowerUsage", ret) {
				s.want(mW >= 3_000 && mW <= 3_000_000, "%d mW", mW)
			}
		})},
		{name: "Device.GetEnforcedPowerLimit", check: each(func(s *subject, d nvmlsource.Device) {
			if mW, ret := d.GetEnforcedPowerLimit(); s.has("Device.GetEnforcedPowerLimit", ret) {
				s.want(mW >= 20_000 && mW <= 3_000_000, "%d mW", mW)
			}
		})},
		{name: "Device.GetTemperature", check: each(func(s *subject, d nvmlsource.Device) {
			if celsius, ret := d.GetTemperature(); s.has("Device.GetTemperature", ret) {
				s.want(celsius > 0 && celsius < 125, "%d C", celsius)
			}
		})},
		{name: "Device.GetTemperatureThreshold", check: each(checkThresholds)},
		{name: "Device.GetMarginTemperature", check: each(checkMargin)},
		{name: "Device.GetGpuFabricInfoV", check: each(checkFabric)},
		{name: "Device.GetClockInfo", check: each(checkClocks)},
		{name: "Device.GetCurrentClocksEventReasons", check: each(checkClockEvents)},
		{name: "Device.GetPerformanceState", check: each(func(s *subject, d nvmlsource.Device) {
			if state, ret := d.GetPerformanceState(); s.has("Device.GetPerformanceState", ret) {
				s.want(state >= nvml.PSTATE_0 && state <= nvml.PSTATE_15 || state == nvml.PSTATE_UNKNOWN, "performance state %d",
					state)
			}
		})},
		{name: "Device.GetNumFans", methods: []string{"Device.GetFanSpeed"}, check: each(checkFans)},
		{name: "Device.GetCurrPcieLinkWidth", check: each(func(s *subject, d nvmlsource.Device) {
			if width, ret := d.GetCurrPcieLinkWidth(); s.has("Device.GetCurrPcieLinkWidth", ret) {
				s.want(width > 0 && width <= 32, "%d lanes", width)
			}
		})},
		{name: "Device.GetCurrPcieLinkGeneration", check: each(func(s *subject, d nvmlsource.Device) {
			if generation, ret := d.GetCurrPcieLinkGeneration(); s.has("Device.GetCurrPcieLinkGeneration", ret) {
				s.want(generation > 0 && generation < 8, "generation %d", generation)
			}
		})},
		{name: "Device.GetPersistenceMode", check: each(checkPersistenceMode)},
		{name: "Device.GetComputeMode", check: each(checkComputeMode)},
		{
			name:    "Device.GetComputeRunningProcesses",
			methods: []string{"Device.GetGraphicsRunningProcesses", "Device.GetMPSComputeRunningProcesses"},
			check:   each(checkProcesses),
		},
	}
}

func checkClockEvents(s *subject, d nvmlsource.Device) {
	if reasons, ret := d.GetCurrentClocksEventReasons(); s.has("Device.GetCurrentClocksEventReasons", ret) {
		s.want(reasons < 1<<16, "reasons %x", reasons)
	}
}

func checkMargin(s *subject, d nvmlsource.Device) {
	if margin, ret := d.GetMarginTemperature(); s.has("Device.GetMarginTemperature", ret) {
		s.want(margin > -60 && margin < 150, "%d C below the limit", margin)
	}
}

func checkFabric(s *subject, d nvmlsource.Device) {
	if info, ret := d.GetGpuFabricInfoV(); s.has("Device.GetGpuFabricInfoV", ret) {
		s.want(info.State <= nvml.GPU_FABRIC_STATE_COMPLETED &&
			info.HealthSummary <= nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY, "fabric %+v", info)
	}
}

func checkPersistenceMode(s *subject, d nvmlsource.Device) {
	if mode, ret := d.GetPersistenceMode(); s.has("Device.GetPersistenceMode", ret) {
		s.want(mode == nvml.FEATURE_DISABLED || mode == nvml.FEATURE_ENABLED, "persistence mode %d", mode)
	}
}

func checkComputeMode(s *subject, d nvmlsource.Device) {
	if mode, ret := d.GetComputeMode(); s.has("Device.GetComputeMode", ret) {
		s.want(mode >= 0 && mode < nvml.COMPUTEMODE_COUNT, "compute mode %d", mode)
	}
}

// checkFans: a speed may be above 100 % (nvml.h). A fan that there is not has none.
func checkFans(s *subject, d nvmlsource.Device) {
	count, ret := d.GetNumFans()
	if !s.has("Device.GetNumFans", ret) {
		count = 0
	}

	s.want(count >= 0 && count < 16, "%d fans", count)

	for i := range count {
		if percent, ret := d.GetFanSpeed(i); s.has("Device.GetFanSpeed", ret) {
			s.want(percent <= 200, "fan %d at %d %%", i, percent)
		}
	}

	_, ret = d.GetFanSpeed(count)
	s.refused("a fan that there is not", ret)
}

func printable(text string) bool {
	return text != "" && len(text) < 96 && strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// migOn reports whether a GPU's MIG mode is on.
func migOn(d nvmlsource.Device) bool {
	now, _, ret := d.GetMigMode()
	return ret == nvml.SUCCESS && now == nvml.DEVICE_MIG_ENABLE
}

func checkUUIDs(s *subject) {
	seen := map[string]bool{}

	for _, d := range s.devices() {
		uuid, ret := d.GetUUID()
		if !s.must("Device.GetUUID", ret) {
			continue
		}

		if _, err := gpu.ParseUUID(uuid); err != nil {
			s.errorf("%v", err)
		}

		again, _ := d.GetUUID()
		s.want(again == uuid && !seen[uuid], "%s, then %s; or of two GPUs", uuid, again)
		seen[uuid] = true
	}
}

func checkArchitecture(s *subject, d nvmlsource.Device) {
	major, minor, ret := d.GetCudaComputeCapability()
	if !s.has("Device.GetCudaComputeCapability", ret) {
		return
	}

	s.want(major >= 3 && major < 20 && minor >= 0 && minor < 10, "compute capability %d.%d", major, minor)

	architecture, ret := d.GetArchitecture()
	if !s.has("Device.GetArchitecture", ret) {
		return
	}

	known := map[nvml.DeviceArchitecture][2]int{
		nvml.DEVICE_ARCH_VOLTA: {7, 7}, nvml.DEVICE_ARCH_TURING: {7, 7}, nvml.DEVICE_ARCH_AMPERE: {8, 8},
		nvml.DEVICE_ARCH_ADA:    {8, 8},
		nvml.DEVICE_ARCH_HOPPER: {9, 9}, nvml.DEVICE_ARCH_BLACKWELL: {10, 12},
	}
	if majors, ok := known[architecture]; ok {
		s.want(major >= majors[0] && major <= majors[1], "architecture %d with compute capability %d.%d", architecture,
			major, minor)
	}
}

func checkMinors(s *subject) {
	seen := map[int]bool{}

	for _, d := range s.devices() {
		if minor, ret := d.GetMinorNumber(); s.has("Device.GetMinorNumber", ret) {
			s.want(minor >= 0 && minor < 256 && !seen[minor], "minor %d, or of two GPUs", minor)
			seen[minor] = true
		}
	}
}

// checkPCI: both forms of the id say what the numbers say.
func checkPCI(s *subject) {
	seen := map[string]bool{}

	for _, d := range s.devices() {
		pci, ret := d.GetPciInfo()
		if !s.must("Device.GetPciInfo", ret) {
			continue
		}

		s.want(pci.PciDeviceId&0xFFFF == 0x10DE, "PCI vendor of %x is not NVIDIA", pci.PciDeviceId)
		place := fmt.Sprintf("%02X:%02X.0", pci.Bus, pci.Device)
		legacy := text(pci.BusIdLegacy[:])
		long := text(pci.BusId[:])
		s.want(strings.EqualFold(legacy, fmt.Sprintf("%04X:%s", pci.Domain, place)), "legacy id %q of %s", legacy, place)
		s.want(long == "" || strings.EqualFold(long, fmt.Sprintf("%08X:%s", pci.Domain, place)), "id %q of %s", long, place)
		s.want(!seen[legacy], "%s is of two GPUs", legacy)
		seen[legacy] = true
	}
}

// checkMemory: only the aggregate of a GPU with MIG needs rights (nvml.h).
func checkMemory(s *subject, d nvmlsource.Device) {
	m, ret := d.GetMemoryInfo()
	if s.has("Device.GetMemoryInfo", ret) {
		s.want(m.Total >= 1<<30 && m.Total < 1<<40 && fits(m), "memory %+v", m)
		return
	}

	s.want(migOn(d) || ret != nvml.ERROR_NO_PERMISSION, "no right to see the memory of a GPU without MIG")
}

// fits reports whether the parts of a memory add up to no more than it has.
func fits(m nvml.Memory_v2) bool {
	return m.Used <= m.Total && m.Free <= m.Total && m.Reserved <= m.Total && m.Used+m.Free+m.Reserved <= m.Total
}

func checkClocks(s *subject, d nvmlsource.Device) {
	for _, domain := range []nvml.ClockType{nvml.CLOCK_GRAPHICS, nvml.CLOCK_SM, nvml.CLOCK_MEM, nvml.CLOCK_VIDEO} {
		if mhz, ret := d.GetClockInfo(domain); s.has("Device.GetClockInfo", ret) {
			s.want(mhz <= 20_000, "clock %d at %d MHz", domain, mhz)
		}
	}

	_, ret := d.GetClockInfo(nvml.CLOCK_COUNT)
	s.refused("a clock that there is not", ret)
}

// checkThresholds: the hardware slows a GPU down before it turns it off.
func checkThresholds(s *subject, d nvmlsource.Device) {
	celsius := map[nvml.TemperatureThresholds]uint32{}

	for kind := nvml.TEMPERATURE_THRESHOLD_SHUTDOWN; kind <= nvml.TEMPERATURE_THRESHOLD_GPU_MAX; kind++ {
		if c, ret := d.GetTemperatureThreshold(kind); s.has("Device.GetTemperatureThreshold", ret) {
			s.want(c < 150, "threshold %d at %d C", kind, c)
			celsius[kind] = c
		}
	}

	slowdown, known := celsius[nvml.TEMPERATURE_THRESHOLD_SLOWDOWN]
	shutdown, knownToo := celsius[nvml.TEMPERATURE_THRESHOLD_SHUTDOWN]
	s.want(!known || !knownToo || slowdown <= shutdown, "slowdown at %d C, shutdown at %d C", slowdown, shutdown)
	_, ret := d.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_COUNT)
	s.refused("a threshold that there is not", ret)
}

func checkProcesses(s *subject, d nvmlsource.Device) {
	existing := s.tree(d)
	for function, call := range map[string]func() ([]nvml.ProcessInfo, nvml.Return){
		"Device.GetComputeRunningProcesses":    d.GetComputeRunningProcesses,
		"Device.GetGraphicsRunningProcesses":   d.GetGraphicsRunningProcesses,
		"Device.GetMPSComputeRunningProcesses": d.GetMPSComputeRunningProcesses,
	} {
		list, ret := call()
		if !s.has(function, ret) {
			s.want(migOn(d) || ret != nvml.ERROR_NO_PERMISSION, "%s: no right on a GPU without MIG", function)
			continue
		}

		s.processes(d, list)

		for _, p := range list {
			gi, known := existing[p.GpuInstanceId]
			switch {
			case p.GpuInstanceId == nvmlsource.NoInstance:
				s.want(p.ComputeInstanceId == nvmlsource.NoInstance, "process %+v of a compute instance without GPU instance", p)
			case !migOn(d):
				s.errorf("process %+v in an instance, with MIG off", p)
			case existing != nil:
				s.want(known && gi.computeInstances[p.ComputeInstanceId], "process %+v in an instance that there is not", p)
			}
		}
	}
}

// processes holds what every list of processes is.
func (s *subject) processes(d nvmlsource.Device, list []nvml.ProcessInfo) {
	const unavailable = ^uint64(0) // NVML_VALUE_NOT_AVAILABLE
	memory, ret := d.GetMemoryInfo()
	type key struct{ pid, gi, ci uint32 }
	seen := map[key]bool{}

	for _, p := range list {
		k := key{p.Pid, p.GpuInstanceId, p.ComputeInstanceId}
		s.want(p.Pid > 0 && !seen[k], "process %+v, or twice", p)
		seen[k] = true
		s.want(p.UsedGpuMemory == unavailable || ret != nvml.SUCCESS || p.UsedGpuMemory <= memory.Total,
			"process %+v uses more than there is", p)
	}
}
