package poll

import (
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Budget is what readings may cost the other users of the driver. Control's readings and those that an event asks for
// are made whatever it says.
type Budget struct {
	// Seconds is how many seconds the calls of one second may take that keep others waiting, or may, added up over
	// threads. 0 is no limit.
	Seconds float64
	// Interval and SlowEvery are how often the tiers are read while they cost less. Interval is that of the loop.
	Interval, SlowEvery time.Duration
	// Costs returns what readings have cost since the start; nil: it is not known, and there is no limit.
	Costs func() gpu.ReadCosts
}

const (
	// budgetWindow is over how much time costs are judged: two turns of the slow tier.
	budgetWindow = 30 * time.Second
	// easeBelow is the share of the budget that readings must stay below after a tier is read more often again: at the
	// budget itself they would be stretched again.
	easeBelow = 0.8
	// leastShare is the share of all costs from which on a tier is stretched: a tier that costs nothing gains nothing.
	leastShare = 0.1
	// longestFast and longestSlow are how far the tiers are stretched.
	longestFast = 5 * time.Second
	longestSlow = 2 * time.Minute
)

// LongestInterval returns how far readings are apart at most, however dear they are, that are made every interval while
// they are cheap.
func LongestInterval(interval time.Duration) time.Duration { return max(interval, longestFast) }

// pacer decides how often the tiers are read. Its clock is the real one, as the driver's time is.
type pacer struct {
	budget     Budget
	fast, slow pacedTier

	began   time.Time     // of the window
	atBegin gpu.ReadCosts // then
	overrun bool          // a tier is stretched
	skipped int           // ticks without a reading since the last one with
}

// pacedTier is a tier that is read every so many of its own periods.
type pacedTier struct {
	every  time.Duration
	factor int
	most   int     // the largest factor
	cost   float64 // of one reading of one GPU, in seconds, by the last window that had any
}

func newPacedTier(every, longest time.Duration) pacedTier {
	most := 1
	if every > 0 {
		most = max(1, int(longest/every))
	}

	return pacedTier{every: every, factor: 1, most: most}
}

// perSecond returns what readings of some GPUs cost in a second if the tier is stretched by a factor.
func (t *pacedTier) perSecond(gpus, factor int) float64 {
	if t.every <= 0 {
		return 0
	}

	return t.cost * float64(gpus) / (float64(factor) * t.every.Seconds())
}

// longer returns the next larger factor: powers of two, and the largest.
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

// isDue reports whether the tick of the loop that has come is one with a reading.
func (p *pacer) isDue() bool { return p.skipped+1 >= p.fast.factor }

// pace returns how often the tiers are read.
func (p *pacer) pace() gpu.Pace { return gpu.Pace{Fast: p.fast.pace(), Slow: p.slow.pace()} }

// judge compares what readings of some GPUs cost with the budget, and stretches or eases a tier by one step if that is
// due. It reports whether tiers have begun to be stretched, or are no longer.
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

	if !p.stretch(gpus) && !ended {
		return false // a slow tier that is seldom read costs much at once
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

// measure notes what a reading of the tier has cost on the mean since an earlier time. Without any, what was known
// before holds.
func (t *pacedTier) measure(now, before gpu.TierCost) {
	if readings := now.Readings - before.Readings; readings > 0 {
		t.cost = (now.Took - before.Took).Seconds() / float64(readings)
	}
}

// perSecond returns what readings of some GPUs cost in a second as they are paced now.
func (p *pacer) perSecond(gpus int) float64 {
	return p.fast.perSecond(gpus, p.fast.factor) + p.slow.perSecond(gpus, p.slow.factor)
}

// stretch stretches the tier that costs most, of those that can be and that matter, by one step if readings cost more
// than the budget, and reports whether it has.
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

// ease takes back one step of a tier if readings then cost clearly less than the budget, the fast tier's first.
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

// keepToBudget paces the readings to come by what those so far have cost, and logs when that begins and ends.
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

// followPace makes what is concluded from the age of readings follow how often there are any.
func (p *Poller) followPace() {
	for _, t := range p.gpus {
		t.maxGap = p.staleAfter()
	}
}

// staleAfter returns the age at which readings are dropped: as many intervals as configured.
func (p *Poller) staleAfter() time.Duration {
	return time.Duration(p.pacer.fast.factor) * p.opts.StaleAfter
}
