package nvmlsource_test

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func (d spyDevice) GetTemperatureThreshold(kind nvml.TemperatureThresholds) (uint32, nvml.Return) {
	celsius, ret := d.Device.GetTemperatureThreshold(kind)
	if offset, says := d.spy.thresholds[kind]; says {
		return uint32(offset), nvml.SUCCESS
	}

	return celsius, ret
}

// TestTemperatureMargin: GPUs from Hopper on report how far they are from slowing down, and no
// thresholds.
func TestTemperatureMargin(t *testing.T) {
	n := newNode(t, "", "  - {model: H100-80GB}\n  - {model: A100-40GB}")
	ids := n.discover()

	hopper := n.read(ids[0])

	ampere := n.read(ids[1])
	for _, g := range []gpu.GPU{hopper, ampere} {
		cmptest.Equal(t, "errors", g.Errors, nil)
	}

	margin, known := hopper.Readings.TemperatureMarginCelsius.Get()
	if celsius := hopper.Readings.TemperatureCelsius.Or(0); !known || margin+celsius != 87 {
		t.Errorf("an H100 at %v C: margin %v, known %v", celsius, margin, known)
	}

	cmptest.Equal(t, "thresholds of an H100", hopper.Readings.TemperatureThresholds, nil)
	cmptest.Equal(t, "margin of an A100", ampere.Readings.TemperatureMarginCelsius, gpu.None[float64]())
	cmptest.Equal(t, "thresholds of an A100", len(ampere.Readings.TemperatureThresholds), 3)

	// Both are in the slow tier, and a call that is not supported is not repeated there.
	n.spy.taken()
	n.advance(time.Second)

	if calls := n.readAll(ids); calls["GetMarginTemperature"]+calls["GetTemperatureThreshold"] > 0 {
		t.Errorf("between two slow tiers: %v", calls)
	}

	n.advance(15 * time.Second)

	if calls := n.readAll(ids); calls["GetMarginTemperature"] != 1 || calls["GetTemperatureThreshold"] != 3 {
		t.Errorf("the slow tier of both asks %d times for margins and %d times for thresholds, want 1 and 3",
			calls["GetMarginTemperature"], calls["GetTemperatureThreshold"])
	}
}

// readAll reads GPUs and returns the calls that it took.
func (n *node) readAll(ids []gpu.UUID) map[string]int {
	for _, id := range ids {
		n.read(id)
	}

	return n.spy.taken()
}

// TestTemperatureMarginThatHasFallen: a GPU hotter than its limit has a negative margin.
func TestTemperatureMarginThatHasFallen(t *testing.T) {
	n := newNode(t, "", "  - {model: H100-80GB}\nfaults:\n  - {gpu: 0, kind: overheat, celsius: 93}")
	if margin := n.read(n.discover()[0]).Readings.TemperatureMarginCelsius; margin != gpu.Some(-6.0) {
		t.Errorf("at 93 C with a limit of 87: margin %v", margin)
	}
}

// TestTemperatureMarginOfAnOldDriver: drivers before R565 do not have the call, which is no error.
func TestTemperatureMarginOfAnOldDriver(t *testing.T) {
	n := startNode(t, "version: 1\nnode: {driver: \"550.54.15\"}\ngpus: [{model: H100-80GB}]\n")

	g := n.read(n.discover()[0])
	if g.Readings.TemperatureMarginCelsius.Present() || len(g.Errors) > 0 {
		t.Errorf("margin %v, errors %v", g.Readings.TemperatureMarginCelsius, g.Errors)
	}
}

// TestThresholdsThatAreOffsets: some drivers answer with the offset to a limit, which is negative
// and arrives as 4.29e9. Nothing above 200 C is a threshold of a GPU.
func TestThresholdsThatAreOffsets(t *testing.T) {
	n := newNode(t, "", whole)
	n.spy.thresholds = map[nvml.TemperatureThresholds]int32{
		nvml.TEMPERATURE_THRESHOLD_SHUTDOWN: -8, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN: -2,
		nvml.TEMPERATURE_THRESHOLD_MEM_MAX: 200,
	}
	g := n.read(n.discover()[0])
	cmptest.Equal(t, "errors", g.Errors, nil)
	cmptest.Equal(t, "thresholds", g.Readings.TemperatureThresholds,
		[]gpu.TemperatureThreshold{{Kind: "mem_max", Celsius: 200}})
}
