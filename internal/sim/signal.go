package sim

import (
	"math"
	"sort"
	"time"
)

// Signal is a value over time. Its zero value is zero at all times.
type Signal struct {
	constant float64
	sine     *sineWave
	points   []point // ascending by time; each value holds until the next
	repeat   time.Duration
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

// Constant is a signal that does not change.
func Constant(v float64) Signal { return Signal{constant: v} }

// At is the value after a time. A phase from 0 to 1 shifts a sine, so that the pods of one workload
// do not swing in step; without one it starts in the middle, upwards. Before the first point of
// steps or a trace the value is zero.
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
