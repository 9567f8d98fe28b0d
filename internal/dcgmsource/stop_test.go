package dcgmsource

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestEngineThatGoesOn: an engine that was stopped for 20 s, in a call or between two, has no
// values at first: blanks of the present, its old values, nothing at all, or an error with which
// the connection ends. None of that is a pause of profiling, and no value from before the stop is
// served.
func TestEngineThatGoesOn(t *testing.T) {
	const seconds = 3 // until it has values again

	for _, tt := range []struct {
		name   string
		change func(h *harness, v *Value)
		drops  bool
	}{
		{name: "blanks", change: func(_ *harness, v *Value) { v.Double = blankDouble }},
		{name: "old values", change: func(h *harness, v *Value) { v.Micros = h.engine.now.Add(-20 * time.Second).UnixMicro() }},
		{name: "no data", change: func(_ *harness, v *Value) { v.Status, v.Micros, v.Double = -14, 0, blankDouble }},
		{name: "another connection", change: func(_ *harness, v *Value) { v.Double = blankDouble }, drops: true},
	} {
		for _, inCall := range []bool{false, true} {
			if tt.drops && !inCall {
				continue // a connection ends by a call
			}

			t.Run(tt.name, func(t *testing.T) {
				h := mixed(t)
				h.after(10)
				h.stop(inCall, tt.drops)

				h.engine.value = func(v *Value) { tt.change(h, v) }
				for range seconds {
					for id, got := range h.after(1) {
						cmptest.Equal(t, "activity of "+string(id), got.GPU, gpu.Activity{})
						cmptest.Equal(t, "instances of "+string(id), len(got.Instances), 0)
						cmptest.Equal(t, string(id)+" is paused", got.Paused, false)
					}
				}

				h.engine.value = nil
				cmptest.Equal(t, "instances with values", len(h.after(3)[uuidA].Instances), 2)
			})
		}
	}
}

// stop stops the engine for 20 s: within a call, which returns what it had read before or fails, or
// between two.
func (h *harness) stop(inCall, drops bool) {
	h.Helper()

	asked := h.engine.now
	if !inCall {
		h.engine.now = asked.Add(20 * time.Second)
		return
	}

	h.engine.fail = func(op string, _ []Entity) error {
		if op != "latest" {
			return nil
		}

		h.engine.fail = nil
		h.engine.now = asked.Add(20 * time.Second)

		if drops {
			return Translate(op, -21, "")
		}

		h.engine.value = func(v *Value) { v.Micros = asked.UnixMicro() }

		return nil
	}

	answer, err := h.ask()
	if drops != (err != nil) {
		h.Fatalf("the call that hung: %v", err)
	}

	for id, got := range answer {
		cmptest.Equal(h.T, "activity of "+string(id)+" from before the stop", got.GPU, gpu.Activity{})
		cmptest.Equal(h.T, "instances of "+string(id)+" from before the stop", len(got.Instances), 0)
		cmptest.Equal(h.T, string(id)+" is paused", got.Paused, false)
	}
}

// TestPausedWhileStopped: profiling that was paused during the stop is taken for paused once the
// blanks have lasted longer than those of an engine that goes on. A pause from before the stop
// stays known.
func TestPausedWhileStopped(t *testing.T) {
	for _, before := range []bool{false, true} {
		h := mixed(t)
		h.after(10)

		blank := func(v *Value) { v.Double = blankDouble }
		if before {
			h.engine.value = blank
			h.after(2)
		}

		h.engine.now = h.engine.now.Add(20 * time.Second)
		h.engine.value = blank

		for second := range 10 {
			want := before || second >= 4 // three intervals and a second
			if got := h.after(1)[uuidA]; got.Paused != want {
				t.Errorf("paused before %v, second %d: paused %v, want %v", before, second+1, got.Paused, want)
			}
		}
	}
}

// TestStopDuringAPause: a call that hangs returns the blanks from before the stop. They do not end
// the pause that was known, nor do the new ones after them have to prove it again.
func TestStopDuringAPause(t *testing.T) {
	h := mixed(t)
	h.after(10)
	blank := func(v *Value) { v.Double = blankDouble }
	h.engine.value = blank
	h.after(2)

	asked := h.engine.now
	h.engine.fail = func(op string, _ []Entity) error {
		if op == "latest" {
			h.engine.fail = nil
			h.engine.now = asked.Add(20 * time.Second)
		}

		return nil
	}
	h.engine.value = func(v *Value) {
		blank(v)
		v.Micros = asked.UnixMicro()
	}
	answer, err := h.ask()
	cmptest.Equal(t, "error of the call that hung", err, nil)
	cmptest.Equal(t, "paused after the call that hung", answer[uuidA].Paused, true)

	h.engine.value = blank
	for second := range 10 {
		if !h.after(1)[uuidA].Paused {
			t.Errorf("second %d: not paused", second+1)
		}
	}
}

// TestNoDataBetweenBlanks: an engine that goes on gives blanks, then nothing, then blanks again.
// These follow no value, so they show no pause.
func TestNoDataBetweenBlanks(t *testing.T) {
	h := mixed(t)
	h.after(10)
	h.engine.now = h.engine.now.Add(20 * time.Second)
	blank := func(v *Value) { v.Double = blankDouble }

	nothing := func(v *Value) { v.Status, v.Micros, v.Double = -14, 0, blankDouble }
	for second, change := range []func(*Value){blank, nothing, blank, blank, nothing, blank} {
		h.engine.value = change
		for id, got := range h.after(1) {
			if got.Paused {
				t.Errorf("second %d: %s is taken for paused", second+1, id)
			}
		}
	}
}

// TestPausedBetweenSlowPolls: with polls that are further apart than the engine's samples nothing
// shows whether it was stopped in between. The second poll that has blanks shows a pause.
func TestPausedBetweenSlowPolls(t *testing.T) {
	h := mixed(t)
	h.after(10)

	h.engine.value = func(v *Value) { v.Double = blankDouble }
	for poll := range 4 {
		h.engine.now = h.engine.now.Add(9 * time.Second)
		if got := h.after(1)[uuidA]; got.Paused != (poll > 0) {
			t.Errorf("poll %d: paused %v", poll+1, got.Paused)
		}
	}
}
