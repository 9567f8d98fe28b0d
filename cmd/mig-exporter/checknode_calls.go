package main

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// callTimes adds up how long each function of the driver took. It is safe for concurrent use.
type callTimes struct {
	classes map[string]gpu.CallClass // by function; never modified

	mu         sync.Mutex
	byFunction map[string]*callTime
}

// callTime is how often a function was called, and how long that took.
type callTime struct {
	Function   string        `json:"function"`
	Class      gpu.CallClass `json:"class"`
	Calls      int           `json:"calls"`
	Seconds    float64       `json:"seconds"`
	MaxSeconds float64       `json:"maxSeconds"` // of the longest call
	// Unreturned has the seconds since the beginning of each call that has not returned, the longest
	// first. Seconds does not include them.
	Unreturned []float64 `json:"unreturnedSeconds,omitempty"`

	open []time.Time // when each call that has not returned began, in order
}

// classTime is how often the functions of a class were called, and how long that took.
type classTime struct {
	Class   gpu.CallClass `json:"class"`
	Calls   int           `json:"calls"`
	Seconds float64       `json:"seconds"`
}

func newCallTimes() *callTimes {
	return &callTimes{classes: gpu.ClassifiedCalls(), byFunction: map[string]*callTime{}}
}

// BeginCall counts a call before it is made, so that one that hangs is in the report.
func (c *callTimes) BeginCall(function string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	t := c.byFunction[function]
	if t == nil {
		t = &callTime{Function: function, Class: cmp.Or(c.classes[function], gpu.CallUnknown)}
		c.byFunction[function] = t
	}

	began := time.Now()
	t.Calls++
	t.open = append(t.open, began)

	return began
}

// EndCall adds the time that a call took.
func (c *callTimes) EndCall(function string, began time.Time) {
	seconds := time.Since(began).Seconds()

	c.mu.Lock()
	defer c.mu.Unlock()

	t := c.byFunction[function]
	if i := slices.Index(t.open, began); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}

	t.Seconds += seconds
	t.MaxSeconds = max(t.MaxSeconds, seconds)
}

// list returns the functions that were called, the one that took longest first.
func (c *callTimes) list() []callTime {
	c.mu.Lock()
	defer c.mu.Unlock()

	list := []callTime{}

	for _, t := range c.byFunction {
		copied := *t

		copied.open = nil
		for _, began := range t.open {
			copied.Unreturned = append(copied.Unreturned, time.Since(began).Seconds())
		}

		list = append(list, copied)
	}

	slices.SortFunc(list, func(a, b callTime) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Function, b.Function))
	})

	return list
}

// sumClasses adds up calls by class, the most expensive class first.
func sumClasses(calls []callTime) []classTime {
	list := []classTime{}

	for _, class := range gpu.CallClasses() {
		sum := classTime{Class: class}
		for _, c := range calls {
			if c.Class == class {
				sum.Calls += c.Calls
				sum.Seconds += c.Seconds
			}
		}

		if sum.Calls > 0 {
			list = append(list, sum)
		}
	}

	return list
}
