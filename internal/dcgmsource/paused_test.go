package dcgmsource

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestPaused: a paused engine gives blanks of the present. Values that are old or have a status say
// nothing of a pause, nor does a blank of another kind.
func TestPaused(t *testing.T) {
	frozen := int64(0)

	for _, tt := range []struct {
		name   string
		change func(v *Value)
		paused bool
	}{
		{"blanks", func(v *Value) { v.Double = blankDouble }, true},
		{"integer blanks", func(v *Value) { v.Type, v.Int64 = TypeInt64, blankInt64 }, true},
		{"blanks of ratios that are not supported", func(v *Value) { v.Double = blankDouble + 2 }, false},
		{"frozen values", func(v *Value) { v.Micros = frozen }, false},
		{"frozen blanks", func(v *Value) { v.Micros, v.Double = frozen, blankDouble }, false},
		{"no data", func(v *Value) { v.Status, v.Micros, v.Double = -14, 0, blankDouble }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := mixed(t)
			h.after(10)
			frozen = h.engine.now.UnixMicro()

			h.engine.value = tt.change
			for id, got := range h.after(5) {
				cmptest.Equal(t, fmt.Sprintf("activity of %s", id), got.GPU, gpu.Activity{})
				cmptest.Equal(t, fmt.Sprintf("instances of %s", id), len(got.Instances), 0)
				cmptest.Equal(t, fmt.Sprintf("time of %s", id), got.Time, time.Time{})
				cmptest.Equal(t, fmt.Sprintf("%s is paused", id), got.Paused, tt.paused)
			}

			h.engine.value = nil
			if got := h.after(1)[uuidA]; len(got.Instances) != 2 || got.Paused {
				t.Errorf("when it goes on: %+v", got)
			}
		})
	}
}

// TestPausedBeforeConnecting: an engine that is paused refuses watches, or they bring blanks only.
// It is tried again every second.
func TestPausedBeforeConnecting(t *testing.T) {
	for _, refuses := range []bool{true, false} {
		h := mixed(t)
		blank := func(v *Value) { v.Double = blankDouble }
		fail := func(op string, _ []Entity) error {
			if op == "watch" {
				return Translate("watch", -54, "The hostengine is paused")
			}

			return nil
		}

		seconds := 12

		if refuses {
			h.engine.fail = fail
			seconds = 1
		} else {
			h.engine.value = blank
		}

		for range 3 {
			answer := h.after(seconds)
			if len(answer) != 2 {
				t.Errorf("refuses %v: %d GPUs in the answer", refuses, len(answer))
			}

			for id, got := range answer {
				if !got.Paused || !got.Time.IsZero() {
					t.Errorf("refuses %v: %s: %+v", refuses, id, got)
				}
			}

			seconds = 20
		}

		h.engine.fail = nil
		h.engine.value = nil
		got := h.after(4)
		when := fmt.Sprintf("refuses %v, when it goes on: ", refuses)
		cmptest.Equal(t, when+"GPU instances", len(got[uuidA].Instances), 2)
		cmptest.Equal(t, when+"the other GPU is present", got[uuidB].GPU.SM.Present(), true)
		cmptest.Equal(t, when+"paused", got[uuidA].Paused, false)
		cmptest.Equal(t, when+"groups", len(h.engine.groups), 3)

		if n := strings.Count(h.lines.String(), "does not profile a GPU"); n > 2 {
			t.Errorf("said %d times:\n%s", n, h.lines.String())
		}
	}
}

// TestPausedThroughALayoutChange: until the new watches can show it, a pause is taken to last. If
// they never come, it does not.
func TestPausedThroughALayoutChange(t *testing.T) {
	for _, follows := range []bool{true, false} {
		h := mixed(t)
		h.after(10)
		h.engine.value = func(v *Value) { v.Double = blankDouble }
		h.after(2)

		h.node.GPUs[0].MIG.LayoutGeneration++
		if !follows {
			h.engine.tree[0].Instance = 5
		}

		for second := range 30 {
			if got := h.after(1)[uuidA]; got.Paused != (follows || second < 12) {
				t.Errorf("follows %v, second %d: %+v", follows, second+1, got)
			}
		}
	}
}

// TestBlanksOfNewWatches: the first two samples of a watch have nothing to be compared with: blanks
// with status 0 and a timestamp of the present (DcgmGpmManager.cpp). They are no pause, from the
// first connection on as after each later one.
func TestBlanksOfNewWatches(t *testing.T) {
	h := mixed(t)
	samples := map[Entity]int{}
	h.engine.value = func(v *Value) {
		if v.Field == fieldSM || v.Field == fieldPCIeTransmit {
			samples[v.Entity]++
		}

		if samples[v.Entity] <= 2 {
			v.Double = blankDouble
		}
	}

	for range 3 {
		for second := range 10 {
			for id, got := range h.after(1) {
				if got.Paused {
					t.Errorf("second %d: %s is taken for paused", second+1, id)
				}
			}
		}

		clear(samples)

		h.engine.fail = func(op string, _ []Entity) error {
			h.engine.fail = nil
			return Translate(op, -21, "")
		}
		if _, err := h.ask(); err == nil {
			t.Fatal("no error")
		}

		h.engine.now = h.engine.now.Add(minBackoff)
	}
}
