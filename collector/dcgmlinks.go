package collector

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func dcgmLinkFields() []dcgmField {
	rate := func(name string, id int, help string, read func(*gpu.LinkRates) gpu.Opt[float64]) dcgmField {
		f := dcgmField{
			name:    name,
			id:      id,
			unit:    "B/s",
			help:    help,
			source:  fromProfiling,
			gpuOnly: true,
			value:   wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] { return read(&g.Rates) }),
		}
		if help != "" {
			f.byDefault = CounterGauge
		}

		return f
	}

	return []dcgmField{
		{
			name:      "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
			id:        202,
			unit:      "1",
			byDefault: CounterCounter,
			help:      "Retries on the PCIe link.",
			source:    fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.PCIe.Replays, 1)
			}),
		},
		{
			name:   "DCGM_FI_DEV_PCIE_LINK_GEN",
			id:     237,
			unit:   "1",
			source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.PCIe.LinkGeneration, 1)
			}),
		},
		{
			name:   "DCGM_FI_DEV_PCIE_LINK_WIDTH",
			id:     238,
			unit:   "1",
			source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.PCIe.LinkWidth, 1)
			}),
		},
		rate(
			"DCGM_FI_PROF_PCIE_TX_BYTES",
			1009,
			"Data and protocol sent over PCIe (in bytes per second).",
			func(r *gpu.LinkRates) gpu.Opt[float64] { return r.PCIeTransmit },
		),
		rate(
			"DCGM_FI_PROF_PCIE_RX_BYTES",
			1010,
			"Data and protocol received over PCIe (in bytes per second).",
			func(r *gpu.LinkRates) gpu.Opt[float64] { return r.PCIeReceive },
		),
		rate(
			"DCGM_FI_PROF_NVLINK_TX_BYTES",
			1011,
			"",
			func(r *gpu.LinkRates) gpu.Opt[float64] { return r.NVLinkTransmit },
		),
		rate(
			"DCGM_FI_PROF_NVLINK_RX_BYTES",
			1012,
			"",
			func(r *gpu.LinkRates) gpu.Opt[float64] { return r.NVLinkReceive },
		),
		// DCGM divides KiB/s by 1000 and calls that MB/s. dcgm-exporter's list called the rate a
		// counter until 4.8.3.
		{
			name:      "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
			id:        449,
			unit:      "MB/s",
			byDefault: CounterCounter,
			help:      "NVLink traffic of all links, both directions (in MB/s).",
			source:    fromProfiling,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(nvlinkRate(g), 1.0/1024/1000)
			}),
		},
		nvlinkErrors("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 409, "crc_flit"),
		nvlinkErrors("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 419, "crc_data"),
		nvlinkErrors("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 429, "replay"),
		nvlinkErrors("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 439, "recovery"),
	}
}

// nvlinkRate returns the sum of both directions in bytes per second.
func nvlinkRate(g *gpu.GPU) gpu.Opt[float64] {
	sent, sentOK := g.Rates.NVLinkTransmit.Get()

	received, receivedOK := g.Rates.NVLinkReceive.Get()
	if !sentOK || !receivedOK {
		return gpu.None[float64]()
	}

	return gpu.Some(sent + received)
}

func nvlinkErrors(name string, id int, kind string) dcgmField {
	return dcgmField{
		name:   name,
		id:     id,
		unit:   "1",
		source: fromNVML,
		value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
			errs := g.Readings.NVLink.Errors

			i := slices.IndexFunc(errs, func(e gpu.NVLinkErrors) bool { return e.Kind == kind })
			if i < 0 {
				return gpu.None[float64]()
			}

			return gpu.Some(float64(errs[i].Count))
		}),
	}
}

func dcgmFaultFields() []dcgmField {
	rows := func(
		name string,
		id int,
		kind CounterType,
		help string,
		read func(gpu.RemappedRows) float64,
	) dcgmField {
		return dcgmField{
			name:      name,
			id:        id,
			unit:      "1",
			byDefault: kind,
			help:      help,
			source:    fromNVML,
			noMIG:     true,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return convert(g.Readings.RemappedRows, read)
			}),
		}
	}

	return []dcgmField{
		rows("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 393, CounterCounter,
			"Rows of memory replaced for uncorrectable errors.",
			func(r gpu.RemappedRows) float64 { return float64(r.Uncorrectable) }),
		rows(
			"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
			394,
			CounterCounter,
			"Rows of memory replaced for correctable errors.",
			func(r gpu.RemappedRows) float64 { return float64(r.Correctable) },
		),
		rows(
			"DCGM_FI_DEV_ROW_REMAP_FAILURE",
			395,
			CounterGauge,
			"1 when a row of memory could not be replaced, else 0.",
			func(r gpu.RemappedRows) float64 { return boolToFloat(r.Failure) },
		),
		rows("DCGM_FI_DEV_ROW_REMAP_PENDING", 396, "", "", func(r gpu.RemappedRows) float64 {
			return boolToFloat(r.Pending)
		}),
		{
			name:   "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",
			id:     1523,
			unit:   "NVML's number",
			source: fromNVML,
			value:  wholeGPU(recoveryNumber),
		},
	}
}

// recoveryNumber returns NVML's number of the action (nvml.h, nvmlDeviceGpuRecoveryAction_t).
func recoveryNumber(g *gpu.GPU) gpu.Opt[float64] {
	action, ok := g.Readings.RecoveryAction.Get()

	number := slices.Index(
		[]gpu.RecoveryAction{
			gpu.RecoveryNone,
			gpu.RecoveryReset,
			gpu.RecoveryReboot,
			gpu.RecoveryDrain,
			gpu.RecoveryDrainAndReset,
			gpu.RecoveryIMEXDomain,
		},
		action,
	)
	if !ok || number < 0 {
		return gpu.None[float64]()
	}

	return gpu.Some(float64(number))
}

// dcgmECCFields returns the totals, and the locations of Ampere and later.
func dcgmECCFields() []dcgmField {
	var fields []dcgmField
	// The ids go up by lifetime and location, single-bit before double-bit errors.
	for _, place := range []struct {
		suffix, location    string
		volatile, aggregate int // ids of the single-bit counters
	}{
		{"TOTAL", "total", 310, 312}, {"L1", "l1_cache", 314, 324}, {"L2", "l2_cache", 316, 326},
		{"DEV", "device_memory", 318, 328},
		{"REG", "register_file", 320, 330}, {"TEX", "texture_memory", 322, 332},
		{"SHM", "texture_shared_memory", 334, 338},
		{"CBU", "cbu", 336, 340}, {"SRM", "sram", 342, 344},
	} {
		fields = append(
			fields,
			eccField(
				"DCGM_FI_DEV_ECC_SBE_VOL_"+place.suffix,
				place.volatile,
				"corrected",
				"volatile",
				place.location,
			),
			eccField(
				"DCGM_FI_DEV_ECC_DBE_VOL_"+place.suffix,
				place.volatile+1,
				"uncorrected",
				"volatile",
				place.location,
			),
			eccField(
				"DCGM_FI_DEV_ECC_SBE_AGG_"+place.suffix,
				place.aggregate,
				"corrected",
				"aggregate",
				place.location,
			),
			eccField(
				"DCGM_FI_DEV_ECC_DBE_AGG_"+place.suffix,
				place.aggregate+1,
				"uncorrected",
				"aggregate",
				place.location,
			),
		)
	}

	return fields
}

func eccField(name string, id int, severity, lifetime, location string) dcgmField {
	return dcgmField{
		name:   name,
		id:     id,
		unit:   "1",
		source: fromNVML,
		value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
			return eccCount(g, severity, lifetime, location)
		}),
	}
}

func eccCount(g *gpu.GPU, severity, lifetime, location string) gpu.Opt[float64] {
	for _, e := range g.Readings.ECC {
		if e.Severity == severity && e.Lifetime == lifetime && e.Location == location {
			return gpu.Some(float64(e.Count))
		}
	}

	return gpu.None[float64]()
}

// dcgmClockEventFields returns the times for which clocks were held down. This program counts them
// from its start, by the reasons at the time of each reading.
func dcgmClockEventFields() []dcgmField {
	held := func(name string, id int, reasons ...string) dcgmField {
		seconds := heldSeconds(reasons...)

		return dcgmField{
			name:   name,
			id:     id,
			unit:   "ns",
			source: fromCounting,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return roundToInteger(scale(seconds(g), nanosPerSecond))
			}),
		}
	}

	return []dcgmField{
		{
			name:   "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
			id:     112,
			unit:   "bits",
			source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.ClockEvents, 1)
			}),
		},
		held("DCGM_FI_DEV_POWER_VIOLATION", 240, "sw_power_cap"),
		held("DCGM_FI_DEV_THERMAL_VIOLATION", 241, "sw_thermal_slowdown", "hw_thermal_slowdown"),
		held("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", 242, "sync_boost"),
		held("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", 1420, "sw_power_cap"),
		held("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS", 1421, "sync_boost"),
		held("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", 1422, "sw_thermal_slowdown"),
		held("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", 1423, "hw_thermal_slowdown"),
		held(
			"DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
			1424,
			"hw_power_brake_slowdown",
		),
	}
}

// heldSeconds returns a function that adds up the time for which reasons held the clocks down.
func heldSeconds(reasons ...string) func(*gpu.GPU) gpu.Opt[float64] {
	return func(g *gpu.GPU) gpu.Opt[float64] {
		sum := 0.0
		found := false

		for _, e := range g.Totals.ClockEvents {
			if slices.Contains(reasons, e.Reason) {
				sum += e.Seconds.Value
				found = true
			}
		}

		if !found {
			return gpu.None[float64]()
		}

		return gpu.Some(sum)
	}
}
