package sim

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSteppedClockMovesOnlyWhenAdvanced(t *testing.T) {
	c := NewClock(ClockStep)
	if !c.Now().Equal(StepStart()) {
		t.Errorf("starts at %s", c.Now())
	}

	if err := c.Advance(90 * time.Second); err != nil {
		t.Fatal(err)
	}

	if got := c.Now().Sub(c.Start()); got != 90*time.Second {
		t.Errorf("moved by %s", got)
	}

	if err := c.Advance(-time.Second); err == nil {
		t.Error("went back")
	}
}

func TestRunningClocks(t *testing.T) {
	for _, tc := range []struct {
		mode ClockMode
		want time.Duration
	}{{ClockReal, 2 * time.Second}, {ClockX60, 2 * time.Minute}} {
		synctest.Test(t, func(t *testing.T) {
			c := NewClock(tc.mode)
			time.Sleep(2 * time.Second)

			if got := c.Now().Sub(c.Start()); got != tc.want {
				t.Errorf("%s: %s passed in two seconds, want %s", tc.mode, got, tc.want)
			}

			if err := c.Advance(time.Second); err == nil {
				t.Errorf("%s: can be advanced", tc.mode)
			}

			if !c.waitUntil(c.Now().Add(time.Hour), nil) {
				t.Errorf("%s: did not wait for an hour", tc.mode)
			}
		})
	}
}

func TestClockModes(t *testing.T) {
	for _, good := range []string{"real", "step", "x60"} {
		if m, err := ParseClockMode(good); err != nil || string(m) != good {
			t.Errorf("%s: %v, %v", good, m, err)
		}
	}

	if _, err := ParseClockMode("x2"); err == nil {
		t.Error("x2 is a clock")
	}
}

// A node on a running clock follows its scenario without any call in between.
func TestNodeOnARunningClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Parse("test.yaml", []byte(podsText))
		if err != nil {
			t.Fatal(err)
		}

		n, err := New(s, NewClock(ClockX60))
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		time.Sleep(2 * time.Minute)

		if _, ok := findContainer(n, "long"); !ok || !recorded(n, "default/short: ended") {
			t.Error("two hours later the pods are not as planned")
		}

		before := state(t, n, 0)
		time.Sleep(500 * time.Millisecond)

		after := state(t, n, 0)
		if got, want := after.Joules-before.Joules, 30*before.Watts; got < 0.9*want || got > 1.1*want {
			t.Errorf("%g J in half a minute, want about %g", got, want)
		}
	})
}

func TestAdvanceIsBounded(t *testing.T) {
	c := NewClock(ClockStep)
	for _, by := range []time.Duration{-time.Second, maxAdvance + 1} {
		if err := c.Advance(by); err == nil || !c.Now().Equal(StepStart()) {
			t.Errorf("advance by %s: %v, now %s", by, err, c.Now())
		}
	}
}
