package fleet

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// A history has no starts as an advisor sees them: it has who held a GPU in steps of five minutes,
// and the largest use of memory of each hour, by scrapes. That is enough to see that a start,
// however coarse, lies within the window.

// minStarted is for how many steps a holder must have had a GPU for its start to be seen: the hour
// after which an advisor takes a start to be over.
const minStarted = stepsPerHour

// findStarts marks the GPUs of which the last holder came within the window, and some holder that
// came within it stayed long enough.
func (all holdings) findStarts() {
	for _, list := range all {
		for _, one := range list {
			h := one.gpu
			last := lastTrue(h.held)

			for end := lastTrue(one.steps); end >= 0; {
				begin := beginOf(one.steps, h, end)
				arrived := begin > 0
				h.stayed = h.stayed || arrived && end-begin >= minStarted
				h.arrived = h.arrived || arrived && end == last
				end = lastTrue(one.steps[:begin])
			}
		}
	}
}

// lastTrue returns the index of the last step of which something holds, -1 if there is none.
func lastTrue(steps []bool) int {
	for at := len(steps) - 1; at >= 0; at-- {
		if steps[at] {
			return at
		}
	}

	return -1
}

// beginOf returns the first step of the time for which something held that ends with a step. What
// is unknown of a GPU ends nothing.
func beginOf(steps []bool, h *history, end int) int {
	for end > 0 && (steps[end-1] || isNaN(h.busy[end-1])) {
		end--
	}

	return end
}

// sawStart reports whether a start of what holds the GPU lies within the window. Without names of
// holders, processes show it. So does an hour with no more memory than a context takes, and a small
// part of what was taken later: the start lies after it.
func (h *history) sawStart() bool {
	if !(mostOf(h.memory) > advise.UnusedBytes) {
		return false // nothing was loaded
	}

	if h.arrived && h.stayed {
		return true
	}

	last := lastTrue(h.held)
	if last < 0 {
		return false
	}

	begin := beginOf(h.held, h, last)
	if len(h.namespaces) == 0 && begin > 0 && last-begin >= minStarted {
		return true
	}

	for at := begin / stepsPerHour; at < last/stepsPerHour; at++ {
		if h.memory[at] <= min(advise.ContextBytes, mostOf(h.memory[at+1:])/advise.LoadedFrom) {
			return true
		}
	}

	return false
}

// mostOf returns the largest use of memory of some hours in bytes, NaN if none is known.
func mostOf(memory []float64) float64 {
	most := math.NaN()
	for _, bytes := range memory {
		if !(bytes <= most) && !math.IsNaN(bytes) {
			most = bytes
		}
	}

	return most
}
