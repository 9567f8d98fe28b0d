package sim

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

// Truth is what a process achieves on a device. No metric shows it; tests judge recommendations by
// it.
type Truth struct {
	Namespace, Pod, Container string // empty for a process of the host
	PodUID                    string
	PID                       uint32
	Owner                     string // the pod's owner, "Deployment/resnet"; empty if it has none
	Workload                  string // its name in the scenario; empty if the process does nothing
	GPU                       gpu.UUID
	Index                     int         // the GPU's index
	MIG                       gpu.MIGUUID // empty for a whole GPU
	Profile                   string      // the GPU instance's profile; empty for a whole GPU

	// Throughput is the work done per time, and Stretch how long the kernels take, both relative to a
	// whole GPU of this model that the process has to itself. Throughput is 1 for a process that has
	// nothing to do, and 0 for one that was killed.
	Throughput, Stretch float64
	Busy                float64 // the share of the time in which its kernels run, 0-1
	// PerSecond is how many requests are answered in a second, and Latency how long one takes; 0 if
	// the workload answers no requests.
	PerSecond float64
	Latency   time.Duration
	// Alone is what it would do now on a whole GPU of this model that it has to itself.
	Alone Alone

	// Failed says why the process was killed before its time, and when; empty for one that runs.
	Failed   string
	FailedAt time.Time
}

// Alone is what a process would do on a whole GPU that it has to itself.
type Alone struct {
	Busy, PerSecond float64
	Latency         time.Duration
}

// EndlessLatency is the latency of a queue that grows without bound.
const EndlessLatency = kernels.MaxLatency

// Truth returns what every process on every device achieves now, by GPU and start. After these it
// returns the processes that were killed since the start of the node.
func (n *Node) Truth() []Truth {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	var list []Truth

	for _, g := range n.gpus {
		for _, t := range g.tasks {
			list = append(list, n.truth(t))
		}
	}

	return append(list, n.failures...)
}

func (n *Node) truth(t *task) Truth {
	r := Truth{PID: t.proc.pid, GPU: t.on.gpu.uuid, Index: t.on.gpu.index, Busy: t.result.Busy,
		PerSecond: t.result.PerSecond, Latency: t.result.Latency}
	if c := t.on.compute; c != nil {
		r.MIG = c.UUID
		r.Profile = t.on.instance.Profile.Name
	}

	if p := t.proc.pod; p != nil {
		r.Namespace = p.spec.Namespace
		r.Pod = p.name
		r.PodUID = p.uid
		r.Container = t.proc.container
		r.Owner = p.spec.Owner
	}

	if t.workload != nil {
		r.Workload = t.workload.Name
	}

	whole := kernels.Run(n.demand(t), simDevice{gpu: t.on.gpu}.kernelDevice(0))
	r.Throughput = t.result.Throughput / whole.Throughput
	r.Stretch = t.result.Stretch / whole.Stretch
	r.Alone = Alone{Busy: whole.Busy, PerSecond: whole.PerSecond, Latency: whole.Latency}

	return r
}

// recordFailure keeps the truth about a process that is killed, for Truth to return from now on.
func (n *Node) recordFailure(p *process, why string) {
	for _, t := range p.tasks {
		r := n.truth(t)
		r.Throughput = 0
		r.Stretch = 0
		r.Busy = 0
		r.PerSecond = 0
		r.Latency = 0
		r.Failed = why
		r.FailedAt = n.stateTime
		n.failures = append(n.failures, r)
	}
}
