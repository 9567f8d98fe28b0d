package sim

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

// Truth is what a process achieves on a device: what a test judges recommendations by, and no
// metric shows.
type Truth struct {
	Namespace, Pod, Container string // empty for a process of the host
	PodUID                    string
	PID                       uint32
	Owner                     string // of the pod, "Deployment/resnet"; empty if it has none
	Workload                  string // its name in the scenario; empty if the process does nothing
	GPU                       gpu.UUID
	Index                     int         // of the GPU
	MIG                       gpu.MIGUUID // empty for a whole GPU
	Profile                   string      // of the GPU instance

	// Throughput and Stretch are relative to a whole GPU of this model that the process has to
	// itself: the work done in a time, and how long its kernels take for it. Throughput is 1 of a
	// process that has nothing to do, and 0 of one that has failed.
	Throughput, Stretch float64
	Busy                float64 // share of the time in which its kernels run, 0-1
	// Of a load in requests: those answered in a second, and how long each takes.
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

// Truth returns what every process on every device achieves now, by GPU and start, and after those
// every process that was killed since the start of the node.
func (n *Node) Truth() []Truth {
	n.lock()
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
	r := Truth{PID: t.proc.pid, GPU: t.on.gpu.uuid, Index: t.on.gpu.index, Busy: t.does.Busy,
		PerSecond: t.does.PerSecond, Latency: t.does.Latency}
	if c := t.on.compute; c != nil {
		r.MIG = c.UUID
		r.Profile = t.on.instance.Profile.Name
	}

	if p := t.proc.of; p != nil {
		r.Namespace = p.spec.Namespace
		r.Pod = p.name
		r.PodUID = p.uid
		r.Container = t.proc.container
		r.Owner = p.spec.Owner
	}

	if t.workload != nil {
		r.Workload = t.workload.Name
	}

	whole := kernels.Run(n.demand(t), place{gpu: t.on.gpu}.kernelDevice(0))
	r.Throughput = t.does.Throughput / whole.Throughput
	r.Stretch = t.does.Stretch / whole.Stretch
	r.Alone = Alone{Busy: whole.Busy, PerSecond: whole.PerSecond, Latency: whole.Latency}

	return r
}

// recordFailure notes what has become of a process that is killed.
func (n *Node) recordFailure(p *process, why string) {
	for _, t := range p.tasks {
		r := n.truth(t)
		r.Throughput = 0
		r.Stretch = 0
		r.Busy = 0
		r.PerSecond = 0
		r.Latency = 0
		r.Failed = why
		r.FailedAt = n.at
		n.failures = append(n.failures, r)
	}
}
