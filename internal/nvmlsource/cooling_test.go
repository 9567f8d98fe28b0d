package nvmlsource_test

import (
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func (d spyDevice) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	state, ret := d.Device.GetPerformanceState()
	if d.spy.pstate.Present() {
		return d.spy.pstate.Or(0), ret
	}

	return state, ret
}

func TestPerformanceState(t *testing.T) {
	n := newNode(t, "", "  - {model: RTX-PRO-6000}")

	id := n.discover()[0]
	if got := n.read(id).Readings.PerformanceState; got != gpu.Some(8) {
		t.Errorf("an idle RTX PRO 6000: %v, want P8", got)
	}

	for _, c := range []struct {
		says nvml.Pstates
		want gpu.Opt[int]
	}{
		{nvml.PSTATE_0, gpu.Some(0)}, {nvml.PSTATE_15, gpu.Some(15)}, {nvml.PSTATE_UNKNOWN, gpu.None[int]()},
		{-1, gpu.None[int]()},
	} {
		n.spy.pstate = gpu.Some(c.says)
		n.advance(time.Second)

		if got := n.read(id).Readings.PerformanceState; got != c.want {
			t.Errorf("the driver says %d: %v, want %v", c.says, got, c.want)
		}
	}
}

// Fans are read with the slow tier; on a GPU without fans that is tried once.
func TestFans(t *testing.T) {
	n := newNode(t, "", "  - {model: RTX-PRO-6000, fans: 2}\n  - {model: H100-80GB}")
	ids := n.discover()
	g := n.read(ids[0])

	want := []gpu.Fan{{Index: 0, Speed: 0.3}, {Index: 1, Speed: 0.3}}
	if !slices.Equal(g.Readings.Fans, want) || len(g.Errors) > 0 {
		t.Errorf("fans %v, errors %v; want %v", g.Readings.Fans, g.Errors, want)
	}

	if g := n.read(ids[1]); g.Readings.Fans != nil || len(g.Errors) > 0 {
		t.Errorf("a GPU without fans: %v, errors %v", g.Readings.Fans, g.Errors)
	}

	n.spy.taken()
	n.advance(time.Second)

	if g := n.read(ids[0]); !slices.Equal(g.Readings.Fans, want) {
		t.Errorf("between two slow tiers: %v, want %v", g.Readings.Fans, want)
	}

	if calls := n.spy.taken(); calls["GetNumFans"]+calls["GetFanSpeed"] > 0 {
		t.Errorf("fans are asked for in every poll: %v", calls)
	}

	n.advance(15 * time.Second)
	n.read(ids[0])
	n.read(ids[1])

	if calls := n.spy.taken(); calls["GetNumFans"] != 1 || calls["GetFanSpeed"] != 2 {
		t.Errorf("the slow tier of both asks %d times for fans and %d times for speeds, want 1 and 2", calls["GetNumFans"],
			calls["GetFanSpeed"])
	}

	n.spy.set("GetFanSpeed", nvml.ERROR_UNKNOWN)
	n.advance(15 * time.Second)

	if g := n.read(ids[0]); g.Readings.Fans != nil || errorOf(g.Errors, gpu.ReadingFans) == nil {
		t.Errorf("fans that do not report: %v, errors %v", g.Readings.Fans, g.Errors)
	}
}
