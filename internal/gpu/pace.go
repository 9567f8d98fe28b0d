package gpu

import "time"

// Pace is how often GPUs are read: the fast tier with every poll, and the slow tier, which is dear
// or seldom changes, with some of them.
type Pace struct {
	Fast, Slow TierPace
}

// TierPace is the time between two readings of a tier.
type TierPace struct {
	Configured time.Duration // 0 if nothing is known of the tier
	// Now is longer than Configured while driver calls take more than their budget.
	Now time.Duration
}

// Stretched reports whether a tier is read less often than configured.
func (p *Pace) Stretched() bool {
	return p.Fast.Now > p.Fast.Configured || p.Slow.Now > p.Slow.Configured
}

// ReadCosts are the costs of readings to the driver's other users, since the start: the time spent
// in calls that keep them waiting, or may (CallExclusive, CallUnknown), added up over threads. What
// is done once for a GPU or a change of it is left out.
type ReadCosts struct {
	Fast, Slow TierCost
}

// TierCost is the part of a tier in ReadCosts.
type TierCost struct {
	Readings uint64 // of single GPUs
	Took     time.Duration
}
