package gpu

import "time"

// Pace is how often we read the GPUs. Each reading has the fast tier. Only some have the slow tier:
// values that take the driver long, or that seldom change.
type Pace struct {
	Fast, Slow TierPace
}

// TierPace is the time between two readings of a tier.
type TierPace struct {
	Configured time.Duration // 0 if it is not known
	// Now is longer than Configured while driver calls take more than their budget.
	Now time.Duration
}

// Stretched reports whether a tier is read less often than configured.
func (p *Pace) Stretched() bool {
	return p.Fast.Now > p.Fast.Configured || p.Slow.Now > p.Slow.Configured
}

// ReadCosts are what readings have cost the driver's other users since the start: the time in calls
// that keep them waiting, or may (CallExclusive, CallUnknown), added up over threads. Calls that we
// make once for a GPU, or once after it has changed, are left out.
type ReadCosts struct {
	Fast, Slow TierCost
}

// TierCost is what the readings of one tier have cost.
type TierCost struct {
	Readings uint64 // a poll of 8 GPUs counts as 8
	Took     time.Duration
}
