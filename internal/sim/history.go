package sim

import "slices"

// maxHistory bounds what a node remembers of a GPU's events; the oldest are forgotten.
const maxHistory = 256

// history is what happened to a GPU.
type history struct {
	events    []Event // the latest, in their order
	forgotten int     // how many there were before
}

// History lists the events of a GPU from a number on, also if no client watched for them. The first
// has the number 0; next is the number of the one that is to come.
func (n *Node) History(index, from int) (events []Event, next int) {
	n.lock()
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
