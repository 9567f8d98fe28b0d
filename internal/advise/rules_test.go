package advise

import (
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestRecordIsAnAdvisorsEvidence: what does the same for five minutes at a time gives the same
// evidence, whether it is observed every minute or kept in windows.
func TestRecordIsAnAdvisorsEvidence(t *testing.T) {
	const length, week = 5 * time.Minute, 7 * 24 * time.Hour
	loadOf := func(step int) load {
		day := step / 288
		busy := float64(step*7919%100) / 100

		return load{busy: busy, sm: busy * float64(5+step*31%60) / 132, dram: busy * float64(step%7) / 20,
			gib: 4 + float64(day)/4}
	}
	a := New(fastOptions())
	r := NewRecord(start(), length, week)
	g := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, pod("ml", "Deployment/a"))
	show(a, start(), week+time.Minute, g, func(at time.Time, g *gpu.GPU) {
		l := loadOf(int(at.Add(-1).Sub(start()) / length)) // a Snapshot is about the time before it
		setActivity(g, l.busy, l.sm, l.dram)
		g.Readings.Memory.Used = gpu.Some(uint64(l.gib * (1 << 30)))
		g.Readings.Media.JPEG = gpu.None[float64]()
	})

	for step := range int(week / length) {
		l := loadOf(step)
		r.Add(Window{End: start().Add(time.Duration(step+1) * length), Busy: gpu.Some(l.busy), SM: gpu.Some(l.sm),
			DRAM: gpu.Some(l.dram), Memory: gpu.Some(l.gib * (1 << 30))})
	}

	want := evidenceOf(a.order[0].workload, a.now)
	got := *r.Facts(a.now, 80<<30).Evidence
	near := func(what string, got, want, within float64) {
		if math.Abs(got-want) > within {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("mean", got.BusyMean, want.BusyMean, 0.01) // an Advisor's is of its buckets
	near("hours", got.ObservedHours, want.ObservedHours, 0.02)
	near("10 minutes", got.Busy10Minutes, want.Busy10Minutes, 1e-6)
	near("trend", got.MemoryTrend/want.MemoryTrend, 1, 0.01) // the last day is a minute younger

	if want.MemoryTrend == 0 || !want.MediaUnread {
		t.Errorf("the history lacks what is compared: %+v", want)
	}

	type quantiles struct {
		P50, P99              float64
		Median, P95, Decisive Kernels
		Memory, Coverage      float64
		Busy, Width           [10]float64
	}
	of := func(e *Evidence) quantiles {
		return quantiles{e.BusyP50, e.BusyP99, e.Median, e.P95, e.decisive, e.MemoryBytes, e.CoverageRatio,
			e.BusyHistogram, e.WidthHistogram}
	}
	cmptest.Equal(t, "quantiles", of(&got), of(&want))
}

// TestRecordOfAMonth: what came for two days at the beginning of a month counts like what came
// since, and how far the history reaches back is known.
func TestRecordOfAMonth(t *testing.T) {
	const length, month = 5 * time.Minute, 30 * 24 * time.Hour

	r := NewRecord(start(), length, month)
	for step := range int(month / length) {
		width := 0.05
		if day := step / 288; day == 2 || day == 3 {
			width = 0.9 // for a fifteenth of the time
		}

		r.Add(Window{End: start().Add(time.Duration(step+1) * length), Busy: gpu.Some(0.5), SM: gpu.Some(0.5 * width),
			DRAM: gpu.Some(0.), Memory: gpu.Some(4. * (1 << 30))})
	}

	e := r.Facts(start().Add(month), 80<<30).Evidence
	if e.decisive.Width < 0.89 {
		t.Errorf("the width to decide by is %v; want that of the two wide days", e.decisive.Width)
	}

	cmptest.Equal(t, "known days", e.KnownDays, 30)
}
