package nvmlsource

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// tier holds the readings of the whole GPU that are read with the same period, and their errors.
// Its slices are never modified: results share them.
type tier struct {
	readings gpu.Readings
	errs     keptErrors
}

// readFast reads the fast tier, except NVML field values: both tiers read those in one call
// (readFields).
func (r *gpuRead) readFast() tier {
	q := r.newQuerier(r.state.answers)
	var readings gpu.Readings
	readings.Memory = r.queryMemory(&q)

	u, err := query(
		&q,
		"nvmlDeviceGetUtilizationRates",
		gpu.ReadingUtilization,
		r.dev.GetUtilizationRates,
	)
	if err == nil {
		readings.Utilization = gpu.Some(float64(u.Gpu) / 100)
		readings.MemoryCopy = gpu.Some(float64(u.Memory) / 100)
	}

	readings.Media = r.queryMedia(&q)
	readings.PowerWatts = queryScaled(
		&q,
		"nvmlDeviceGetPowerUsage",
		gpu.ReadingPower,
		r.dev.GetPowerUsage,
		1000,
	)

	readings.EnergyJoules = queryScaled(&q, "nvmlDeviceGetTotalEnergyConsumption", gpu.ReadingEnergy,
		r.dev.GetTotalEnergyConsumption, 1000)
	if readings.EnergyJoules.Present() {
		readings.EnergyAt = r.source.opts.Now()
	}

	readings.TemperatureCelsius = queryScaled(
		&q,
		"nvmlDeviceGetTemperature",
		gpu.ReadingTemperature,
		r.dev.GetTemperature,
		1,
	)
	readings.ClockHertz = gpu.Clocks{
		SM:       r.queryClock(&q, "nvmlDeviceGetClockInfo(SM)", nvml.CLOCK_SM),
		Memory:   r.queryClock(&q, "nvmlDeviceGetClockInfo(MEM)", nvml.CLOCK_MEM),
		Graphics: r.queryClock(&q, "nvmlDeviceGetClockInfo(GRAPHICS)", nvml.CLOCK_GRAPHICS),
		Video:    r.queryClock(&q, "nvmlDeviceGetClockInfo(VIDEO)", nvml.CLOCK_VIDEO),
	}

	reasons, err := query(&q, "nvmlDeviceGetCurrentClocksEventReasons", gpu.ReadingClockEvents,
		r.dev.GetCurrentClocksEventReasons)
	if err == nil {
		readings.ClockEvents = gpu.Some(gpu.ClockEvents(reasons))
	}

	readings.PerformanceState = r.queryPerformanceState(&q)

	return tier{readings: readings, errs: q.errs}
}

// readSlow completes the slow tier, whose NVML field values are given. While the slow tier is not
// due, it returns the last one.
func (r *gpuRead) readSlow(fields tier) tier {
	if !r.slow {
		return r.state.slow
	}

	r.state.meter.countFor(true)
	defer r.state.meter.countFor(false)
	q := r.newQuerier(r.state.answers)
	readings := fields.readings
	slow := &readings.SlowReadings
	slow.PowerLimitWatts = queryScaled(&q, "nvmlDeviceGetEnforcedPowerLimit", gpu.ReadingPower,
		r.dev.GetEnforcedPowerLimit, 1000)

	replays, err := query(
		&q,
		"nvmlDeviceGetPcieReplayCounter",
		gpu.ReadingPCIe,
		r.dev.GetPcieReplayCounter,
	)
	if err == nil && replays >= 0 {
		readings.PCIe.Replays = gpu.Some(uint64(replays))
	}

	readings.PCIe.LinkWidth = queryOpt(
		&q,
		"nvmlDeviceGetCurrPcieLinkWidth",
		gpu.ReadingPCIe,
		r.dev.GetCurrPcieLinkWidth,
	)

	readings.PCIe.LinkGeneration = queryOpt(&q, "nvmlDeviceGetCurrPcieLinkGeneration", gpu.ReadingPCIe,
		r.dev.GetCurrPcieLinkGeneration)

	mode, err := query(&q, "nvmlDeviceGetComputeMode", gpu.ReadingInventory, r.dev.GetComputeMode)
	if err == nil {
		slow.ExclusiveComputeMode = gpu.Some(mode == nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
	}

	slow.TemperatureMarginCelsius = queryScaled(
		&q,
		"nvmlDeviceGetMarginTemperature",
		gpu.ReadingTemperature,
		r.dev.GetMarginTemperature,
		1,
	)

	persistence, err := query(
		&q,
		"nvmlDeviceGetPersistenceMode",
		gpu.ReadingInventory,
		r.dev.GetPersistenceMode,
	)
	if err == nil {
		slow.PersistenceMode = gpu.Some(persistence == nvml.FEATURE_ENABLED)
	}

	slow.TemperatureThresholds = r.queryThresholds(&q)
	slow.Fans = r.queryFans(&q)
	slow.ECC = r.queryECC(&q)
	slow.Fabric = r.queryFabric(&q)

	if links, ok := r.queryLinks(&q); ok {
		readings.NVLink = links
	}

	slow.RemappedRows = r.queryRows(&q)
	r.state.slow = tier{readings: readings, errs: append(fields.errs, q.errs...)}
	r.state.slowAt = r.now

	return r.state.slow
}

// joinTiers adds the readings of the slow tier to those of the fast tier.
func joinTiers(fast, slow gpu.Readings) gpu.Readings {
	fast.SlowReadings = slow.SlowReadings
	fast.PCIe.Replays = slow.PCIe.Replays
	fast.PCIe.LinkWidth = slow.PCIe.LinkWidth
	fast.PCIe.LinkGeneration = slow.PCIe.LinkGeneration
	fast.NVLink.Errors = slow.NVLink.Errors

	countedByLink := slow.NVLink.TransmitBytes.Present() || slow.NVLink.ReceiveBytes.Present()
	if countedByLink {
		fast.NVLink = slow.NVLink
	}

	return fast
}

// queryMemory queries the GPU's memory. The handle is the only argument of the call, so an invalid
// argument means that the driver no longer knows the GPU.
func (r *gpuRead) queryMemory(q *querier) gpu.Memory {
	const call = "nvmlDeviceGetMemoryInfo"
	if q.checkRefused(call, gpu.ReadingMemory) != nil {
		return gpu.Memory{}
	}

	m, ret := r.dev.GetMemoryInfo()
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		r.lost = checkReturn(call, ret)
		return gpu.Memory{}
	}

	if q.recordReturn(call, gpu.ReadingMemory, ret) != nil {
		return gpu.Memory{}
	}

	return memoryOf(m)
}

// memoryOf converts an answer. The older version of the call does not report reserved memory.
func memoryOf(m nvml.Memory_v2) gpu.Memory {
	memory := gpu.Memory{Total: gpu.Some(m.Total), Used: gpu.Some(m.Used), Free: gpu.Some(m.Free)}
	if m.Version != 0 {
		memory.Reserved = gpu.Some(m.Reserved)
	}

	return memory
}

func (r *gpuRead) queryClock(q *querier, call string, domain nvml.ClockType) gpu.Opt[float64] {
	megahertz, err := query(
		q,
		call,
		gpu.ReadingClocks,
		func() (uint32, nvml.Return) { return r.dev.GetClockInfo(domain) },
	)
	if err != nil {
		return gpu.None[float64]()
	}

	return gpu.Some(float64(megahertz) * 1e6)
}

// maxThresholdCelsius is more than any GPU survives.
const maxThresholdCelsius = 200

// queryThresholds queries the temperatures at which the GPU protects itself. It leaves out those
// that the driver does not know, or reports as 0. From Ada on the call is deprecated (nvml.h), and
// the GPU knows its limits only relative to its margin: an H200 reports an offset of -2, which read
// as unsigned is 4.29e9 and no threshold either.
func (r *gpuRead) queryThresholds(q *querier) (list []gpu.TemperatureThreshold) {
	for threshold, kind := range []string{
		nvml.TEMPERATURE_THRESHOLD_SHUTDOWN: "shutdown", nvml.TEMPERATURE_THRESHOLD_SLOWDOWN: "slowdown",
		nvml.TEMPERATURE_THRESHOLD_MEM_MAX: "mem_max",
	} {
		name := "nvmlDeviceGetTemperatureThreshold(" + kind + ")"

		celsius := queryKnown(q, name, gpu.ReadingTemperature, func() (uint32, nvml.Return) {
			return r.dev.GetTemperatureThreshold(nvml.TemperatureThresholds(threshold))
		})
		if c := celsius.Or(0); c > 0 && c <= maxThresholdCelsius {
			list = append(list, gpu.TemperatureThreshold{Kind: kind, Celsius: float64(c)})
		}
	}

	return list
}

// queryRows queries the remapped rows, which drivers do not report while the GPU has GPU instances.
func (r *gpuRead) queryRows(q *querier) gpu.Opt[gpu.RemappedRows] {
	return queryOpt(
		q,
		"nvmlDeviceGetRemappedRows",
		gpu.ReadingRowRemap,
		func() (gpu.RemappedRows, nvml.Return) {
			correctable, uncorrectable, pending, failure, ret := r.dev.GetRemappedRows()

			return gpu.RemappedRows{
				Correctable:   uint64(correctable),
				Uncorrectable: uint64(uncorrectable),
				Pending:       pending,
				Failure:       failure,
			}, ret
		},
	)
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
		nvml.MEMORY_LOCATION_L1_CACHE:       "l1_cache",
		nvml.MEMORY_LOCATION_L2_CACHE:       "l2_cache",
		nvml.MEMORY_LOCATION_DEVICE_MEMORY:  "device_memory",
		nvml.MEMORY_LOCATION_REGISTER_FILE:  "register_file",
		nvml.MEMORY_LOCATION_TEXTURE_MEMORY: "texture_memory",
		nvml.MEMORY_LOCATION_TEXTURE_SHM:    "texture_shared_memory",
		nvml.MEMORY_LOCATION_CBU:            "cbu",
		nvml.MEMORY_LOCATION_SRAM:           "sram",
		eccTotal:                            "total",
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
					ECCCount: gpu.ECCCount{
						Severity: severityName,
						Lifetime: lifetimeName,
						Location: locationName,
					},
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

// queryECC queries the counts that the GPU has. It leaves out locations that the driver does not
// know.
func (r *gpuRead) queryECC(q *querier) (list []gpu.ECCCount) {
	for i := range r.state.ecc {
		c := &r.state.ecc[i]

		count := queryKnown(q, c.call, gpu.ReadingECC, func() (uint64, nvml.Return) {
			if c.location == eccTotal {
				return r.dev.GetTotalEccErrors(c.severity, c.lifetime)
			}

			return r.dev.GetMemoryErrorCounter(c.severity, c.lifetime, c.location)
		})
		if n, ok := count.Get(); ok {
			counted := c.ECCCount
			counted.Count = n
			list = append(list, counted)
		}
	}

	return list
}
