package sim

import "fmt"

// BootID returns a text that tells this boot of the node from all others, like the kernel's boot id.
// A shared node outlives its processes, so its boot id does too.
func (n *Node) BootID() string {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	if n.shared != nil {
		return fmt.Sprintf("sim-%s-%d", n.shared.state.ID, n.boots)
	}

	return fmt.Sprintf("sim-%s-%d", n.nodeID, n.boots)
}
