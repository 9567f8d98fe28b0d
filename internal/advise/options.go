package advise

import (
	"fmt"
	"time"
)

// Options are what the advice depends on. Operators can set some of them by flags; DefaultOptions says why
// the others have none.
type Options struct {
	// Headroom is the share of memory that must stay free above the most that was seen, and at
	// least minHeadroomBytes.
	Headroom float64
	// TargetBusy is the highest p99 of busy time in a slice, 0-1.
	TargetBusy float64
	// MaxStretch is how much longer than on the whole GPU a request may take in a slice, at p95.
	MaxStretch float64
	// MinEvidence is the observed time before anything is recommended.
	MinEvidence time.Duration
	// MaxGap is the longest time between two Snapshots that counts as observed, a few poll
	// intervals.
	MaxGap time.Duration
	// Strict decides by the worst mix of kernels that the evidence allows, instead of the expected
	// one.
	Strict bool
	// SingleStrategy says that the device plugin gives all devices of the node one mode and one
	// profile.
	SingleStrategy bool
}

// DefaultOptions returns the options that the flags default to.
//
// Headroom and TargetBusy have no flag. We add growth and starts to the need as well, so Headroom only
// covers peaks between two readings. Above TargetBusy waits grow faster than load whatever runs, and
// MaxStretch says how much longer a workload may take.
func DefaultOptions() Options {
	return Options{
		Headroom:    0.15,
		TargetBusy:  0.8,
		MaxStretch:  2,
		MinEvidence: 24 * time.Hour,
		MaxGap:      15 * time.Second,
	}
}

// OptionError is an option out of its range. Option is the name of its flag without "--advise.".
type OptionError struct {
	Option   string
	Value    any
	Expected string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("%s=%v: expected %s", e.Option, e.Value, e.Expected)
}

// Validate returns an OptionError about the first option out of its range.
func (o Options) Validate() error {
	const least, most = 1, 100
	if !(o.MaxStretch >= least && o.MaxStretch <= most) { // NaN is out of range
		return &OptionError{"max-stretch", o.MaxStretch, fmt.Sprintf("%v to %v", least, most)}
	}

	if o.MinEvidence < time.Minute || o.MinEvidence > 30*24*time.Hour {
		return &OptionError{"min-evidence", o.MinEvidence, "1m to 720h"}
	}

	return nil
}
