package fleet

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// An advisor sees a workload's start in its polls. A history does not: it only has the holders of a
// GPU in steps of five minutes, and the largest use of memory in each hour. That is enough to see
// whether a start lies within the window.

// minStarted is for how many steps a holder must have had a GPU so that its start is over: an hour,
// as an advisor takes it.
const minStarted = stepsPerHour

// findStarts fills in last, arrived and stayed of the GPUs' histories.
func (all heldByHolder) findStarts() {
	byGPU := map[*history][]*heldGPU{}

	for _, list := range all {
		for _, held := range list {
			byGPU[held.gpu] = append(byGPU[held.gpu], held)
		}
	}

	for h, list := range byGPU {
		h.last = h.findLast(list)

		for _, held := range list {
			h.addStarts(held)
		}
	}
}

// addStarts notes whether a holder came within the window. Its start says what the last holder needs only
// if both may be of one owner.
func (h *history) addStarts(held *heldGPU) {
	if held.isOfAnother(h.last.owner, h.last.isJob) {
		return
	}

	last := h.lastNamed()

	// A holder can have had the GPU several times. We go back from the last one.
	for end := lastTrue(held.steps); end >= 0; {
		begin := beginOf(held.steps, h, end)
		arrived := begin > 0
		h.stayed = h.stayed || arrived && end-begin >= minStarted
		h.arrived = h.arrived || arrived && end == last
		end = lastTrue(held.steps[:begin])
	}
}

// lastTrue returns the index of the last true value, -1 if there is none.
func lastTrue(steps []bool) int {
	for at := len(steps) - 1; at >= 0; at-- {
		if steps[at] {
			return at
		}
	}

	return -1
}

// lastNamed returns the last step in which something with a name held the GPU, -1 if there is none.
func (h *history) lastNamed() int {
	for at := len(h.holders) - 1; at >= 0; at-- {
		if h.holders[at] > 0 {
			return at
		}
	}

	return -1
}

// beginOf returns the first of the successive true steps that end with end. Steps without a sample
// of the GPU don't interrupt them, nor do those in which what held it has no name: it may have been
// the same.
func beginOf(steps []bool, h *history, end int) int {
	for end > 0 && (steps[end-1] || isNaN(h.busy[end-1]) || h.nameless[end-1] != namelessNone) {
		end--
	}

	return end
}

// sawStart reports whether a start of the GPU's workload lies within the window. The holders show it,
// or, if we don't know their names, the processes. Memory shows it, too: an hour that used no more
// than a context takes, and only a small part of what was used later, lies before the start.
func (h *history) sawStart() bool {
	if !(maxMemory(h.memory) > advise.UnusedBytes) {
		return false // nothing was loaded
	}

	if h.arrived && h.stayed {
		return true
	}

	last := lastTrue(h.held)
	if last < 0 {
		return false
	}

	begin := max(beginOf(h.held, h, last), h.last.firstStep())
	if len(h.namespaces) == 0 && begin > 0 && last-begin >= minStarted {
		return true
	}

	for at := h.hourOf(begin); at < h.hourOf(last); at++ {
		if h.memory[at] <= min(advise.ContextBytes, maxMemory(h.memory[at+1:])/advise.LoadedFrom) {
			return true
		}
	}

	return false
}

// maxMemory returns the largest use of memory in some hours, in bytes; NaN if none is known.
func maxMemory(memory []float64) float64 {
	most := math.NaN()
	for _, bytes := range memory {
		if !(bytes <= most) && !math.IsNaN(bytes) {
			most = bytes
		}
	}

	return most
}
