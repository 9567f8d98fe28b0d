package hostengine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestSamplesAfterAStop: what was sampled before a long stop is not compared with what is sampled
// after it. The first values are blanks of the present, for two intervals. A short stop costs
// nothing, nor does one after which no client asks for a while.
func TestSamplesAfterAStop(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault string
		asked time.Duration // from the start until values are read again
		blank bool
	}{
		{"long", "{at: 10s, for: 5s, kind: dcgm-hang}", 15 * time.Second, true},
		{"long, in two parts", "{at: 10s, for: 2s, kind: dcgm-hang}, {at: 12s, for: 2s, kind: dcgm-hang}", 14 * time.Second, true},
		{"short", "{at: 10s, for: 2s, kind: dcgm-hang}", 12 * time.Second, false},
		{"asked late", "{at: 10s, for: 5s, kind: dcgm-hang}", 18 * time.Second, false},
		{"no stop", "{at: 60s, for: 5s, kind: dcgm-hang}", 15 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, e := start(t, scenario+"faults: ["+tt.fault+"]\n")
			s := open(t, e)
			device := Entity{GPU, 0}
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

// TestSamplesAfterAHungGPU: a GPU that hangs blocks the engine, whatever the client asks, and so
// costs the samples of all GPUs.
func TestSamplesAfterAHungGPU(t *testing.T) {
	for name, hang := range map[string]func(t *testing.T, s *Session, device Entity){
		"latest": func(t *testing.T, s *Session, device Entity) { latest(t, s, device, 1002) },
		"hierarchy": func(t *testing.T, s *Session, _ Entity) {
			if _, err := s.Hierarchy(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testHungGPU(t, hang) }) })
	}
}

func testHungGPU(t *testing.T, hang func(t *testing.T, s *Session, device Entity)) {
	n, e := start(t, scenario+"faults: [{at: 10s, for: 5s, gpu: 1, kind: hang}]\n")
	s := open(t, e)
	device := Entity{GPU, 0}
	watchAll(t, s, []uint16{1002}, device)
	advance(t, n, 9*time.Second)
	cmptest.Equal(t, "SM activity before", latest(t, s, device, 1002).Float, 0.5)

	advance(t, n, time.Second)
	done := make(chan struct{})
	go func() {
		defer close(done)
		hang(t, s, device)
	}()
	synctest.Wait() // until the call hangs
	advance(t, n, 5*time.Second)
	<-done
	cmptest.Equal(t, "SM activity when it goes on", latest(t, s, device, 1002).Float, FloatBlank)

	advance(t, n, 2*time.Second)
	cmptest.Equal(t, "SM activity two intervals later", latest(t, s, device, 1002).Float, 0.5)
}

// TestSamplesOfALongInterval: three intervals are how long a sample is kept, so a stop of 5 s costs
// none of a watch that samples every 10 s.
func TestSamplesOfALongInterval(t *testing.T) {
	n, e := start(t, scenario+"faults: [{at: 32s, for: 5s, kind: dcgm-hang}]\n")
	s := open(t, e)
	device := Entity{GPU, 0}
	watchEvery(t, s, 10*time.Second, []uint16{1002}, device)

	for range 3 {
		advance(t, n, 10*time.Second)
		latest(t, s, device, 1002)
	}

	advance(t, n, 10*time.Second)
	cmptest.Equal(t, "SM activity after the stop", latest(t, s, device, 1002).Float, 0.5)
}
