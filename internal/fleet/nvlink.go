package fleet

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// Slices have no NVLink. Two pods that exchange data over it show that nowhere else: not in their
// busy time, and not on PCIe. So if the history does not have the traffic, we don't take it for none.

// links says whether a model has NVLink.
type links int

const (
	linksNone   links = iota
	linksBridge       // only if a bridge connects the GPU to another one
	linksBuiltIn
)

// linksOf returns whether the model has NVLink that the driver names so. A model that we don't know
// counts as one that has.
func linksOf(name string) links {
	switch {
	case hasWords(name, "RTX PRO"), hasWords(name, "Jetson"):
		return linksNone
	case hasWords(name, "PCIe"), hasWords(name, "A30"):
		return linksBridge
	}

	return linksBuiltIn
}

// nvlinkRemedy says how NVLink traffic gets into the history.
const nvlinkRemedy = "mig-exporter serves it by its collector nvlink, dcgm-exporter with " +
	"DCGM_FI_PROF_NVLINK_TX_BYTES and DCGM_FI_PROF_NVLINK_RX_BYTES (fields 1011 and 1012) in its " +
	"counters file"

const nvlinkUnreadText = "a slice would do, unless data was exchanged over NVLink, which slices " +
	"do not have: another GPU of the node was held at the same time, and for more than 1 % of the " +
	"time the history lacks the traffic of at least one direction. " + nvlinkRemedy

// isNVLinkUnread reports whether the history lacks NVLink's traffic, of at least one direction, in
// too many of the steps in which the GPU was held.
func (h *history) isNVLinkUnread() bool { return math.IsNaN(h.nvlink) || !h.isRead(&h.nvlinkRead) }

// findNeighbors fills in hasNeighbor of GPUs: whether another GPU of the node was held at the same
// time. If another exporter serves GPUs of the node, we don't know when these were held.
func (a *analysis) findNeighbors(gpus []*fleetGPU) {
	held := map[string][]int{} // by place: how many GPUs were held in each step

	for _, g := range gpus {
		count := held[g.history.place]
		if count == nil {
			count = make([]int, len(g.history.held))
			held[g.history.place] = count
		}

		for at, is := range g.history.held {
			count[at] += boolToInt(is)
		}
	}

	for _, g := range gpus {
		together := 0

		for at, is := range g.history.held {
			together += boolToInt(is && held[g.history.place][at] > 1)
		}

		g.hasNeighbor = together >= minTogether || a.isShared(g)
	}
}

// isShared reports whether several exporters serve GPUs of a GPU's node.
func (a *analysis) isShared(g *fleetGPU) bool {
	exporter, known := a.exporters[g.place]
	return known && exporter == ""
}

// doubtNVLink changes an answer that a slice would do if NVLink traffic with another GPU may have
// been missed. If the model has NVLink, we don't know whether a slice would do. If only a bridge would
// connect two of its GPUs, there may be nothing to measure: then the answer is provisional.
func (g *GPU) doubtNVLink(has links, o advise.Options) {
	if g.Action != advise.ActionSlice || has == linksNone {
		return
	}

	if has == linksBridge {
		g.Provisional = true
		g.bridgeUnread = true

		return
	}

	g.Action = advise.ActionUnknown
	g.Reason = advise.ReasonNVLinkUnread
	g.Explanation = ReasonText(g.Reason, o)
	g.clearPrediction()
}
