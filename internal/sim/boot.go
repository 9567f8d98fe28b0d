package sim

import "fmt"

// BootID distinguishes one boot of the node from all others, as the kernel's does. A node that is
// shared goes on when its processes end; any other starts again with each.
func (n *Node) BootID() string {
	n.lock()
	defer n.mu.Unlock()

	if n.shared != nil {
		return fmt.Sprintf("sim-%s-%d", n.shared.state.ID, n.boots)
	}

	return fmt.Sprintf("sim-%s-%d", n.beginning, n.boots)
}
