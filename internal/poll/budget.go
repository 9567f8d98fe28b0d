package poll

import (
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Budget limits how much readings may slow down other users of the driver. While they cost more we
// read less often. Control's readings and those after an event are made anyway.
type Budget struct {
	// Seconds is how many seconds of driver calls that can keep others waiting we may make in a
	// second, added up over threads. 0 is no limit.
	Seconds float64
	// Interval and SlowEvery are how often we read the fast and the slow tier within the budget.
	// Interval is the loop's.
	Interval, SlowEvery time.Duration
	// Costs returns the cost of readings since the start; nil: there is no limit.
	Costs func() gpu.ReadCosts
}

const (
	// budgetWindow is how long we measure costs before we change the pace: two readings of the slow
	// tier.
	budgetWindow = 30 * time.Second
	// easeBelow is the share of the budget below which readings must stay if we read a tier more
	// often again. At the budget itself we would soon stretch it again.
	easeBelow = 0.8
	// leastShare is the least share of all costs of a tier that we stretch: a cheap tier saves
	// nothing.
	leastShare = 0.1
	// longestFast and longestSlow are the longest periods to which we stretch the tiers.
	longestFast = 5 * time.Second
	longestSlow = 2 * time.Minute
)

// LongestInterval returns the longest time between two readings that the budget allows if the
// configured one is interval.
func LongestInterval(interval time.Duration) time.Duration { return max(interval, longestFast) }

// pacer decides how often we read the tiers. It measures in real time, as the driver's calls take
// it.
type pacer struct {
	budget     Budget
	fast, slow pacedTier

	began   time.Time     // the start of the window
	atBegin gpu.ReadCosts // the costs at that time
	overrun bool          // a tier is stretched
	skipped int           // ticks without a reading since the last reading
}

// pacedTier is a tier that we read every factor*every: every 3 s with factor 3 and every 1 s.
type pacedTier struct {
	every  time.Duration
	factor int
	most   int     // the largest factor
	cost   float64 // of one reading of one GPU, in seconds, in the last window that had any
}

func newPacedTier(every, longest time.Duration) pacedTier {
	most := 1
	if every > 0 {
		most = max(1, int(longest/every))
	}

	return pacedTier{every: every, factor: 1, most: most}
}

// perSecond returns the cost of reading a number of GPUs for a second if the tier is stretched by
// factor.
func (t *pacedTier) perSecond(gpus, factor int) float64 {
	if t.every <= 0 {
		return 0
	}

	return t.cost * float64(gpus) / (float64(factor) * t.every.Seconds())
}

// longer returns the next larger factor. Factors are powers of two, and t.most.
func (t *pacedTier) longer() int { return min(2*t.factor, t.most) }

// shorter returns the factor before it, 1 for 1.
func (t *pacedTier) shorter() int {
	factor := 1
	for 2*factor < t.factor {
		factor *= 2
	}

	return factor
}

func (t *pacedTier) pace() gpu.TierPace {
	return gpu.TierPace{Configured: t.every, Now: time.Duration(t.factor) * t.every}
}

func newPacer(b Budget) pacer {
	return pacer{
		budget: b,
		fast:   newPacedTier(b.Interval, longestFast),
		slow:   newPacedTier(b.SlowEvery, longestSlow),
	}
}

// isDue reports whether we read the GPUs in this tick of the loop.
func (p *pacer) isDue() bool { return p.skipped+1 >= p.fast.factor }

// pace returns how often we read the tiers.
func (p *pacer) pace() gpu.Pace { return gpu.Pace{Fast: p.fast.pace(), Slow: p.slow.pace()} }

// judge compares the costs with the budget, and stretches or eases a tier by one step at the end of
// a window, or earlier if the whole window's budget is spent. It reports whether p.overrun has
// changed.
func (p *pacer) judge(now time.Time, gpus int) (changed bool) {
	if p.budget.Seconds <= 0 || p.budget.Costs == nil || gpus == 0 {
		return false
	}

	costs := p.budget.Costs()
	if p.began.IsZero() {
		p.began = now
		p.atBegin = costs

		return false
	}

	spent := (costs.Fast.Took + costs.Slow.Took - p.atBegin.Fast.Took - p.atBegin.Slow.Took).Seconds()

	ended := now.Sub(p.began) >= budgetWindow
	if !ended && spent <= p.budget.Seconds*budgetWindow.Seconds() {
		return false
	}

	p.fast.measure(costs.Fast, p.atBegin.Fast)
	p.slow.measure(costs.Slow, p.atBegin.Slow)

	// The budget may be spent early by one reading of the slow tier, which is within the budget
	// over time.
	if !p.stretch(gpus) && !ended {
		return false
	}

	if ended && p.perSecond(gpus) <= p.budget.Seconds {
		p.ease(gpus)
	}

	p.began = now
	p.atBegin = costs

	before := p.overrun
	p.overrun = p.fast.factor > 1 || p.slow.factor > 1

	return p.overrun != before
}

// measure sets the tier's cost to the mean of its readings between two times. Without a reading it
// stays.
func (t *pacedTier) measure(now, before gpu.TierCost) {
	if readings := now.Readings - before.Readings; readings > 0 {
		t.cost = (now.Took - before.Took).Seconds() / float64(readings)
	}
}

// perSecond returns the cost of reading a number of GPUs for a second at the present pace.
func (p *pacer) perSecond(gpus int) float64 {
	return p.fast.perSecond(gpus, p.fast.factor) + p.slow.perSecond(gpus, p.slow.factor)
}

// stretch stretches the tier that costs most by one step if readings cost more than the budget, and
// reports whether it has. It passes over a tier that is at its largest factor or costs less than
// leastShare.
func (p *pacer) stretch(gpus int) bool {
	all := p.perSecond(gpus)
	if all <= p.budget.Seconds {
		return false
	}

	var dearest *pacedTier

	highest := leastShare * all
	for _, t := range []*pacedTier{&p.fast, &p.slow} {
		if cost := t.perSecond(gpus, t.factor); t.factor < t.most && cost >= highest {
			dearest = t
			highest = cost
		}
	}

	if dearest == nil {
		return false
	}

	dearest.factor = dearest.longer()

	return true
}

// ease takes back one step of a tier, the fast one first, if readings then still cost less than
// easeBelow of the budget.
func (p *pacer) ease(gpus int) {
	all := p.perSecond(gpus)
	for _, t := range []*pacedTier{&p.fast, &p.slow} {
		then := all - t.perSecond(gpus, t.factor) + t.perSecond(gpus, t.shorter())
		if t.factor > 1 && then <= easeBelow*p.budget.Seconds {
			t.factor = t.shorter()
			return
		}
	}
}

// keepToBudget sets the pace of the next readings, and logs when we begin and cease to read less
// often.
func (p *Poller) keepToBudget() {
	if p.opts.Interval == 0 || !p.pacer.judge(time.Now(), len(p.inventory.GPUs)) {
		return
	}

	cost := p.pacer.perSecond(len(p.inventory.GPUs))
	pace := p.pacer.pace()

	if p.pacer.overrun {
		level.Warn(p.opts.Logger).Log(
			"msg", "driver calls take more than their budget: reading the GPUs less often",
			"budget", p.opts.Budget.Seconds,
			"seconds_per_second", cost,
			"interval", pace.Fast.Now,
			"slow_interval", pace.Slow.Now,
			"see", "mig_exporter_poll_interval_seconds",
		)

		return
	}

	level.Info(p.opts.Logger).Log(
		"msg", "driver calls are within their budget: reading the GPUs as often as configured",
		"budget", p.opts.Budget.Seconds,
		"seconds_per_second", cost,
	)
}

// followPace adapts the gap that we accept between two readings to the pace.
func (p *Poller) followPace() {
	for _, t := range p.gpus {
		t.maxGap = p.staleAfter()
	}
}

// staleAfter returns the age at which we drop readings: Options.StaleAfter, stretched like the fast
// tier.
func (p *Poller) staleAfter() time.Duration {
	return time.Duration(p.pacer.fast.factor) * p.opts.StaleAfter
}
