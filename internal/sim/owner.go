package sim

// The programs and users of the processes on a node. Programs of CUDA are mostly run by Python; the
// kernel has the first 15 bytes of a program's name, of nvidia-cuda-mps-server too (proc(5),
// /proc/pid/comm). Containers run as root unless their pod says otherwise, and so does the MPS
// server of the device plugin; batch jobs run as the user who submitted them, whose id is one of
// the users' (login.defs(5), UID_MIN).
const (
	pythonName = "python3"
	mpsName    = "nvidia-cuda-mps"
	rootUID    = 0
	userUID    = 1000
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

			if t.proc.pod != "" {
				return pythonName, rootUID, true
			}

			return pythonName, userUID, true
		}
	}

	return "", 0, false
}
