package collector

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// dcgmRenamedField is a field's name since DCGM 4.6 or 4.7. dcgm-exporter serves them since 4.9; 11
// of its 23 renamed rows also have another unit. To DCGM these are additional fields, with ids of
// their own.
type dcgmRenamedField struct {
	name, old string
	id        int // of DCGM's field; 0: the same as under the old name
	unit      string
	value     dcgmValue
}

// dcgmRenamedFields returns all new names.
func dcgmRenamedFields() []dcgmRenamedField {
	return slices.Concat(dcgmFieldsRenamedIn49(), dcgmFieldsRenamed())
}

// dcgmFieldsRenamedIn49 returns the new names of dcgm-exporter 4.9's default and profiling rows.
func dcgmFieldsRenamedIn49() []dcgmRenamedField {
	return []dcgmRenamedField{
		{name: "DCGM_FI_DEV_SM_CLOCK_HERTZ", old: "DCGM_FI_DEV_SM_CLOCK", id: 1603, unit: "Hz",
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] { return g.Readings.ClockHertz.SM })},
		{name: "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", old: "DCGM_FI_DEV_MEM_CLOCK", id: 1604, unit: "Hz",
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return g.Readings.ClockHertz.Memory
			})},
		{
			name:  "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
			old:   "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
			id:    1611,
			unit:  "J",
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] { return g.Readings.EnergyJoules }),
		},
		{name: "DCGM_FI_DEV_GPU_UTIL_RATIO", old: "DCGM_FI_DEV_GPU_UTIL", id: 1613, unit: "ratio",
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] { return g.Readings.Utilization })},
		{
			name:  "DCGM_FI_DEV_MEMORY_UTIL_RATIO",
			old:   "DCGM_FI_DEV_MEM_COPY_UTIL",
			id:    1614,
			unit:  "ratio",
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] { return g.Readings.MemoryCopy }),
		},
		{name: "DCGM_FI_DEV_ENC_UTIL_RATIO", old: "DCGM_FI_DEV_ENC_UTIL", id: 1615, unit: "ratio",
			value: ofMedia(func(m *gpu.Media) gpu.Opt[float64] { return m.Encoder })},
		{name: "DCGM_FI_DEV_DEC_UTIL_RATIO", old: "DCGM_FI_DEV_DEC_UTIL", id: 1616, unit: "ratio",
			value: ofMedia(func(m *gpu.Media) gpu.Opt[float64] { return m.Decoder })},
		{name: "DCGM_FI_DEV_FB_FREE_BYTES", old: "DCGM_FI_DEV_FB_FREE", id: 1626, unit: "B",
			value: ofMemory(func(m *gpu.Memory) gpu.Opt[float64] { return scale(m.Free, 1) })},
		{name: "DCGM_FI_DEV_FB_USED_BYTES", old: "DCGM_FI_DEV_FB_USED", id: 1627, unit: "B",
			value: ofMemory(func(m *gpu.Memory) gpu.Opt[float64] { return scale(m.Used, 1) })},
		{name: "DCGM_FI_DEV_FB_RESERVED_BYTES", old: "DCGM_FI_DEV_FB_RESERVED", id: 1628, unit: "B",
			value: ofMemory(func(m *gpu.Memory) gpu.Opt[float64] { return scale(m.Reserved, 1) })},
		{
			name:  "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
			old:   "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
			id:    1648,
			unit:  "B/s",
			value: wholeGPU(nvlinkRate),
		},

		// The others only have another name.
		{name: "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", old: "DCGM_FI_DEV_MEMORY_TEMP"},
		{name: "DCGM_FI_DEV_GPU_TEMP_CELSIUS", old: "DCGM_FI_DEV_GPU_TEMP"},
		{name: "DCGM_FI_DEV_BOARD_POWER_WATTS", old: "DCGM_FI_DEV_POWER_USAGE"},
		{name: "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", old: "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"},
		{name: "DCGM_FI_DEV_XID_ERROR", old: "DCGM_FI_DEV_XID_ERRORS"},
		{
			name: "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
			old:  "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
		},
		{
			name: "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",
			old:  "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
		},
		{name: "DCGM_FI_DEV_ROW_REMAP_FAILED", old: "DCGM_FI_DEV_ROW_REMAP_FAILURE"},
		{name: "DCGM_FI_SYSTEM_DRIVER_VERSION", old: "DCGM_FI_DRIVER_VERSION"},
		{name: "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", old: "DCGM_FI_PROF_GR_ENGINE_ACTIVE"},
		{name: "DCGM_FI_PROF_TENSOR_UTIL_RATIO", old: "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"},
		{name: "DCGM_FI_PROF_DRAM_UTIL_RATIO", old: "DCGM_FI_PROF_DRAM_ACTIVE"},
	}
}

// dcgmFieldsRenamed returns the new names that no file of dcgm-exporter 4.9 has.
func dcgmFieldsRenamed() []dcgmRenamedField {
	return []dcgmRenamedField{
		{name: "DCGM_FI_DEV_FB_CAPACITY_BYTES", old: "DCGM_FI_DEV_FB_TOTAL", id: 1625, unit: "B",
			value: ofMemory(func(m *gpu.Memory) gpu.Opt[float64] { return scale(m.Total, 1) })},
		{
			name: "DCGM_FI_DEV_VIDEO_CLOCK_HERTZ",
			old:  "DCGM_FI_DEV_VIDEO_CLOCK",
			id:   1605,
			unit: "Hz",
			value: wholeGPU(func(g *gpu.GPU) gpu.Opt[float64] {
				return g.Readings.ClockHertz.Video
			}),
		},
		{
			name:  "DCGM_FI_DEV_FAN_SPEED_RATIO",
			old:   "DCGM_FI_DEV_FAN_SPEED",
			id:    1612,
			unit:  "ratio",
			value: wholeGPU(firstFan),
		},
		{name: "DCGM_FI_DEV_FB_USED_RATIO", old: "DCGM_FI_DEV_FB_USED_PERCENT"},
		{name: "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", old: "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"},
		{
			name: "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL",
			old:  "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
		},
		{
			name: "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL",
			old:  "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
		},
		{
			name: "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL",
			old:  "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
		},
		{
			name: "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL",
			old:  "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
		},
		{name: "DCGM_FI_PROF_SM_UTIL_RATIO", old: "DCGM_FI_PROF_SM_ACTIVE"},
		{name: "DCGM_FI_PROF_SM_OCCUPANCY_RATIO", old: "DCGM_FI_PROF_SM_OCCUPANCY"},
		{name: "DCGM_FI_PROF_FP64_UTIL_RATIO", old: "DCGM_FI_PROF_PIPE_FP64_ACTIVE"},
		{name: "DCGM_FI_PROF_FP32_UTIL_RATIO", old: "DCGM_FI_PROF_PIPE_FP32_ACTIVE"},
		{
			name:  "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL",
			old:   "DCGM_FI_DEV_POWER_VIOLATION",
			id:    1617,
			unit:  "s",
			value: wholeGPU(heldSeconds("sw_power_cap")),
		},
		{
			name:  "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL",
			old:   "DCGM_FI_DEV_THERMAL_VIOLATION",
			id:    1618,
			unit:  "s",
			value: wholeGPU(heldSeconds("sw_thermal_slowdown", "hw_thermal_slowdown")),
		},
		{name: "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL", old: "DCGM_FI_DEV_RETIRED_SBE"},
		{name: "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL", old: "DCGM_FI_DEV_RETIRED_DBE"},
		{name: "DCGM_FI_DEV_PAGE_RETIRED_PENDING", old: "DCGM_FI_DEV_RETIRED_PENDING"},
		{name: "DCGM_FI_PROF_FP16_UTIL_RATIO", old: "DCGM_FI_PROF_PIPE_FP16_ACTIVE"},
	}
}

// newNameFields returns the fields with their new names, otherwise as the old ones unless
// dcgmRenamedFields has another id.
func newNameFields(old []dcgmField) []dcgmField {
	byName := make(map[string]*dcgmField, len(old))
	for i := range old {
		byName[old[i].name] = &old[i]
	}

	var fields []dcgmField

	for _, n := range dcgmRenamedFields() {
		f := *byName[n.old]

		f.name = n.name
		f.newer = true
		f.byDefault = ""
		f.help = ""

		if n.id != 0 {
			f.id = n.id
			f.unit = n.unit
			f.value = n.value
		}

		fields = append(fields, f)
	}

	return fields
}
