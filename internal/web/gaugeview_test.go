package web

import (
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
)

// TestGaugesOverLimits: what is over its limit says so in words, and what is just below it does
// not.
func TestGaugesOverLimits(t *testing.T) {
	for name, test := range map[string]struct {
		change func(r *gpu.Readings)
		want   string
	}{
		"in order":         {func(*gpu.Readings) {}, ""},
		"memory at 95 %":   {func(r *gpu.Readings) { r.Memory = memory(100*gib, 95*gib) }, ""},
		"memory over 95 %": {func(r *gpu.Readings) { r.Memory = memory(100*gib, 95*gib+1) }, "Memory over 95 %"},
		"power below":      {func(r *gpu.Readings) { r.PowerWatts = gpu.Some(391.0) }, ""},
		"power at limit":   {func(r *gpu.Readings) { r.PowerWatts = gpu.Some(393.0) }, "Power at the limit"},
		"margin of 3":      {func(r *gpu.Readings) { r.TemperatureMarginCelsius = gpu.Some(3.0) }, ""},
		"margin of 2":      {func(r *gpu.Readings) { r.TemperatureMarginCelsius = gpu.Some(2.0) }, "Temperature near slowdown"},
		"margin of 0":      {func(r *gpu.Readings) { r.TemperatureMarginCelsius = gpu.Some(0.0) }, "Temperature slows down"},
		"threshold": {func(r *gpu.Readings) {
			r.TemperatureThresholds = []gpu.TemperatureThreshold{{Kind: "slowdown", Celsius: 35}}
		}, "Temperature near slowdown"},
		"its own margin counts": {func(r *gpu.Readings) {
			r.TemperatureMarginCelsius = gpu.Some(50.0)
			r.TemperatureThresholds = []gpu.TemperatureThreshold{{Kind: "slowdown", Celsius: 35}}
		}, ""},
	} {
		g := bareGPU(0)
		test.change(&g.Readings)

		var over []string

		for _, gauge := range gpuGauges(&g) {
			if gauge.Over != "" {
				over = append(over, gauge.Label+" "+gauge.Over)
			}
		}

		cmptest.Equal(t, name, strings.Join(over, ", "), test.want)
		report := judge(publish(&gpu.Snapshot{GPUs: []gpu.GPU{g}}))()
		cmptest.Equal(t, name+": unhealthy", report.StateOf(&g) != health.Healthy, strings.HasPrefix(test.want, "Temperature"))
	}
}

// TestRowFiguresHaveColumns: the row of each GPU has the same columns, whatever is known of it.
func TestRowFiguresHaveColumns(t *testing.T) {
	for _, g := range nodeFixture().GPUs {
		figures := rowGauges(&g)
		cmptest.Equal(t, "columns", len(figures), 4)
		cmptest.Equal(t, "first", figures[0].Label, "Memory")
		cmptest.Equal(t, "last", figures[3].Label, "Temperature")
	}

	shared := sharedGPU(0)
	cmptest.Equal(t, "utilization instead of activity", rowGauges(&shared)[1].Value, "41 %")
	cmptest.Equal(t, "said so", rowGauges(&shared)[1].Note, "util.")
}

// TestWhyNoActivity: the page says why SM activity is missing, and nothing where it is there.
func TestWhyNoActivity(t *testing.T) {
	snap := nodeFixture()
	free := freeGPU(0)
	cmptest.HasTexts(t, whyNoActivity(snap, &free), "no DCGM is configured (--dcgm.address)")

	snap.Sources = append(snap.Sources, gpu.SourceState{Name: gpu.SourceDCGM, Err: gpu.ErrUnavailable})
	cmptest.HasTexts(t, whyNoActivity(snap, &free), gpu.ErrUnavailable.Error())

	free.ActivitySource = gpu.ActivityGPM
	cmptest.HasTexts(t, whyNoActivity(snap, &free), "two readings")

	held := wholeGPU(0)
	cmptest.Equal(t, "known", whyNoActivity(snap, &held), "")

	down := downGPU(0)
	cmptest.Equal(t, "a GPU that does not answer has other worries", whyNoActivity(snap, &down), "")
}
