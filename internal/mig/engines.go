package mig

import (
	"cmp"
	"math"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// engineCounts are numbers of copy engines, decoders, encoders, JPEG and OFA engines. If a GPU's
// total is unlimited, engines of that kind are not counted.
type engineCounts [5]int16

const unlimited = math.MaxInt16

// countsOf returns the engines of an instance of the profile; none if the driver does not report
// them.
func countsOf(p gpu.Profile) engineCounts {
	e := p.Engines.Or(gpu.Engines{})

	var counts engineCounts
	for i, n := range [...]int{e.Copy, e.Decoder, e.Encoder, e.JPEG, e.OFA} {
		counts[i] = int16(min(max(n, 0), unlimited-1)) //nolint:gosec // bounded
	}

	return counts
}

// engineTotals returns what the instances of a GPU share: the engines of its largest profile. A
// kind is unlimited if that profile does not report engines, or if another profile contradicts it:
// as many instances of that profile as the driver allows would need more. NVIDIA's table for B200
// has such a contradiction: one decoder for the whole GPU, and one in each of seven 1g.23gb.
func engineTotals(profiles []gpu.Profile) engineCounts {
	totals := engineCounts{unlimited, unlimited, unlimited, unlimited, unlimited}
	if len(profiles) == 0 {
		return totals
	}

	largest := slices.MaxFunc(profiles, func(a, b gpu.Profile) int {
		return cmp.Or(
			cmp.Compare(a.ComputeSlices, b.ComputeSlices),
			cmp.Compare(a.MemorySlices, b.MemorySlices),
		)
	})
	if !largest.Engines.Present() {
		return totals
	}

	totals = countsOf(largest)
	for _, p := range profiles {
		for i, n := range countsOf(p) {
			if int(n)*max(p.MaxInstances, 1) > int(totals[i]) {
				totals[i] = unlimited
			}
		}
	}

	return totals
}

// cover reports whether c has at least as many engines of each kind as d.
func (c *engineCounts) cover(d engineCounts) bool {
	return d[0] <= c[0] && d[1] <= c[1] && d[2] <= c[2] && d[3] <= c[3] && d[4] <= c[4]
}

// without returns what an instance with the engines d leaves.
func (c engineCounts) without(d engineCounts) engineCounts {
	for i := range c {
		if c[i] != unlimited {
			c[i] = max(c[i]-d[i], 0)
		}
	}

	return c
}

// times returns how many instances with the engines d each can share c.
func (c engineCounts) times(d engineCounts) int {
	n := math.MaxInt

	for i := range c {
		if d[i] > 0 && c[i] != unlimited {
			n = min(n, int(c[i]/d[i]))
		}
	}

	return n
}
