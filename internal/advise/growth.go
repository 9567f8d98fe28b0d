package advise

import (
	"math"
	"time"
)

// Memory that grows by a share of itself each day grows by more than a line through its last days says:
// 8 % a day is 71 % in a week, where the line has 52 %. We take growth for such growth if two things
// hold:
//
//   - It is steady: on each of three days or more, the rate is between leastOfMean and mostOfMean of
//     the mean rate.
//   - A constant rate fits better than a line, also without the first day, in which growth may have
//     begun.
//
// This does not hold for a leak, and hardly ever for daily maxima that go up and down at random.

const (
	// growthDays is the number of days for which memory must have room to grow.
	growthDays = 7
	// steadyPoints are the ends of three days and the beginning of the first.
	steadyPoints = 4
	leastOfMean  = 2. / 3
	mostOfMean   = 1.5
)

// dailyMaximum is the largest use of memory of a day, starts left out.
type dailyMaximum struct{ at, size float64 } // days from today, MiB

func (p dailyMaximum) log() float64  { return math.Log(p.size) }
func (p dailyMaximum) line() float64 { return p.size }

// dailyMaxima returns the largest use of memory of each day before today, the last day first, up to
// the first day without any. We leave today out: if a nightly job adds much at once, a day that has
// just begun would show it as the growth of an hour.
func (w *workload) dailyMaxima(now time.Time) (list [keptDays]dailyMaximum, n int) {
	today := dayOf(now)
	for back := int32(1); back < keptDays; back++ {
		d := w.slotOf(today - back)
		if d.Day != today-back || d.settled() <= 0 {
			break
		}

		list[n] = dailyMaximum{at: -float64(back), size: float64(d.settled())}
		n++
	}

	return list, n
}

// growthRate returns the rate at which memory grows steadily, see steadyGrowth.
func (w *workload) growthRate(now time.Time) float64 {
	points, n := w.dailyMaxima(now)
	return steadyGrowth(points[:n])
}

// steadyGrowth returns the rate at which daily maxima of memory have grown steadily, the last day first:
// 0.08 for 8 % a day; 0 if they have not. It fits the last four days, the last five and so on, as long
// as these are steady, and returns the largest rate.
func steadyGrowth(points []dailyMaximum) float64 {
	largest := 0.

	for n := steadyPoints; n <= len(points) && isSteady(points[:n]); n++ {
		if isCurved(points[:n]) && isCurved(points[:n-1]) {
			rate, _ := regress(points[:n], dailyMaximum.log)
			largest = max(largest, rate)
		}
	}

	return largest
}

// isCurved reports whether a constant rate fits better than a line.
func isCurved(points []dailyMaximum) bool {
	_, rate := regress(points, dailyMaximum.log)
	_, line := regress(points, dailyMaximum.line)

	return rate > line
}

// isSteady reports whether memory grew each day, and on none much faster or slower than the mean.
func isSteady(points []dailyMaximum) bool {
	rate := func(to, from dailyMaximum) float64 { return (to.log() - from.log()) / (to.at - from.at) }
	last := len(points) - 1
	mean := rate(points[0], points[last])

	for i := range last {
		r := rate(points[i], points[i+1])
		if !(mean > 0 && r >= leastOfMean*mean && r <= mostOfMean*mean) {
			return false
		}
	}

	return true
}

// regress fits a line through a value of the points by least squares. It returns the slope per day, and
// the share of the variance that the line explains.
func regress(points []dailyMaximum, value func(dailyMaximum) float64) (slope, explained float64) {
	var n, sx, sy, sxx, sxy, syy float64

	for _, p := range points {
		x := p.at
		y := value(p)
		n++
		sx += x
		sy += y
		sxx += x * x
		sxy += x * y
		syy += y * y
	}

	xx := n*sxx - sx*sx
	xy := n*sxy - sx*sy
	yy := n*syy - sy*sy

	return xy / xx, xy * xy / (xx * yy)
}

// growthIn returns by how many bytes memory of a size grows in growthDays, by its slope in bytes
// per day or, if that is more, by its steady rate.
func growthIn(bytes, perDay, rate float64) float64 {
	return max(growthDays*perDay, bytes*math.Expm1(growthDays*rate))
}
