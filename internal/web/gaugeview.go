package web

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// gauge is a reading, with a bar if we know its maximum: "12 GiB", "of 80 GiB".
type gauge struct {
	Label string
	Value string
	Of    string // the maximum; empty if the value is a ratio
	// Bar says that the gauge has a bar, and Percent how much of it is filled.
	Bar     bool
	Percent int
	Note    string // what the value is, if it is not what its column says
	// Over says that the reading is over its limit, or close to it: "over 95 %", "near slowdown".
	Over string
	// Past names the quantity in the history, if it is kept there, and Max the end of its scale.
	Past string
	Max  float64
}

// Class returns the style of the gauge's bar: "S" has the pattern of activity, "M" is plain.
func (g gauge) Class() string {
	if g.Label == smLabel || g.Label == utilizationLabel {
		return "S"
	}

	return "M"
}

// The labels of the gauges that say how busy a GPU is.
const (
	smLabel          = "SM activity"
	utilizationLabel = "Utilization"
)

// The quantities of the history, by the keys of its document.
const (
	pastMemory = "memoryUsedBytes"
	pastSM     = "smActivityRatio"
	pastPower  = "powerWatts"
)

// Above these ratios the page marks a reading as over its limit.
const (
	memoryOver = 0.95 // of all memory: the next allocation may fail
	powerOver  = 0.98 // of the power limit: clocks are lowered to keep it
)

const unknownValue = "–"

func memoryGauge(m gpu.Memory) *gauge {
	used, ok := m.Used.Get()
	if !ok {
		return nil
	}

	g := &gauge{Label: "Memory", Value: bytesText(used), Past: pastMemory}
	if total, ok := m.Total.Get(); ok && total > 0 {
		ratio := float64(used) / float64(total)
		g.Of = "of " + bytesText(total)
		g.Percent = percent(ratio)
		g.Bar = true
		g.Max = float64(total)

		if ratio > memoryOver {
			g.Over = "over 95 %"
		}
	}

	return g
}

// smGauge returns the gauge of SM activity. If it is unknown, the value is a dash without a bar:
// unknown must not look idle.
func smGauge(a gpu.Activity) gauge {
	g := gauge{Label: smLabel, Value: unknownValue, Past: pastSM, Max: 1}
	if ratio, ok := nodedoc.Finite(a.SM).Get(); ok {
		g.Value = percentText(ratio)
		g.Percent = percent(ratio)
		g.Bar = true
	}

	return g
}

func utilizationGauge(r *gpu.Readings) *gauge {
	ratio, ok := nodedoc.Finite(r.Utilization).Get()
	if !ok {
		return nil
	}

	return &gauge{Label: utilizationLabel, Value: percentText(ratio), Percent: percent(ratio), Bar: true}
}

// activityGauge returns the gauge of a GPU's SM activity or, if that is unknown, of its utilization.
// That one needs no DCGM, but it says only for how much of the time any kernel ran.
func activityGauge(g *gpu.GPU) gauge {
	sm := smGauge(g.Activity)
	if sm.Bar {
		return sm
	}

	if used := utilizationGauge(&g.Readings); used != nil {
		return *used
	}

	return sm
}

func powerGauge(r *gpu.Readings) *gauge {
	w, ok := nodedoc.Finite(r.PowerWatts).Get()
	if !ok {
		return nil
	}

	g := &gauge{Label: "Power", Value: wattsText(w), Past: pastPower}
	if limit, ok := nodedoc.Finite(r.PowerLimitWatts).Get(); ok && limit > 0 {
		g.Of = "of " + wattsText(limit)
		g.Percent = percent(w / limit)
		g.Bar = true
		g.Max = limit

		if w >= powerOver*limit {
			g.Over = "at the limit"
		}
	}

	return g
}

// temperatureGauge returns the gauge of the temperature. Its bar ends at the temperature at which the
// GPU slows down; it has none if we don't know that.
func temperatureGauge(r *gpu.Readings) *gauge {
	celsius, ok := nodedoc.Finite(r.TemperatureCelsius).Get()
	if !ok {
		return nil
	}

	g := &gauge{Label: "Temperature", Value: fmt.Sprintf("%.0f °C", celsius)}

	slowdown, ok := slowdownCelsius(r)
	if !ok || slowdown <= 0 {
		return g
	}

	g.Of = fmt.Sprintf("of %.0f", slowdown)
	g.Percent = percent(celsius / slowdown)
	g.Bar = true

	switch margin := slowdown - celsius; {
	case margin <= 0:
		g.Over = "slows down"
	case margin < health.MarginSmall:
		g.Over = "near slowdown"
	}

	return g
}

// slowdownCelsius returns the temperature at which the GPU slows down. GPUs from Hopper on report how
// far they are from it, earlier ones the threshold itself.
func slowdownCelsius(r *gpu.Readings) (float64, bool) {
	if margin, ok := nodedoc.Finite(r.TemperatureMarginCelsius).Get(); ok {
		return r.TemperatureCelsius.Or(0) + margin, true
	}

	for _, t := range r.TemperatureThresholds {
		if t.Kind == "slowdown" {
			return t.Celsius, true
		}
	}

	return 0, false
}

// gpuGauges returns all gauges of a GPU, for its card.
func gpuGauges(g *gpu.GPU) []gauge {
	var gauges []gauge

	add := func(one *gauge) {
		if one != nil {
			gauges = append(gauges, *one)
		}
	}

	add(memoryGauge(g.Readings.Memory))

	if g.Up || g.Activity.SM.Present() {
		sm := smGauge(g.Activity)
		add(&sm)
	}

	add(utilizationGauge(&g.Readings))
	add(powerGauge(&g.Readings))
	add(temperatureGauge(&g.Readings))

	return gauges
}

// rowGauges returns the gauges of a GPU's row. All GPUs have the same ones, in the order of the
// columns; an unknown reading is a dash.
func rowGauges(g *gpu.GPU) []gauge {
	activity := activityGauge(g)
	if activity.Label != smLabel {
		activity.Note = "util."
	}

	return []gauge{
		orUnknown(memoryGauge(g.Readings.Memory), "Memory"),
		activity,
		orUnknown(powerGauge(&g.Readings), "Power"),
		orUnknown(temperatureGauge(&g.Readings), "Temperature"),
	}
}

func orUnknown(g *gauge, label string) gauge {
	if g == nil {
		return gauge{Label: label, Value: unknownValue}
	}

	return *g
}

// whyNoActivity says why the SM activity of a GPU that answers is unknown; empty if it is known.
func whyNoActivity(snap *gpu.Snapshot, g *gpu.GPU) string {
	if !g.Up || g.Activity.SM.Present() {
		return ""
	}

	dcgm := gpu.None[nodedoc.SourceState]()
	if s, known := sourceState(snap, gpu.SourceDCGM); known {
		dcgm = gpu.Some(nodedoc.NewSource(&s))
	}

	return "SM activity is " + nodedoc.WhyNoActivity(g.ActivitySource, dcgm) + "."
}
