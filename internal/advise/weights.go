package advise

import "time"

// An inference server loads the weights of its model, prepares, and then takes the memory of its
// cache at once. While it prepares (it compiles, or profiles a batch), memory is flat: that plateau
// is the weights.

const (
	// A plateau is memory that stays within plateauShare for plateauTime and plateauReadings at
	// least. Two that differ by less than plateauStep are one: a server also captures graphs.
	plateauShare    = 1.01
	plateauStep     = 1.1
	plateauTime     = 20 * time.Second
	plateauReadings = 4
	// The memory of a cache is taken within cacheTime, or from one reading to the second one after
	// it: a model that goes on loading after a pause takes longer.
	cacheTime     = 15 * time.Second
	cacheReadings = 2
)

// loads are what the last starts of a workload have shown, in MiB; start number n is at n modulo
// keptStarts.
type loads struct {
	// Weights are the plateaus before the rest was taken, 0 of a start without one; Peaks the
	// largest uses until then. Of a start without a plateau these are the largest before memory was
	// flat last: what was taken in between counts, too.
	Weights, Peaks [keptStarts]float32
}

// weights returns the weights of the model in bytes, the largest of the starts in which they were
// seen, 0 if no start has shown them; and the largest use while they were loaded, in these starts
// if there are any; 0 if unknown.
func (l *loads) weights() (bytes, peak float64) {
	if l == nil {
		return 0, 0
	}

	others := 0. // of the starts without a plateau

	for i, mib := range l.Weights {
		if mib > 0 {
			bytes = max(bytes, float64(mib))
			peak = max(peak, float64(l.Peaks[i]))
		} else {
			others = max(others, float64(l.Peaks[i]))
		}
	}

	if bytes == 0 {
		peak = others
	}

	return bytes * (1 << 20), peak * (1 << 20)
}

// numbers returns all numbers, none of which can be negative.
func (l *loads) numbers() []float64 {
	if l == nil {
		return nil
	}

	var list []float64
	for i := range l.Weights {
		list = append(list, float64(l.Weights[i]), float64(l.Peaks[i]))
	}

	return list
}

// plateau is a time in which memory was flat.
type plateau struct {
	level    float64 // largest use of memory, in MiB
	first    time.Time
	last     time.Time // last reading of it
	readings int
	from, to int     // numbers of its first and of its last reading
	earlier  float64 // largest use of memory until it began
	before   float64 // largest use of memory until it ended
}

// isLong reports whether memory was flat for long enough.
func (p *plateau) isLong() bool {
	return p.readings >= plateauReadings && p.last.Sub(p.first) >= plateauTime
}

// loading follows the memory of a start for its plateaus. The zero value is for a start without a
// reading.
type loading struct {
	readings      int
	peak          float64
	now           plateau
	last, earlier plateau // long ones
}

// follow adds a reading of memory, in MiB.
func (l *loading) follow(used float64, now time.Time) {
	l.readings++
	if used > l.now.level*plateauShare || used*plateauShare < l.now.level {
		l.now = plateau{first: now, from: l.readings, earlier: l.peak}
	}

	l.peak = max(l.peak, used)
	l.now.level = max(l.now.level, used)
	l.now.last = now
	l.now.to = l.readings
	l.now.before = l.peak

	l.now.readings++
	if !l.now.isLong() {
		return
	}

	isSame := l.now.level < l.last.level*plateauStep && l.now.level*plateauStep > l.last.level
	switch {
	case l.now.from == l.last.from: // it goes on
		l.last = l.now
	case isSame:
		first := l.last.first
		from := l.last.from
		earlier := l.last.earlier
		l.last = l.now
		l.last.first = first
		l.last.from = from
		l.last.earlier = earlier
	default:
		l.earlier = l.last
		l.last = l.now
	}
}

// weights returns the memory in MiB that was flat before all of the rest was taken at once, 0 if
// that was not seen, and the largest use until then, or else until memory was flat last.
func (l *loading) weights() (level, before float64) {
	of := &l.earlier
	rest := &l.last

	atOnce := rest.first.Sub(of.last) <= cacheTime || rest.from-of.to <= cacheReadings
	if of.level <= contextMemory || rest.level < of.level*plateauStep || !atOnce {
		return 0, rest.earlier
	}

	return of.level, of.before
}
