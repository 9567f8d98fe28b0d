package poll

import (
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Budget limits how much our readings may slow down other users of the driver. While they cost more
// than the budget, we read less often. Readings for partition control and after events are not
// limited.
type Budget struct {
	// Seconds limits the driver calls that can keep others waiting: how many seconds of them we may
	// make per second, added up over threads. 0 is no limit.
	Seconds float64
	// Interval and SlowEvery are the periods of the fast and the slow tier as long as we are within
	// the budget. Interval is Options.Interval.
	Interval, SlowEvery time.Duration
	// Costs returns the cost of readings since the start; nil: there is no limit.
	Costs func() gpu.ReadCosts
}

const (
	// budgetWindow is how long we measure costs before we change the pace: two readings of the slow
	// tier.
	budgetWindow = 30 * time.Second
	// easeBelow is the share of the budget that readings may cost after we read a tier more often
	// again. If they could cost all of the budget, we would soon stretch the tier again.
	easeBelow = 0.8
	// leastShare is the share of all costs below which we do not stretch a tier: that would save
	// next to nothing.
	leastShare = 0.1
	// longestFast and longestSlow are the longest periods to which we stretch the tiers.
	longestFast = 5 * time.Second
	longestSlow = 2 * time.Minute
)

// LongestInterval returns the longest interval between two readings to which a budget can stretch
// the configured interval.
func LongestInterval(interval time.Duration) time.Duration { return max(interval, longestFast) }

// pacer decides how often we read the tiers. Its times are real time, because driver calls take
// real time even if the loop's clock is simulated.
type pacer struct {
	budget     Budget
	fast, slow pacedTier

	windowBegan  time.Time
	costsAtBegin gpu.ReadCosts
	stretched    bool // a tier is read less often than configured
	skipped      int  // ticks without a reading since the last reading
}

// pacedTier is a tier whose period we can stretch: with the configured period 1 s and factor 4 we
// read it every 4 s.
type pacedTier struct {
	every     time.Duration // the configured period
	factor    int           // a power of two, or maxFactor
	maxFactor int
	cost      float64 // of one reading of one GPU, in seconds, in the last window with readings
}

func newPacedTier(every, longest time.Duration) pacedTier {
	maxFactor := 1
	if every > 0 {
		maxFactor = max(1, int(longest/every))
	}

	return pacedTier{every: every, factor: 1, maxFactor: maxFactor}
}

// costPerSecond returns what the tier costs with a factor, in seconds of calls per second.
func (t *pacedTier) costPerSecond(gpus, factor int) float64 {
	if t.every <= 0 {
		return 0
	}

	return t.cost * float64(gpus) / (float64(factor) * t.every.Seconds())
}

// nextFactor returns the next larger factor.
func (t *pacedTier) nextFactor() int { return min(2*t.factor, t.maxFactor) }

// previousFactor returns the next smaller factor; 1 if the tier is not stretched.
func (t *pacedTier) previousFactor() int {
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

// adjust compares the costs with the budget, and stretches or eases a tier by one step at the end
// of a window, or earlier if the budget of the whole window is spent. It reports whether
// p.stretched has changed.
func (p *pacer) adjust(now time.Time, gpus int) (changed bool) {
	if p.budget.Seconds <= 0 || p.budget.Costs == nil || gpus == 0 {
		return false
	}

	costs := p.budget.Costs()
	if p.windowBegan.IsZero() {
		p.windowBegan = now
		p.costsAtBegin = costs

		return false
	}

	before := &p.costsAtBegin
	spent := (costs.Fast.Took + costs.Slow.Took - before.Fast.Took - before.Slow.Took).Seconds()

	ended := now.Sub(p.windowBegan) >= budgetWindow
	if !ended && spent <= p.budget.Seconds*budgetWindow.Seconds() {
		return false
	}

	p.fast.measure(costs.Fast, before.Fast)
	p.slow.measure(costs.Slow, before.Slow)

	// A single reading of the slow tier can spend the window's budget early although we are within
	// the budget on average: then stretch does nothing, and the window goes on.
	if !p.stretch(gpus) && !ended {
		return false
	}

	if ended && p.costPerSecond(gpus) <= p.budget.Seconds {
		p.ease(gpus)
	}

	p.windowBegan = now
	p.costsAtBegin = costs

	wasStretched := p.stretched
	p.stretched = p.fast.factor > 1 || p.slow.factor > 1

	return p.stretched != wasStretched
}

// measure sets the tier's cost to the mean of the readings between two times. If there were none,
// the cost stays.
func (t *pacedTier) measure(now, before gpu.TierCost) {
	if readings := now.Readings - before.Readings; readings > 0 {
		t.cost = (now.Took - before.Took).Seconds() / float64(readings)
	}
}

// costPerSecond returns what both tiers cost at the present pace, in seconds of calls per second.
func (p *pacer) costPerSecond(gpus int) float64 {
	return p.fast.costPerSecond(gpus, p.fast.factor) + p.slow.costPerSecond(gpus, p.slow.factor)
}

// stretch stretches the tier that costs most by one step if readings cost more than the budget, and
// reports whether it has. It passes over a tier that has its largest factor or costs less than
// leastShare of all.
func (p *pacer) stretch(gpus int) bool {
	all := p.costPerSecond(gpus)
	if all <= p.budget.Seconds {
		return false
	}

	var costliest *pacedTier

	highest := leastShare * all
	for _, t := range []*pacedTier{&p.fast, &p.slow} {
		if cost := t.costPerSecond(gpus, t.factor); t.factor < t.maxFactor && cost >= highest {
			costliest = t
			highest = cost
		}
	}

	if costliest == nil {
		return false
	}

	costliest.factor = costliest.nextFactor()

	return true
}

// ease takes back one step of a tier, the fast one first, if readings then still cost less than
// easeBelow of the budget.
func (p *pacer) ease(gpus int) {
	all := p.costPerSecond(gpus)
	for _, t := range []*pacedTier{&p.fast, &p.slow} {
		eased := all - t.costPerSecond(gpus, t.factor) + t.costPerSecond(gpus, t.previousFactor())
		if t.factor > 1 && eased <= easeBelow*p.budget.Seconds {
			t.factor = t.previousFactor()
			return
		}
	}
}

// keepToBudget adjusts how often we read, and logs when we begin and when we cease to read less
// often than configured.
func (p *Poller) keepToBudget() {
	if p.opts.Interval == 0 || !p.pacer.adjust(time.Now(), len(p.inventory.GPUs)) {
		return
	}

	cost := p.pacer.costPerSecond(len(p.inventory.GPUs))
	pace := p.pacer.pace()

	if p.pacer.stretched {
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

// setMaxGaps sets trackedGPU.maxGap of all GPUs to the present pace.
func (p *Poller) setMaxGaps() {
	for _, t := range p.gpus {
		t.maxGap = p.staleAfter()
	}
}

// staleAfter returns the age at which we drop readings: Options.StaleAfter, stretched like the fast
// tier.
func (p *Poller) staleAfter() time.Duration {
	return time.Duration(p.pacer.fast.factor) * p.opts.StaleAfter
}
