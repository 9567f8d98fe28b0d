package nvmlsource

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readFast reads what every reading reads, of the GPU as a whole.
func (r *gpuRead) readFast() {
	to, q := &r.out.Readings, &r.querier
	r.readMemory(to)
	if u, ok := query(q, "nvmlDeviceGetUtilizationRates", gpu.ReadingUtilization, r.dev.GetUtilizationRates); ok {
		to.Utilization = gpu.Some(float64(u.Gpu) / 100)
		to.MemoryCopy = gpu.Some(float64(u.Memory) / 100)
	}
	to.Media = r.readMedia()
	to.PowerWatts = queryScaled(q, "nvmlDeviceGetPowerUsage", gpu.ReadingPower, r.dev.GetPowerUsage, 1000)
	to.EnergyJoules = queryScaled(q, "nvmlDeviceGetTotalEnergyConsumption", gpu.ReadingEnergy,
		r.dev.GetTotalEnergyConsumption, 1000)
	to.TemperatureCelsius = queryScaled(q, "nvmlDeviceGetTemperature", gpu.ReadingTemperature, r.dev.GetTemperature, 1)
	to.ClockHertz = gpu.Clocks{
		SM:       r.readClock("nvmlDeviceGetClockInfo(SM)", nvml.CLOCK_SM),
		Memory:   r.readClock("nvmlDeviceGetClockInfo(MEM)", nvml.CLOCK_MEM),
		Graphics: r.readClock("nvmlDeviceGetClockInfo(GRAPHICS)", nvml.CLOCK_GRAPHICS),
		Video:    r.readClock("nvmlDeviceGetClockInfo(VIDEO)", nvml.CLOCK_VIDEO),
	}
	reasons, ok := query(q, "nvmlDeviceGetCurrentClocksEventReasons", gpu.ReadingClockEvents,
		r.dev.GetCurrentClocksEventReasons)
	if ok {
		to.ClockEvents = gpu.Some(gpu.ClockEvents(reasons))
	}
	to.PerformanceState = r.readPerformanceState()
}

// readMemory reads the GPU's memory. The handle is the only argument of the call, so an invalid argument means that
// the driver no longer knows the GPU.
func (r *gpuRead) readMemory(to *gpu.Readings) {
	const call = "nvmlDeviceGetMemoryInfo"
	if !r.mayQuery(call, gpu.ReadingMemory) {
		return
	}
	m, ret := r.dev.GetMemoryInfo()
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		r.fatal = r.source.checkReturn(call, ret)
		return
	}
	if r.accept(call, gpu.ReadingMemory, ret) {
		to.Memory = memoryOf(m)
	}
}

// memoryOf converts an answer. The older version of the call does not report reserved memory.
func memoryOf(m nvml.Memory_v2) gpu.Memory {
	memory := gpu.Memory{Total: gpu.Some(m.Total), Used: gpu.Some(m.Used), Free: gpu.Some(m.Free)}
	if m.Version != 0 {
		memory.Reserved = gpu.Some(m.Reserved)
	}
	return memory
}

func (r *gpuRead) readClock(call string, domain nvml.ClockType) gpu.Opt[float64] {
	megahertz, ok := query(&r.querier, call, gpu.ReadingClocks,
		func() (uint32, nvml.Return) { return r.dev.GetClockInfo(domain) })
	if !ok {
		return gpu.None[float64]()
	}
	return gpu.Some(float64(megahertz) * 1e6)
}

// slowReadings are the readings and the errors of the last slow tier. They are reported until the next.
type slowReadings struct {
	readings gpu.Readings // the slow ones alone
	errs     []gpu.ReadError
}

// readSlow reads the slow tier if it is due, and the fields of both tiers in one call. Slices of the slow tier are
// shared by all results until the next one replaces them; they are never modified.
func (r *gpuRead) readSlow() {
	var slow gpu.Readings
	var errs []gpu.ReadError
	r.readFields(&r.out.Readings, &slow, &errs)
	if r.slow {
		errs = append(errs, r.separate(func() {
			r.readLimits(&slow)
			r.readThresholds(&slow)
			r.readFans(&slow)
			r.readECC(&slow)
			r.readRows(&slow)
		})...)
		r.state.slow = slowReadings{readings: slow, errs: errs}
		r.state.slowAt = r.now
	}
	from, to := &r.state.slow.readings, &r.out.Readings
	to.PowerLimitWatts, to.Fans = from.PowerLimitWatts, from.Fans
	to.TemperatureThresholds = from.TemperatureThresholds
	to.PCIe.Replays, to.PCIe.LinkWidth, to.PCIe.LinkGeneration = from.PCIe.Replays, from.PCIe.LinkWidth,
		from.PCIe.LinkGeneration
	to.NVLink.Errors = from.NVLink.Errors
	to.ECC = from.ECC
	to.RemappedRows = from.RemappedRows
	to.RecoveryAction = from.RecoveryAction
	to.ExclusiveComputeMode = from.ExclusiveComputeMode
}

func (r *gpuRead) readLimits(to *gpu.Readings) {
	q := &r.querier
	to.PowerLimitWatts = queryScaled(q, "nvmlDeviceGetEnforcedPowerLimit", gpu.ReadingPower, r.dev.GetEnforcedPowerLimit,
		1000)
	if replays, ok := query(q, "nvmlDeviceGetPcieReplayCounter", gpu.ReadingPCIe, r.dev.GetPcieReplayCounter); ok &&
		replays >= 0 {
		to.PCIe.Replays = gpu.Some(uint64(replays))
	}
	to.PCIe.LinkWidth = queryOpt(q, "nvmlDeviceGetCurrPcieLinkWidth", gpu.ReadingPCIe, r.dev.GetCurrPcieLinkWidth)
	to.PCIe.LinkGeneration = queryOpt(q, "nvmlDeviceGetCurrPcieLinkGeneration", gpu.ReadingPCIe,
		r.dev.GetCurrPcieLinkGeneration)
	if mode, ok := query(q, "nvmlDeviceGetComputeMode", gpu.ReadingInventory, r.dev.GetComputeMode); ok {
		to.ExclusiveComputeMode = gpu.Some(mode == nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
	}
}

// readThresholds reads the temperatures at which the GPU protects itself. A GPU does not have a threshold that its
// driver does not know, or reports as 0.
func (r *gpuRead) readThresholds(to *gpu.Readings) {
	for threshold, kind := range []string{
		nvml.TEMPERATURE_THRESHOLD_SHUTDOWN: "shutdown", nvml.TEMPERATURE_THRESHOLD_SLOWDOWN: "slowdown",
		nvml.TEMPERATURE_THRESHOLD_MEM_MAX: "mem_max",
	} {
		name := "nvmlDeviceGetTemperatureThreshold(" + kind + ")"
		celsius, ok := queryKnown(&r.querier, name, gpu.ReadingTemperature, func() (uint32, nvml.Return) {
			return r.dev.GetTemperatureThreshold(nvml.TemperatureThresholds(threshold))
		})
		if ok && celsius > 0 {
			to.TemperatureThresholds = append(to.TemperatureThresholds,
				gpu.TemperatureThreshold{Kind: kind, Celsius: float64(celsius)})
		}
	}
}

// readRows reads the remapped rows, which drivers do not report while the GPU has GPU instances.
func (r *gpuRead) readRows(to *gpu.Readings) {
	const call = "nvmlDeviceGetRemappedRows"
	if !r.mayQuery(call, gpu.ReadingRowRemap) {
		return
	}
	correctable, uncorrectable, pending, failure, ret := r.dev.GetRemappedRows()
	if r.accept(call, gpu.ReadingRowRemap, ret) {
		to.RemappedRows = gpu.Some(gpu.RemappedRows{
			Correctable: uint64(correctable), Uncorrectable: uint64(uncorrectable), Pending: pending, Failure: failure,
		})
	}
}

// eccCounter is one kind of ECC error count.
type eccCounter struct {
	gpu.ECCCount
	severity nvml.MemoryErrorType
	lifetime nvml.EccCounterType
	location nvml.MemoryLocation // eccTotal: all of them
	call     string
}

const eccTotal = nvml.MEMORY_LOCATION_COUNT

// eccCounters returns every kind of count; most GPUs have few.
func eccCounters() []eccCounter {
	locations := []string{
		nvml.MEMORY_LOCATION_L1_CACHE: "l1_cache", nvml.MEMORY_LOCATION_L2_CACHE: "l2_cache",
		nvml.MEMORY_LOCATION_DEVICE_MEMORY: "device_memory", nvml.MEMORY_LOCATION_REGISTER_FILE: "register_file",
		nvml.MEMORY_LOCATION_TEXTURE_MEMORY: "texture_memory", nvml.MEMORY_LOCATION_TEXTURE_SHM: "texture_shared_memory",
		nvml.MEMORY_LOCATION_CBU: "cbu", nvml.MEMORY_LOCATION_SRAM: "sram", eccTotal: "total",
	}
	var list []eccCounter
	for severity, severityName := range []string{"corrected", "uncorrected"} {
		for lifetime, lifetimeName := range []string{"volatile", "aggregate"} {
			for location, locationName := range locations {
				function := "nvmlDeviceGetMemoryErrorCounter"
				if location == int(eccTotal) {
					function = "nvmlDeviceGetTotalEccErrors"
				}
				list = append(list, eccCounter{
					ECCCount: gpu.ECCCount{Severity: severityName, Lifetime: lifetimeName, Location: locationName},
					severity: nvml.MemoryErrorType(severity),
					lifetime: nvml.EccCounterType(lifetime),
					location: nvml.MemoryLocation(location),
					call:     function + "(" + severityName + ", " + lifetimeName + ", " + locationName + ")",
				})
			}
		}
	}
	return list
}

// readECC reads the counts that the GPU has. A GPU does not have a location that its driver does not know.
func (r *gpuRead) readECC(to *gpu.Readings) {
	for i := range r.state.ecc {
		c := &r.state.ecc[i]
		count, ok := queryKnown(&r.querier, c.call, gpu.ReadingECC, func() (uint64, nvml.Return) {
			if c.location == eccTotal {
				return r.dev.GetTotalEccErrors(c.severity, c.lifetime)
			}
			return r.dev.GetMemoryErrorCounter(c.severity, c.lifetime, c.location)
		})
		if ok {
			counted := c.ECCCount
			counted.Count = count
			to.ECC = append(to.ECC, counted)
		}
	}
}
