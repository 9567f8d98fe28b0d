package sim

import (
	"math"
	"sort"
	"time"
)

// Signal is a value that changes over time: a sine, points, or else a constant. The zero Signal is 0
// at all times.
type Signal struct {
	constant float64
	sine     *sineWave
	points   []point       // ascending by time; each value holds until the next
	repeat   time.Duration // the points begin anew after it; 0: they do not repeat
}

// sineWave swings between min and max.
type sineWave struct {
	min, max float64
	period   time.Duration
}

type point struct {
	at    time.Duration
	value float64
}

// Constant returns a signal that does not change.
func Constant(v float64) Signal { return Signal{constant: v} }

// At returns the value at a time. A phase from 0 to 1 shifts a sine, so that the pods of a workload
// do not swing in step; with phase 0 it starts in the middle and rises. Before the first point the
// value is 0.
func (s Signal) At(t time.Duration, phase float64) float64 {
	switch {
	case s.sine != nil:
		turn := phase + float64(t%s.sine.period)/float64(s.sine.period)
		return s.sine.min + (s.sine.max-s.sine.min)*(1+math.Sin(2*math.Pi*turn))/2
	case s.points != nil:
		if s.repeat > 0 {
			t %= s.repeat
		}

		next := sort.Search(len(s.points), func(i int) bool { return s.points[i].at > t })
		if next > 0 {
			return s.points[next-1].value
		}

		return 0
	}

	return s.constant
}
