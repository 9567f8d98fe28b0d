package collector

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

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
