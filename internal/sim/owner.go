package sim

// The programs and users of the processes on a node.
const (
	pythonName = "python3"         // most CUDA programs are run by Python
	mpsName    = "nvidia-cuda-mps" // nvidia-cuda-mps-server, cut by the kernel to 15 bytes (proc(5), comm)
	rootUID    = 0                 // containers, unless their pod says otherwise, and the MPS server
	userUID    = 1000              // batch jobs run as their user, from UID_MIN on (login.defs(5))
)

// ProcessOwner returns the name of a process's program and the id of its user; false if there is no
// such process.
func (n *Node) ProcessOwner(pid uint32) (name string, uid uint32, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	for _, g := range n.gpus {
		if g.mps != 0 && g.mps == pid {
			return mpsName, rootUID, true
		}

		for _, t := range g.tasks {
			if t.proc.pid != pid {
				continue
			}

			if t.proc.podName != "" {
				return pythonName, rootUID, true
			}

			return pythonName, userUID, true
		}
	}

	return "", 0, false
}
