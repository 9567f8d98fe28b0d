package sim

import (
	"strconv"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestOverheat: temperature, clocks and the reasons for these follow from how hot the GPU is made;
// afterwards it cools down.
func TestOverheat(t *testing.T) {
	for _, c := range []struct {
		celsius int
		reasons gpu.ClockEvents
	}{
		{20, reasonIdle}, // cooler than it is: nothing happens
		{86, reasonIdle},
		{88, reasonIdle | reasonSWThermal},
		{92, reasonIdle | reasonSWThermal | reasonHWThermal | reasonHWSlowdown},
	} {
		n := faulty(t, "  - {at: 10s, for: 1m, gpu: 1, kind: overheat, celsius: "+strconv.Itoa(c.celsius)+"}\n")
		before := state(t, n, 1)
		advance(t, n, 30*time.Second)

		s := state(t, n, 1)

		other := state(t, n, 0)
		if want := max(c.celsius, before.Celsius); s.Celsius != want || s.ClockEvents != c.reasons {
			t.Errorf("at %d: %d C for %#x, want %d C for %#x", c.celsius, s.Celsius, s.ClockEvents, want, c.reasons)
		}

		if other.Celsius > before.Celsius+4 || other.ClockEvents != reasonIdle {
			t.Errorf("at %d: another GPU has %d C for %#x", c.celsius, other.Celsius, other.ClockEvents)
		}

		advance(t, n, time.Minute)

		if s := state(t, n, 1); s.Celsius > max(before.Celsius, c.celsius-10) || s.ClockEvents != reasonIdle {
			t.Errorf("20 seconds after %d: %d C for %#x", c.celsius, s.Celsius, s.ClockEvents)
		}
	}
}

// TestSlowdownHalvesClocks: what slows a GPU down in hardware halves its clock, whatever runs.
func TestSlowdownHalvesClocks(t *testing.T) {
	const busy = "version: 1\nnode: {kubernetes: false}\ngpus: [{model: H100-80GB}]\nworkloads: [{name: w, memory: " +
		"1GiB, sm: 60}]\nprocesses: [{gpu: 0, workload: w}]\n"
	for fault, reasons := range map[string]gpu.ClockEvents{
		"power-brake":           reasonHWPowerBrake | reasonHWSlowdown,
		"overheat, celsius: 95": reasonSWThermal | reasonHWThermal | reasonHWSlowdown,
	} {
		n := start(t, busy+"faults: [{at: 1m, for: 1m, kind: "+fault+"}]\n")
		full := state(t, n, 0)
		advance(t, n, 90*time.Second)
		s := state(t, n, 0)
		cmptest.Equal(t, fault+": clock events", s.ClockEvents, reasons)

		if most, least := full.SMMHz/2, full.SMMHz/2-15; s.SMMHz > most || s.SMMHz < least {
			t.Errorf("%s: %d MHz, want %d to %d", fault, s.SMMHz, least, most)
		}

		advance(t, n, 2*time.Minute)

		if s := state(t, n, 0); s.ClockEvents != 0 || s.SMMHz != full.SMMHz {
			t.Errorf("after %s: %d MHz for %#x", fault, s.SMMHz, s.ClockEvents)
		}
	}
}
