package advise

import (
	"fmt"
	"time"
)

// Options are what an operator can choose.
type Options struct {
	// Headroom is the share of memory that must stay free above the most that was seen, and at least minHeadroomBytes.
	Headroom float64
	// TargetBusy is the highest p99 of busy time in a slice, 0-1.
	TargetBusy float64
	// MaxStretch is how much longer than on the whole GPU a request may take in a slice, at p95.
	MaxStretch float64
	// MinEvidence is the observed time before anything is recommended.
	MinEvidence time.Duration
	// MaxGap is the longest time between two Snapshots that counts as observed, a few poll intervals.
	MaxGap time.Duration
	// Strict decides by the worst mix of kernels that the evidence allows, instead of the expected one.
	Strict bool
	// SingleStrategy says that the device plugin gives all devices of the node one mode and one profile.
	SingleStrategy bool
}

// DefaultOptions returns the options that the flags default to.
func DefaultOptions() Options {
	return Options{
		Headroom:    0.15,
		TargetBusy:  0.8,
		MaxStretch:  2,
		MinEvidence: 24 * time.Hour,
		MaxGap:      15 * time.Second,
	}
}

// Validate returns an error that begins with the name of the first option out of its range, as its flag has it.
func (o Options) Validate() error {
	for _, r := range []struct {
		name            string
		value, from, to float64
	}{
		{"headroom", o.Headroom, 0, 10},
		{"target-busy", o.TargetBusy, 0.01, 1},
		{"max-stretch", o.MaxStretch, 1, 100},
	} {
		if !(r.value >= r.from && r.value <= r.to) { // NaN is out of range
			return fmt.Errorf("%s=%v: expected %v to %v", r.name, r.value, r.from, r.to)
		}
	}

	if o.MinEvidence < time.Minute || o.MinEvidence > 30*24*time.Hour {
		return fmt.Errorf("min-evidence=%s: expected 1m to 720h", o.MinEvidence)
	}

	return nil
}
