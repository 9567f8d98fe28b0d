package advise

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestHiddenProcessesMayDraw: on a model that can draw, processes that are not known may be
// graphics processes; on one that only computes they are not.
func TestHiddenProcessesMayDraw(t *testing.T) {
	hidden := gpu.None[[]gpu.Process]()

	none := gpu.Some([]gpu.Process{})
	for _, tt := range []struct {
		model     string
		processes gpu.Opt[[]gpu.Process]
		want      Reason
	}{
		{"RTX-PRO-6000", hidden, ReasonGraphicsUnread},
		{"RTX-PRO-6000", none, ReasonNone},
		{"H100-80GB", hidden, ReasonNone},
	} {
		g := wholeGPU(t, tt.model, 0, slight(), pod("ml", "Deployment/a"))
		g.Readings.Processes = tt.processes
		cmptest.Equal(t, tt.model, recommendFor(fastOptions(), longEnough, g).Reason, tt.want)
	}
}

// TestHiddenProcessesAreAGap: a list that fails once does not end the evidence of a device that
// only its processes show to be in use. What a pod held before is not in use because its processes
// are not known.
func TestHiddenProcessesAreAGap(t *testing.T) {
	whole := wholeGPU(t, "H100-80GB", 0, slight())
	whole.Readings.Processes = gpu.Some([]gpu.Process{{PID: 100}})
	slice := slicedGPU(t, "H100-80GB", "3g.40gb", slight())

	slice.Instances[0].Processes = gpu.Some(1)
	for name, g := range map[string]gpu.GPU{"whole": whole, "slice": slice} {
		a := New(fastOptions())
		at := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
		observe := func(g gpu.GPU, seconds int) {
			for range seconds {
				at = at.Add(time.Second)
				a.Observe(&gpu.Snapshot{Time: at, Hostname: "n", GPUs: []gpu.GPU{g}})
			}
		}
		observe(g, 300)
		hidden := g
		hidden.Readings.Processes = gpu.None[[]gpu.Process]()

		hidden.Instances = append([]gpu.GPUInstance(nil), g.Instances...)
		for i := range hidden.Instances {
			hidden.Instances[i].Processes = gpu.None[int]()
		}

		before := a.deviceIn(t)
		began := before.since
		holder := before.holder
		observe(hidden, 20)
		observe(g, 10)
		after := a.deviceIn(t)
		cmptest.Equal(t, name+": began", after.since, began)
		cmptest.Equal(t, name+": the holder is the same", after.holder == holder, true)

		held := g

		held.Holders = []gpu.Holder{pod("ml", "Deployment/a")}
		if len(held.Instances) > 0 {
			held.Holders = nil
			held.Instances = append([]gpu.GPUInstance(nil), g.Instances...)
			held.Instances[0].Holders = []gpu.Holder{pod("ml", "Deployment/a")}
		}

		observe(held, 60)
		observe(hidden, 5)
		cmptest.Equal(t, name+": held after the pod", a.deviceIn(t).workload != nil, false)
	}
}

// deviceIn returns the only device that is held, or was.
func (a *Advisor) deviceIn(t *testing.T) *device {
	t.Helper()

	for _, d := range a.order {
		if !d.holder.Tenants && (!d.id.Instance().Present() || d.holder.Model != "") {
			return d
		}
	}

	t.Fatal("no device")

	return nil
}

// A GPU stays up while one of its readings lasts, and every Snapshot repeats the one before: that
// is no evidence of the time in between.
func TestReadingsThatAreOldAreAGap(t *testing.T) {
	g := wholeGPU(t, "H100-80GB", 0, slight())
	g.Holders = []gpu.Holder{pod("ml", "Deployment/a")}
	options := fastOptions()
	options.MaxGap = 15 * time.Second
	a := New(options)
	at := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	observe := func(seconds int, isRead bool) {
		for range seconds {
			at = at.Add(time.Second)
			if isRead {
				g.LastRead = at
			}

			a.Observe(&gpu.Snapshot{Time: at, Hostname: "n", GPUs: []gpu.GPU{g}})
		}
	}

	observe(11, true)
	observe(40, false)
	d := a.deviceIn(t)
	cmptest.Equal(t, "seconds observed", d.open.observed, 25.0)
	cmptest.Equal(t, "seconds held", d.open.held, 50.0)
	cmptest.Equal(t, "is idle", d.idle.IsZero(), true)
}
