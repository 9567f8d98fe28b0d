package sim

import "slices"

// maxHistory bounds what a node remembers of a GPU's events; the oldest are forgotten.
const maxHistory = 256

// history is the list of a GPU's latest events.
type history struct {
	events    []Event // in the order in which they happened
	forgotten int     // how many events were dropped before them
}

// History returns the events of a GPU from a number on, also if no client watched for them. The
// first event has the number 0; next is the number that the next event will have.
func (n *Node) History(index, from int) (events []Event, next int) {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	h := &n.gpus[index].history
	next = h.forgotten + len(h.events)

	return slices.Clone(h.events[min(max(from-h.forgotten, 0), len(h.events)):]), next
}

func (h *history) add(e Event) {
	if len(h.events) == maxHistory {
		h.events = slices.Delete(h.events, 0, 1)
		h.forgotten++
	}

	h.events = append(h.events, e)
}
