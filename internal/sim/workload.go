package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

// process is a process of the host or of a container.
type process struct {
	pid       uint32
	podName   string // namespace/name; empty for a process of the host
	pod       *pod   // nil for a process of the host
	container string
	tasks     []*task // one for each of its devices; nil once it has ended
}

// simDevice is a device that processes run on: a whole GPU, or a compute instance.
type simDevice struct {
	gpu      *simGPU
	instance *Instance // nil for a whole GPU
	compute  *Compute  // nil for a whole GPU
}

// task is what one process does on one device.
type task struct {
	proc     *process
	on       simDevice
	workload *Workload // nil: it has the device and does nothing
	started  time.Time
	phase    float64 // where a sine of the workload begins, 0-1: see Signal.At
	share    float64 // the share of the device's memory that it may use; 1 without MPS

	// What the task does in the running step.
	memory  uint64 // bytes
	result  kernels.Result
	kernels [1]kernels.Phase // backs kernels.Demand.Phases of a workload without phases of its own
	sms     float64          // how many SMs it keeps busy
	speed   float64          // its throughput relative to that on a device large enough, 0-1
}

// now returns the present value of a signal of the task's workload.
func (t *task) now(n *Node, s Signal) float64 { return s.At(n.stateTime.Sub(t.started), t.phase) }

// startTask starts a process on devices.
func (n *Node) startTask(p *process, w *Workload, devices []simDevice) {
	for _, on := range devices {
		t := &task{proc: p, on: on, workload: w, started: n.stateTime, share: 1, phase: phaseOf(p.pid)}
		if on.gpu.sharing.Kind == gpu.SharingMPS && p.podName != "" {
			t.share = 1 / float64(on.gpu.sharing.Replicas)
		}

		p.tasks = append(p.tasks, t)
		on.gpu.tasks = append(on.gpu.tasks, t)
	}

	n.resample = true
}

// stopProcess ends a process.
func (n *Node) stopProcess(p *process) {
	for _, t := range p.tasks {
		g := t.on.gpu
		g.tasks = slices.DeleteFunc(g.tasks, func(o *task) bool { return o == t })
	}

	p.tasks = nil
	n.resample = true
}

// kill ends a process before its time and records why. Its pod stays, without the process.
func (n *Node) kill(p *process, why string) {
	if len(p.tasks) == 0 {
		return
	}

	n.record(Record{GPU: gpu.Some(p.tasks[0].on.gpu.index), Pod: p.podName,
		Message: fmt.Sprintf("process %d was killed: %s", p.pid, why)})
	n.recordFailure(p, why)
	n.stopProcess(p)
}

// startProcess starts a process of the scenario that belongs to no pod.
func (n *Node) startProcess(number int, spec *ProcessSpec) {
	on, ok := n.findDevice(spec.Device)
	if !ok {
		n.record(
			Record{
				GPU:     gpu.Some(spec.Device.GPU),
				Message: fmt.Sprintf("no device %s for a process", spec.Device),
			},
		)

		return
	}

	p := &process{pid: n.newPID("process", number)}
	n.startTask(p, spec.Workload, []simDevice{on})

	if spec.For > 0 {
		n.scheduleEnd(n.stateTime.Add(spec.For), func() { n.stopProcess(p) })
	}
}

// findDevice returns the device that a pin names. A GPU with MIG on is no device as a whole.
func (n *Node) findDevice(pin DevicePin) (simDevice, bool) {
	g := n.gpus[pin.GPU]
	if pin.Profile == "" {
		return simDevice{gpu: g}, !g.migOn
	}

	for _, i := range g.instances {
		if i.Profile.Name == pin.Profile && i.Placement.Start == pin.Start {
			_, c := g.compute(i.ID, pin.Compute)
			return simDevice{gpu: g, instance: i, compute: c}, c != nil
		}
	}

	return simDevice{}, false
}

// memoryDomain is memory that tasks share: that of a GPU instance, or of a GPU without MIG.
type memoryDomain struct {
	gpu      *simGPU
	instance *Instance // nil for a GPU
}

// useMemory gives every task the memory that it wants now, in the order of their start. It kills
// the process of a task for which there is too little.
func (n *Node) useMemory(g *simGPU) {
	used := make(map[memoryDomain]uint64)

	for _, t := range slices.Clone(g.tasks) {
		if len(t.proc.tasks) == 0 {
			continue // killed with another task of its process
		}

		domain := memoryDomain{g, t.on.instance}
		size := domain.usable()
		limit := uint64(float64(size) * t.share)
		t.memory = 0

		if t.workload != nil {
			t.memory = uint64(t.now(n, t.workload.Memory.Signal))
			if s := t.workload.Server; s != nil {
				t.memory = s.memoryAfter(n.stateTime.Sub(t.started), limit)
			}
		}

		if t.memory > limit || used[domain]+t.memory > size {
			n.kill(
				t.proc,
				fmt.Sprintf(
					"out of memory on GPU %d: it wants %d MiB of %d",
					g.index,
					t.memory>>20,
					size>>20,
				),
			)
			continue
		}

		used[domain] += t.memory
	}

	for _, i := range g.instances {
		i.MemoryUsed = g.instanceOverhead(i.Profile.ComputeSlices) + used[memoryDomain{g, i}]
	}

	g.sample.memoryUsed = g.overhead() + used[memoryDomain{g, nil}]
	if g.mps != 0 {
		g.sample.memoryUsed += mpsServerMemory
	}

	for _, i := range g.instances {
		g.sample.memoryUsed += i.MemoryUsed
	}
}

// mpsServerMemory is the memory in bytes that an MPS server takes (our choice, not measured).
const mpsServerMemory = 30 << 20

// overhead returns the memory in bytes that the driver itself uses of a GPU. What it uses of each
// GPU instance comes on top: see instanceOverhead.
func (g *simGPU) overhead() uint64 {
	if !g.migOn {
		return 1 << 20
	}

	return cmp.Or(g.model.idleMemory.gpu, 1) << 20
}

// instanceOverhead returns the memory in bytes that the driver itself uses of a GPU instance with
// some number of compute slices.
func (g *simGPU) instanceOverhead(slices int) uint64 {
	idle := g.model.idleMemory // zero fields: 5 MiB as of an A100

	switch slices {
	case 1:
		return cmp.Or(idle.one, 5) << 20
	case 2:
		return cmp.Or(idle.two, 5) << 20
	}

	return cmp.Or(idle.more, 5) << 20
}

// usable returns how many bytes of a domain tasks can use.
func (d memoryDomain) usable() uint64 {
	if d.instance != nil {
		return d.instance.Profile.MemoryBytes - d.gpu.instanceOverhead(
			d.instance.Profile.ComputeSlices,
		)
	}

	usable := (d.gpu.model.memoryMiB-d.gpu.model.reservedMiB)<<20 - d.gpu.overhead()
	if d.gpu.mps != 0 {
		usable -= mpsServerMemory
	}

	return usable
}
