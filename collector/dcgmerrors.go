package collector

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

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
	// A double-bit counter has the id after its single-bit counter.
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
