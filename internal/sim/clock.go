package sim

import (
	"fmt"
	"sync"
	"time"
)

// ClockMode is how simulated time passes.
type ClockMode string

// The modes of a clock.
const (
	ClockReal ClockMode = "real" // as the wall clock
	ClockStep ClockMode = "step" // only when Advance is called, from StepStart on
	ClockX60  ClockMode = "x60"  // a minute in a second
)

// StepStart is the time at which a stepped clock begins.
func StepStart() time.Time { return time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC) }

// ParseClockMode reads the value of --sim.clock.
func ParseClockMode(s string) (ClockMode, error) {
	switch m := ClockMode(s); m {
	case ClockReal, ClockStep, ClockX60:
		return m, nil
	}

	return "", fmt.Errorf("clock %q: expected real, step or x60", s)
}

// Clock is simulated time. It is safe for concurrent use.
type Clock struct {
	start  time.Time     // when the simulated node began
	speed  float64       // simulated seconds in a real second; 0 for a stepped clock
	since  time.Time     // when this process created the clock, with a monotonic reading
	before time.Duration // real time from start to since; 0 unless another process began the node

	mu      sync.Mutex
	now     time.Time     // the time of a stepped clock
	changed chan struct{} // closed and replaced by every Advance
}

// NewClock starts a clock.
func NewClock(mode ClockMode) *Clock {
	c := &Clock{changed: make(chan struct{}), since: time.Now()}

	switch mode {
	case ClockStep:
		c.start = StepStart()
		c.now = c.start
	case ClockX60:
		c.start = c.since
		c.speed = 60
	default:
		c.start = c.since
		c.speed = 1
	}

	return c
}

// NewSteppedClock returns a stepped clock that begins at a time.
func NewSteppedClock(start time.Time) *Clock {
	c := NewClock(ClockStep)
	c.start = start
	c.now = start

	return c
}

// Start returns when the clock began; a scenario's times count from then.
func (c *Clock) Start() time.Time { return c.start }

// Now returns the simulated time.
func (c *Clock) Now() time.Time {
	if c.speed == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()

		return c.now
	}

	return c.start.Add(time.Duration(float64(c.before+time.Since(c.since)) * c.speed))
}

// startAt sets the start to that of a node that another process has begun. The clock must not be in
// use yet.
func (c *Clock) startAt(start time.Time) {
	c.start = start
	c.before = max(c.since.Sub(start), 0)
}

// moveTo moves a stepped clock to the time of another process that shares it, unless it is past that
// already.
func (c *Clock) moveTo(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if now.After(c.now) {
		c.now = now
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// maxAdvance bounds one step: every second of it is simulated.
const maxAdvance = 24 * time.Hour

// checkAdvance returns an error if the clock cannot make a step.
func (c *Clock) checkAdvance(by time.Duration) error {
	if c.speed != 0 {
		return fmt.Errorf(
			"advance: the clock moves by itself; only a stepped clock can be advanced",
		)
	}

	if by < 0 || by > maxAdvance {
		return fmt.Errorf("advance by %s: expected 0s to %s at a time", by, maxAdvance)
	}

	return nil
}

// Advance moves a stepped clock; other clocks move by themselves and refuse.
func (c *Clock) Advance(by time.Duration) error {
	if err := c.checkAdvance(by); err != nil {
		return err
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.now = c.now.Add(by)
	close(c.changed)
	c.changed = make(chan struct{})

	return nil
}

// realTimeTo returns the real time that is left to a simulated time; ok is false if only Advance
// can reach it.
func (c *Clock) realTimeTo(t time.Time) (d time.Duration, ok bool) {
	if c.speed == 0 {
		return 0, false
	}

	d = time.Duration(float64(t.Sub(c.Now())) / c.speed)

	return max(d, 0) + time.Millisecond, true // never early by rounding
}

// advanced returns a channel that the next Advance closes.
func (c *Clock) advanced() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.changed
}

// waitUntil blocks until the simulated time is t, or until stop is closed. A zero t is never
// reached. It reports whether t was reached.
func (c *Clock) waitUntil(t time.Time, stop <-chan struct{}) bool {
	if t.IsZero() {
		<-stop
		return false
	}

	for {
		advanced := c.advanced()
		if !c.Now().Before(t) {
			return true
		}

		if !c.sleep(t, advanced, stop) {
			return false
		}
	}
}

// sleep waits until t may have been reached. It returns false if stop is closed.
func (c *Clock) sleep(t time.Time, advanced, stop <-chan struct{}) bool {
	var due <-chan time.Time // nil for a stepped clock

	if d, ok := c.realTimeTo(t); ok {
		timer := time.NewTimer(d)
		defer timer.Stop()
		due = timer.C
	}

	select {
	case <-stop:
		return false
	case <-advanced:
	case <-due:
	}

	return true
}
