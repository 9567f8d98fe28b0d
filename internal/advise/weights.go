package advise

import "time"

// An inference server loads the weights of its model, prepares, and then takes the memory of its cache
// at once. While it prepares (it compiles, or profiles a batch), memory is flat. That plateau shows the
// size of the weights:
//
//	MiB
//	70,000                  ________  cache
//	16,000        _________|          weights: the plateau
//	     0  _____/

const (
	// On a plateau, memory stays within plateauShare for plateauTime and plateauReadings at least.
	// Two plateaus that differ by less than plateauStep are one: a server also captures graphs.
	plateauShare    = 1.01
	plateauStep     = 1.1
	plateauTime     = 20 * time.Second
	plateauReadings = 4
	// A server takes the memory of its cache within cacheTime, or within cacheReadings readings if
	// these are far apart. A model that goes on loading after a pause takes longer.
	cacheTime     = 15 * time.Second
	cacheReadings = 2
)

// loads are what the last starts of a kind have shown of weights, in MiB, by the slots of lastStarts.
type loads struct {
	// Weights are the plateaus of weights; 0 of a start without one. Peaks are the largest uses of
	// memory until the cache was taken or, of a start without such a plateau, until memory was flat
	// last.
	Weights, Peaks [keptStarts]float32
}

// weights returns the size of the model's weights in bytes, the largest of all starts; 0 if no start
// has shown them. It also returns the largest use of memory while they were loaded; 0 if unknown.
// Starts that have shown weights take precedence over others.
func (s *starts) weights() (bytes, peak float64) {
	peakOfOthers := 0. // in starts without a plateau of weights

	for _, l := range s.kinds() {
		if l.Loads == nil {
			continue
		}

		for i, mib := range l.Loads.Weights {
			if mib > 0 {
				bytes = max(bytes, float64(mib))
				peak = max(peak, float64(l.Loads.Peaks[i]))
			} else {
				peakOfOthers = max(peakOfOthers, float64(l.Loads.Peaks[i]))
			}
		}
	}

	if bytes == 0 {
		peak = peakOfOthers
	}

	return bytes * (1 << 20), peak * (1 << 20)
}

// numbers returns all numbers for workload.numbers.
func (l *loads) numbers() []float64 {
	if l == nil {
		return nil
	}

	return appendNumbers(appendNumbers(nil, l.Weights[:]...), l.Peaks[:]...)
}

// plateau is a time in which memory was flat.
type plateau struct {
	// Uses of memory in MiB: its own largest one, and the largest until it began and until it ended.
	level, peakBefore, peakAfter float64

	// Its first and last readings: times, and numbers within the start.
	begin, end  time.Time
	first, last int

	readings int // in it, or in the second one of two that were joined
}

// isLong reports whether memory was flat for long enough.
func (p *plateau) isLong() bool {
	return p.readings >= plateauReadings && p.end.Sub(p.begin) >= plateauTime
}

// loading follows the memory of a start for its plateaus. The zero value is for a start without a
// reading.
type loading struct {
	readings      int
	peak          float64
	now           plateau // may be short
	last, earlier plateau // the last two long ones
}

// follow adds a reading of memory, in MiB.
func (l *loading) follow(used float64, now time.Time) {
	l.readings++
	if used > l.now.level*plateauShare || used*plateauShare < l.now.level {
		l.now = plateau{begin: now, first: l.readings, peakBefore: l.peak}
	}

	l.peak = max(l.peak, used)
	l.now.level = max(l.now.level, used)
	l.now.peakAfter = l.peak
	l.now.end = now
	l.now.last = l.readings
	l.now.readings++

	if l.now.isLong() {
		l.keepPlateau()
	}
}

// keepPlateau keeps the current plateau as the last long one.
func (l *loading) keepPlateau() {
	goesOn := l.now.first == l.last.first
	isSame := l.now.level < l.last.level*plateauStep && l.now.level*plateauStep > l.last.level

	switch {
	case goesOn:
		l.last = l.now
	case isSame: // it began where the last one did
		joined := l.now
		joined.begin = l.last.begin
		joined.first = l.last.first
		joined.peakBefore = l.last.peakBefore
		l.last = joined
	default:
		l.earlier = l.last
		l.last = l.now
	}
}

// weights returns the memory in MiB that was flat before the cache was taken at once, and the largest
// use until then. If we have not seen that, it returns 0 and the largest use until memory was flat
// last.
func (l *loading) weights() (level, peak float64) {
	weights := &l.earlier
	cache := &l.last

	atOnce := cache.begin.Sub(weights.end) <= cacheTime || cache.first-weights.last <= cacheReadings
	if weights.level <= contextMemory || cache.level < weights.level*plateauStep || !atOnce {
		return 0, cache.peakBefore
	}

	return weights.level, weights.peakAfter
}

// shift adds a duration to the times of the plateaus.
func (l *loading) shift(by time.Duration) {
	for _, p := range []*plateau{&l.now, &l.last, &l.earlier} {
		shiftTimes(by, &p.begin, &p.end)
	}
}
