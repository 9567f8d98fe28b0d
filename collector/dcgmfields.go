package collector

import (
	_ "embed" // the names of DCGM's fields
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// dcgmNames are the ids and names of all fields that DCGM has, one in each line.
//
//go:embed dcgm_fields.txt
var dcgmNames string

// dcgmField is a field of DCGM, or a counter that only dcgm-exporter has, and its value in a
// Snapshot.
type dcgmField struct {
	name string
	id   int // DCGM's; 0 for a counter that only dcgm-exporter has
	unit string
	// byDefault is the type in the built-in list; empty if it is not there. The help is the
	// project's own wording.
	byDefault CounterType
	help      string
	source    dcgmSource
	newer     bool // a name that DCGM introduced in 4.6 or 4.7
	noMIG     bool // the driver has no value while MIG is on
	label     bool // text, for rows of the type label
	gpuOnly   bool // DCGM never has it for a GPU instance, not even repeated
	value     dcgmValue
}

// dcgmSource is where a field's value comes from.
type dcgmSource string

// The sources.
const (
	fromNVML      dcgmSource = "NVML"
	fromCounting  dcgmSource = "counted by this program from what NVML reports"
	fromProfiling dcgmSource = "profiling" // GPM or DCGM
	fromNowhere   dcgmSource = ""
)

// hasNoValue reports whether this program has no source for the field: it is accepted and has no
// series.
func (f *dcgmField) hasNoValue() bool { return f.value == nil }

// dcgmFieldList returns every field that a counters file may have, in the order of the
// documentation.
func dcgmFieldList() []dcgmField {
	var all []dcgmField
	for _, part := range [][]dcgmField{
		dcgmStateFields(), dcgmMediaFields(), dcgmMemoryFields(), dcgmLinkFields(),
		dcgmFaultFields(), dcgmECCFields(),
		dcgmClockEventFields(),
		dcgmActivityFields(), exporterCounterFields(), dcgmTextFields(), dcgmFieldsWithoutValue(),
	} {
		all = append(all, part...)
	}

	return append(all, newNameFields(all)...)
}

// dcgmFields returns the fields by name.
func dcgmFields() map[string]*dcgmField {
	list := dcgmFieldList()
	fields := make(map[string]*dcgmField, len(list))

	for i := range list {
		fields[list[i].name] = &list[i]
	}

	return fields
}

// DefaultCounters returns the built-in list: the rows that dcgm-exporter's own default file has
// switched on.
func DefaultCounters() []Counter {
	var counters []Counter

	for _, f := range dcgmFieldList() {
		if f.byDefault != "" {
			counters = append(counters, Counter{Field: f.name, Type: f.byDefault, Help: f.help})
		}
	}

	return counters
}

// convert returns f of a value, absent if the value is.
func convert[T, U any](value gpu.Opt[T], f func(T) U) gpu.Opt[U] {
	v, ok := value.Get()
	if !ok {
		return gpu.None[U]()
	}

	return gpu.Some(f(v))
}

// scale returns a value in another unit.
func scale[T ~int | ~uint64 | ~float64](value gpu.Opt[T], factor float64) gpu.Opt[float64] {
	return convert(value, func(v T) float64 { return float64(v) * factor })
}

// roundToInteger rounds a value, because DCGM's fields are integers.
func roundToInteger(value gpu.Opt[float64]) gpu.Opt[float64] { return convert(value, math.Round) }

// toPercent returns a ratio in whole percent.
func toPercent(ratio gpu.Opt[float64]) gpu.Opt[float64] { return roundToInteger(scale(ratio, 100)) }

// toMebibytes returns whole mebibytes, rounded down as in DCGM.
func toMebibytes(bytes gpu.Opt[uint64]) gpu.Opt[float64] {
	return convert(bytes, func(b uint64) float64 { return float64(b >> 20) })
}

// boolToFloat returns 1 for true and 0 for false.
func boolToFloat(set bool) float64 {
	if set {
		return 1
	}

	return 0
}

const (
	hertzPerMegahertz   = 1e6
	millijoulesPerJoule = 1e3
	nanosPerSecond      = 1e9
)

func dcgmStateFields() []dcgmField {
	return []dcgmField{
		{
			name:      "DCGM_FI_DEV_SM_CLOCK",
			id:        100,
			unit:      "MHz",
			byDefault: CounterGauge,
			help:      "Clock of the SMs (in MHz).",
			source:    fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.ClockHertz.SM, 1/hertzPerMegahertz)
			}),
		},
		{
			name:      "DCGM_FI_DEV_MEM_CLOCK",
			id:        101,
			unit:      "MHz",
			byDefault: CounterGauge,
			help:      "Clock of the memory (in MHz).",
			source:    fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.ClockHertz.Memory, 1/hertzPerMegahertz)
			}),
		},
		{
			name:   "DCGM_FI_DEV_VIDEO_CLOCK",
			id:     102,
			unit:   "MHz",
			source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.ClockHertz.Video, 1/hertzPerMegahertz)
			}),
		},
		{name: "DCGM_FI_DEV_MEMORY_TEMP", id: 140, unit: "C", byDefault: CounterGauge,
			help: "Temperature of the memory (in C).", source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] { return g.Readings.MemoryCelsius })},
		{
			name:      "DCGM_FI_DEV_GPU_TEMP",
			id:        150,
			unit:      "C",
			byDefault: CounterGauge,
			help:      "Temperature of the GPU (in C).",
			source:    fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return g.Readings.TemperatureCelsius
			}),
		},
		{name: "DCGM_FI_DEV_POWER_USAGE", id: 155, unit: "W", byDefault: CounterGauge,
			help: "Power that the GPU draws (in W).", source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] { return g.Readings.PowerWatts })},
		{
			name:      "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
			id:        156,
			unit:      "mJ",
			byDefault: CounterCounter,
			help:      "Energy that the GPU has used since the driver was loaded (in mJ).",
			source:    fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return roundToInteger(scale(g.Readings.EnergyJoules, millijoulesPerJoule))
			}),
		},
		{name: "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", id: 164, unit: "W", source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return g.Readings.PowerLimitWatts
			})},
		{
			name:      "DCGM_FI_DEV_GPU_UTIL",
			id:        203,
			unit:      "%",
			byDefault: CounterGauge,
			noMIG:     true,
			help:      "Part of the time with at least one kernel running (in %).",
			source:    fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return toPercent(g.Readings.Utilization)
			}),
		},
		{
			name:      "DCGM_FI_DEV_MEM_COPY_UTIL",
			id:        204,
			unit:      "%",
			byDefault: CounterGauge,
			noMIG:     true,
			help:      "Part of the time in which memory was read or written (in %).",
			source:    fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return toPercent(g.Readings.MemoryCopy)
			}),
		},
		{
			name:   "DCGM_FI_DEV_PSTATE",
			id:     190,
			unit:   "0 to 15",
			source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return scale(g.Readings.PerformanceState, 1)
			}),
		},
		{name: "DCGM_FI_DEV_FAN_SPEED", id: 191, unit: "%", source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] { return toPercent(firstFan(g)) })},
		{name: "DCGM_FI_DEV_MIG_MODE", id: 67, unit: "0 or 1", source: fromNVML,
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				if !g.Up { // the mode of a GPU that is down is the last one known
					return gpu.None[float64]()
				}

				return convert(g.MIG.Enabled, boolToFloat)
			})},
	}
}

// firstFan returns the speed of a GPU's first fan: DCGM has one value for all fans.
func firstFan(g *gpu.GPU) gpu.Opt[float64] {
	for _, f := range g.Readings.Fans {
		return gpu.Some(f.Speed)
	}

	return gpu.None[float64]()
}

func dcgmMediaFields() []dcgmField {
	return []dcgmField{
		{name: "DCGM_FI_DEV_ENC_UTIL", id: 206, unit: "%", byDefault: CounterGauge,
			help: "Part of the time with the encoder active (in %).", source: fromNVML,
			value: ofMedia(func(m *gpu.Media) gpu.Opt[float64] { return toPercent(m.Encoder) })},
		{name: "DCGM_FI_DEV_DEC_UTIL", id: 207, unit: "%", byDefault: CounterGauge,
			help: "Part of the time with the decoder active (in %).", source: fromNVML,
			value: ofMedia(func(m *gpu.Media) gpu.Opt[float64] { return toPercent(m.Decoder) })},
	}
}

func dcgmMemoryFields() []dcgmField {
	return []dcgmField{
		{name: "DCGM_FI_DEV_FB_TOTAL", id: 250, unit: "MiB", source: fromNVML,
			value: ofMemory(func(m *gpu.Memory) gpu.Opt[float64] { return toMebibytes(m.Total) })},
		{name: "DCGM_FI_DEV_FB_FREE", id: 251, unit: "MiB", byDefault: CounterGauge,
			help: "Framebuffer memory that is free (in MiB).", source: fromNVML,
			value: ofMemory(func(m *gpu.Memory) gpu.Opt[float64] { return toMebibytes(m.Free) })},
		{name: "DCGM_FI_DEV_FB_USED", id: 252, unit: "MiB", byDefault: CounterGauge,
			help: "Framebuffer memory in use (in MiB).", source: fromNVML,
			value: ofMemory(func(m *gpu.Memory) gpu.Opt[float64] { return toMebibytes(m.Used) })},
		{
			name:      "DCGM_FI_DEV_FB_RESERVED",
			id:        253,
			unit:      "MiB",
			byDefault: CounterGauge,
			help:      "Framebuffer memory that the driver and the firmware keep (in MiB).",
			source:    fromNVML,
			value: ofMemory(func(m *gpu.Memory) gpu.Opt[float64] {
				return toMebibytes(m.Reserved)
			}),
		},
		{
			name:   "DCGM_FI_DEV_FB_USED_PERCENT",
			id:     254,
			unit:   "ratio",
			source: fromNVML,
			value:  ofMemory(usedRatio),
		},
	}
}

// usedRatio returns used/(total-reserved), 0-1 whatever the field's name says (dcgm_fields.h).
func usedRatio(m *gpu.Memory) gpu.Opt[float64] {
	used, usedOK := m.Used.Get()
	total, totalOK := m.Total.Get()

	reserved := m.Reserved.Or(0)
	if !usedOK || !totalOK || total <= reserved {
		return gpu.None[float64]()
	}

	return gpu.Some(float64(used) / float64(total-reserved))
}

func dcgmActivityFields() []dcgmField {
	ratio := func(name string, id int, help string, read func(*gpu.Activity) gpu.Opt[float64]) dcgmField {
		field := dcgmField{
			name:   name,
			id:     id,
			unit:   "ratio",
			help:   help,
			source: fromProfiling,
			value:  ofActivity(read),
		}
		if help != "" {
			field.byDefault = CounterGauge
		}

		return field
	}

	return []dcgmField{
		ratio(
			"DCGM_FI_PROF_GR_ENGINE_ACTIVE",
			1001,
			"Part of the time with the graphics or compute engine active.",
			func(a *gpu.Activity) gpu.Opt[float64] { return a.GraphicsEngine },
		),
		ratio(
			"DCGM_FI_PROF_SM_ACTIVE",
			1002,
			"",
			func(a *gpu.Activity) gpu.Opt[float64] { return a.SM },
		),
		ratio(
			"DCGM_FI_PROF_SM_OCCUPANCY",
			1003,
			"",
			func(a *gpu.Activity) gpu.Opt[float64] { return a.SMOccupancy },
		),
		ratio(
			"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
			1004,
			"Part of the cycles in which the tensor pipes were active.",
			func(a *gpu.Activity) gpu.Opt[float64] { return a.Tensor },
		),
		ratio("DCGM_FI_PROF_DRAM_ACTIVE", 1005, "Part of the cycles in which device memory moved data.",
			func(a *gpu.Activity) gpu.Opt[float64] { return a.DRAM }),
		ratio(
			"DCGM_FI_PROF_PIPE_FP64_ACTIVE",
			1006,
			"",
			func(a *gpu.Activity) gpu.Opt[float64] { return a.FP64 },
		),
		ratio(
			"DCGM_FI_PROF_PIPE_FP32_ACTIVE",
			1007,
			"",
			func(a *gpu.Activity) gpu.Opt[float64] { return a.FP32 },
		),
		ratio(
			"DCGM_FI_PROF_PIPE_FP16_ACTIVE",
			1008,
			"",
			func(a *gpu.Activity) gpu.Opt[float64] { return a.FP16 },
		),
	}
}

func dcgmTextFields() []dcgmField {
	label := func(name string, id int, text func(*gpu.Snapshot, *gpu.GPU) string) dcgmField {
		return dcgmField{name: name, id: id, label: true, source: fromNVML, value: labelText(text)}
	}
	driver := label("DCGM_FI_DRIVER_VERSION", 1, func(s *gpu.Snapshot, _ *gpu.GPU) string {
		return s.Driver.Or(gpu.Driver{}).Version
	})
	driver.byDefault = CounterLabel
	driver.help = "Version of the driver."

	return []dcgmField{
		driver,
		label(
			"DCGM_FI_NVML_VERSION",
			2,
			func(s *gpu.Snapshot, _ *gpu.GPU) string { return s.Driver.Or(gpu.Driver{}).NVML },
		),
		label("DCGM_FI_DEV_NAME", 50, func(_ *gpu.Snapshot, g *gpu.GPU) string { return g.Name }),
		label("DCGM_FI_DEV_SERIAL", 53, func(_ *gpu.Snapshot, g *gpu.GPU) string { return g.Serial }),
		label(
			"DCGM_FI_DEV_UUID",
			54,
			func(_ *gpu.Snapshot, g *gpu.GPU) string { return string(g.UUID) },
		),
		label(
			"DCGM_FI_DEV_MINOR_NUMBER",
			55,
			func(_ *gpu.Snapshot, g *gpu.GPU) string { return decimal(g.Minor) },
		),
		label(
			"DCGM_FI_DEV_PCI_BUSID",
			57,
			func(_ *gpu.Snapshot, g *gpu.GPU) string { return dcgmBusID(g) },
		),
		label(
			"DCGM_FI_DEV_VBIOS_VERSION",
			85,
			func(_ *gpu.Snapshot, g *gpu.GPU) string { return g.VBIOS },
		),
	}
}

// dcgmFieldsWithoutValue returns the fields in dcgm-exporter's files, switched on or as examples,
// for which this program has no source.
func dcgmFieldsWithoutValue() []dcgmField {
	return []dcgmField{
		{
			name:      "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
			id:        526,
			byDefault: CounterGauge,
			help:      "Whether the vGPU is licensed.",
		},
		{name: "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", id: 243, unit: "ns"},
		{name: "DCGM_FI_DEV_LOW_UTIL_VIOLATION", id: 244, unit: "ns"},
		{name: "DCGM_FI_DEV_RELIABILITY_VIOLATION", id: 245, unit: "ns"},

		{name: "DCGM_FI_DEV_RETIRED_SBE", id: 390},
		{name: "DCGM_FI_DEV_RETIRED_DBE", id: 391},
		{name: "DCGM_FI_DEV_RETIRED_PENDING", id: 392},
		{name: "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", id: 440, unit: "MB/s"},
		{name: "DCGM_EXP_P2P_STATUS"},

		{name: "DCGM_FI_DEV_BRAND", id: 51, label: true},
		{name: "DCGM_FI_DEV_OEM_INFOROM_VER", id: 56, label: true},
		{name: "DCGM_FI_DEV_ECC_INFOROM_VER", id: 80, label: true},
		{name: "DCGM_FI_DEV_POWER_INFOROM_VER", id: 81, label: true},
		{name: "DCGM_FI_DEV_INFOROM_IMAGE_VER", id: 82, label: true},
	}
}
