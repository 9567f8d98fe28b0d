package hostengine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestSamplesAfterAStop: what was sampled before a long stop is not compared with what is sampled after it. The first
// values are blanks of the present, two intervals long. A short stop costs nothing, nor does one after which no client asked for a while.
func TestSamplesAfterAStop(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault string
		asked time.Duration // from the start until values are read again
		blank bool
	}{
		{"long", "{at: 10s, for: 5s, kind: dcgm-hang}", 15 * time.Second, true},
		{"short", "{at: 10s, for: 2s, kind: dcgm-hang}", 12 * time.Second, false},
		{"asked late", "{at: 10s, for: 5s, kind: dcgm-hang}", 18 * time.Second, false},
		{"no stop", "{at: 60s, for: 5s, kind: dcgm-hang}", 15 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, e := start(t, scenario+"faults: ["+tt.fault+"]\n")
			s, device := open(t, e), Entity{GPU, 0}
			watchAll(t, s, []uint16{1002}, device)
			advance(t, n, 9*time.Second)
			cmptest.Equal(t, "SM activity before", latest(t, s, device, 1002).Float, 0.5)

			advance(t, n, tt.asked-9*time.Second)
			want := Value{Entity: device, Field: 1002, Type: 'd', Micros: n.Now().UnixMicro(), Float: 0.5}
			if tt.blank {
				want.Float = FloatBlank
			}
			cmptest.Equal(t, "SM activity when it goes on", latest(t, s, device, 1002), want)

			advance(t, n, 2*time.Second)
			cmptest.Equal(t, "SM activity two intervals later", latest(t, s, device, 1002).Float, 0.5)
		})
	}
}

// TestSamplesAfterAHungGPU: a GPU that hangs blocks the engine, and so costs the samples of all GPUs.
func TestSamplesAfterAHungGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, e := start(t, scenario+"faults: [{at: 10s, for: 5s, gpu: 1, kind: hang}]\n")
		s, device := open(t, e), Entity{GPU, 0}
		watchAll(t, s, []uint16{1002}, device)
		advance(t, n, 9*time.Second)
		cmptest.Equal(t, "SM activity before", latest(t, s, device, 1002).Float, 0.5)

		advance(t, n, time.Second)
		got := make(chan Value, 1)
		go func() { got <- latest(t, s, device, 1002) }()
		synctest.Wait() // until the call hangs
		advance(t, n, 5*time.Second)
		cmptest.Equal(t, "SM activity when it goes on", (<-got).Float, FloatBlank)

		advance(t, n, 2*time.Second)
		cmptest.Equal(t, "SM activity two intervals later", latest(t, s, device, 1002).Float, 0.5)
	})
}
