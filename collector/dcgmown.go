package collector

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// exporterCounterFields returns the counters that dcgm-exporter counts itself, and the XID field,
// to which it adds labels.
func exporterCounterFields() []dcgmField {
	return []dcgmField{
		{name: "DCGM_FI_DEV_XID_ERRORS", id: 230, unit: "XID", byDefault: CounterGauge,
			help:   "The last XID error; it stays until the next one.",
			source: fromNVML, value: xidCounter(writeLastXID)},
		{name: "DCGM_EXP_XID_ERRORS_COUNT", unit: "1", source: fromCounting, value: xidCounter(writeRecentXIDs)},
		{name: "DCGM_EXP_XID_ERRORS_TOTAL", unit: "1", source: fromCounting, value: xidCounter(writeAllXIDs)},

		{
			name:   "DCGM_EXP_CLOCK_EVENTS_COUNT",
			unit:   "readings",
			source: fromCounting,
			value:  ownCounter(writeRecentClockEvents),
		},
		{
			name:   "DCGM_EXP_CLOCK_EVENTS_TOTAL",
			unit:   "1",
			source: fromCounting,
			value:  ownCounter(writeAllClockEvents),
		},
		{
			name:   "DCGM_EXP_GPU_HEALTH_STATUS",
			unit:   "0, 10 or 20",
			source: fromNVML,
			value:  ownCounter(writeHealth),
		},
	}
}

// xidCounts are the XIDs of a GPU, without those of its instances, or of a GPU instance.
type xidCounts struct {
	isGPU  bool
	list   []gpu.XIDCount
	recent map[uint64]float64 // counts within the window
	window time.Duration
}

// writeLastXID writes the XID that was seen last since the start, or 0. It leaves out XIDs that the
// kernel's log has from before the start: the value stays until the next XID, so they would raise
// an alert that does not end.
func writeLastXID(x *xidCounts, emit emitFunc) {
	var last gpu.XIDCount
	for _, one := range x.list {
		if one.Value > 0 && !one.Last.Before(last.Last) {
			last = one
		}
	}

	emit(float64(last.XID), "err_code", formatUint(last.XID), "err_msg", xidText(last.XID))
}

// writeAllXIDs writes the counts by XID. On a GPU those of WatchedXIDs begin at 0, so that
// increase() sees the first; others begin with the first.
func writeAllXIDs(x *xidCounts, emit emitFunc) {
	for _, xid := range gpu.WatchedXIDs() {
		if x.isGPU &&
			!slices.ContainsFunc(x.list, func(one gpu.XIDCount) bool { return one.XID == xid }) {
			emit(0, "xid", formatUint(xid))
		}
	}

	for _, one := range x.list {
		emit(one.Value, "xid", formatUint(one.XID))
	}
}

// writeRecentXIDs writes the counts of the window by XID, or a 0 without an XID.
func writeRecentXIDs(x *xidCounts, emit emitFunc) {
	window := formatMilliseconds(x.window)
	if len(x.recent) == 0 {
		emit(0, "window_size_in_ms", window)
	}

	for _, xid := range slices.Sorted(maps.Keys(x.recent)) {
		emit(x.recent[xid], "window_size_in_ms", window, "xid", formatUint(xid))
	}
}

// writeRecentClockEvents writes how many readings of the window had each reason that holds the
// clocks down, or a 0 without a reason.
func writeRecentClockEvents(c *dcgmCounters, g *gpu.GPU, emit emitFunc) {
	if !g.Readings.ClockEvents.Present() {
		return
	}

	window := formatMilliseconds(c.clockWindow)
	none := true

	for i, n := range c.history(g.UUID).recentClockEvents() {
		if n > 0 {
			none = false
			emit(float64(n), "window_size_in_ms", window, "clock_event", dcgmClockEvents()[i].name)
		}
	}

	if none {
		emit(0, "window_size_in_ms", window)
	}
}

// writeAllClockEvents writes how often each reason began to hold the clocks down.
func writeAllClockEvents(c *dcgmCounters, g *gpu.GPU, emit emitFunc) {
	for i, n := range c.history(g.UUID).starts {
		if n > 0 {
			emit(float64(n), "clock_event", dcgmClockEvents()[i].name)
		}
	}
}

// The results of DCGM's health checks (dcgm_structs.h, dcgmHealthWatchResults_t).
const (
	healthPass = 0
	healthWarn = 10
	healthFail = 20
)

// writeHealth writes the results of two of DCGM's health watches as the driver's readings show
// them. This is not DCGM's own result, which has thresholds over time and further watches.
func writeHealth(_ *dcgmCounters, g *gpu.GPU, emit emitFunc) {
	rows, rowsOK := g.Readings.RemappedRows.Get()
	errors, errorsOK := eccCount(g, "uncorrected", "volatile", "total").Get()
	watch := func(name string, result float64, code string) {
		emit(result, "health_watch", name, "health_error_code", code)
	}

	switch {
	case !rowsOK && !errorsOK:
	case rows.Failure:
		watch("MEM", healthFail, "DCGM_FR_ROW_REMAP_FAILURE")
	case errors > 0:
		watch("MEM", healthFail, "DCGM_FR_VOLATILE_DBE_DETECTED")
	case rows.Pending:
		watch("MEM", healthWarn, "DCGM_FR_PENDING_ROW_REMAP")
	default:
		watch("MEM", healthPass, "DCGM_FR_OK")
	}

	if events, ok := g.Readings.ClockEvents.Get(); ok {
		result := float64(healthPass)
		code := "DCGM_FR_OK"

		for _, r := range gpu.ClockEventReasons() {
			if events&r.Bit != 0 &&
				(r.Name == "sw_thermal_slowdown" || r.Name == "hw_thermal_slowdown") {
				result = healthWarn
				code = "DCGM_FR_CLOCK_THROTTLE_THERMAL"
			}
		}

		watch("THERMAL", result, code)
	}
}

func formatMilliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// dcgmClockEvent is a reason that holds clocks down and its name in dcgm-exporter.
type dcgmClockEvent struct {
	bit  gpu.ClockEvents
	name string
}

func dcgmClockEvents() [clockEventReasonCount]dcgmClockEvent {
	return [...]dcgmClockEvent{
		{0x1, "gpu_idle"},
		{0x2, "clocks_setting"},
		{0x4, "power_cap"},
		{0x8, "hw_slowdown"},
		{0x10, "sync_boost"},
		{0x20, "sw_thermal"},
		{0x40, "hw_thermal"},
		{0x80, "hw_power_brake"},
		{0x100, "display_clocks"},
	}
}
