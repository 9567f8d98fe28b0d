package sim

import (
	"iter"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

// Demand is how many SMs and how much memory bandwidth a workload asks for. Without Width and Phases
// it does nothing.
type Demand struct {
	// Width is how many SMs the kernels fill while they run, and Bandwidth the share of the GPU's
	// memory bandwidth that they draw meanwhile.
	Width     signalOf[smCount]        `yaml:",omitempty"`
	Bandwidth signalOf[reachableShare] `yaml:",omitempty"`
	// Phases replace Width and Bandwidth for a workload with several kinds of kernels.
	Phases phaseList `yaml:",omitempty"`
	// Busy is the share of the time in which kernels run on a device large enough. It is not used if
	// there are Requests.
	Busy     signalOf[share] `yaml:",omitempty"`
	Requests *Requests       `yaml:",omitempty"`
	// Loss says how much longer kernels run in a slice than SMs and bandwidth explain: 0.1 for 10 %.
	// No metric shows the reason, such as a smaller share of the L2 cache or lower clocks.
	Loss share `yaml:",omitempty"`
	// ofDevice is set for the shorthand sm: the memory bandwidth is then Workload.DRAM, a share of
	// the device's own bandwidth, and the kernels are never short of it.
	ofDevice bool
}

// Requests say that a workload answers requests: either Concurrency clients each wait for an answer
// before they ask again, or Rate requests a second arrive and queue.
type Requests struct {
	Concurrency int                      `yaml:",omitempty" range:"1..65536"`
	Rate        signalOf[requestsPerSec] `yaml:",omitempty"`
	// GPU and Host are how long one request takes on the GPU and on the host.
	GPU  time.Duration `yaml:"gpu" expected:"the time on the GPU of a request, such as 24ms" nonzero:"more than no time"` //nolint:lll // a struct tag is one line
	Host time.Duration `yaml:",omitempty"`
}

// demand returns what a task asks for now: what it would do on a device large enough.
func (n *Node) demand(t *task) kernels.Demand {
	if t.workload == nil {
		return kernels.Demand{}
	}

	spec := &t.workload.Demand

	d := kernels.Demand{Phases: spec.Phases, Media: kernels.Engines(t.media(n))}
	if d.Phases == nil {
		p := kernels.Phase{
			Share:     1,
			Width:     t.now(n, spec.Width.Signal),
			Bandwidth: t.now(n, spec.Bandwidth.Signal),
		}
		if p.Width == 0 && p.Bandwidth == 0 {
			return d
		}

		t.kernels[0] = p
		d.Phases = t.kernels[:]
	}

	if r := spec.Requests; r != nil {
		d.Requests = kernels.Requests{
			Concurrency: r.Concurrency,
			Rate:        t.now(n, r.Rate.Signal),
			GPU:         r.GPU,
			Host:        r.Host,
		}

		return d
	}

	d.Busy = t.now(n, spec.Busy.Signal)

	return d
}

// kernelDevice describes the device for package kernels. Only kernels in a slice suffer the loss
// (Demand.Loss).
func (d simDevice) kernelDevice(loss float64) kernels.Device {
	if d.compute == nil {
		return kernels.Device{SMs: float64(d.gpu.model.sms), Bandwidth: 1, Engines: d.engines()}
	}

	return kernels.Device{
		SMs:       float64(d.compute.SMs),
		Bandwidth: d.instance.bandwidth(d.gpu),
		Engines:   d.engines(),
		Loss:      loss,
	}
}

// engines returns the media engines of a device. Compute instances share those of their GPU
// instance.
func (d simDevice) engines() kernels.Engines {
	available := d.gpu.engines()
	if d.instance != nil {
		available = d.instance.Profile.Engines.Or(gpu.Engines{})
	}

	var counts kernels.Engines
	for kind, count := range mediaCounts(available) {
		counts[kind] = float64(count)
	}

	return counts
}

// bandwidth returns an instance's share of its GPU's memory bandwidth, which is in proportion to
// its memory.
func (i *Instance) bandwidth(g *simGPU) float64 {
	return float64(i.Placement.Size) / float64(g.mig.AxisUnits)
}

// runKernels computes what the tasks of a GPU do: first what each would do alone on its device, then
// how much tasks slow each other down that share SMs, memory bandwidth or media engines.
func (n *Node) runKernels(g *simGPU) {
	for _, t := range g.tasks {
		loss := 0.0
		if t.workload != nil {
			loss = float64(t.workload.Demand.Loss)
		}

		t.result = kernels.Run(n.demand(t), t.on.kernelDevice(loss))
	}

	for on, tasks := range tasksBy(g.tasks, func(t *task) simDevice { return t.on }) {
		contend(tasks, on.kernelDevice(0), g.sharesByMPS())
	}

	// Compute instances of one GPU instance have SMs of their own, but share its memory bandwidth. We
	// let them contend on a device that has SMs for all, where all run at once, as with MPS.
	for i, tasks := range tasksBy(g.tasks, func(t *task) *Instance { return t.on.instance }) {
		if i != nil && len(i.ComputeInstances) > 1 {
			contend(
				tasks,
				kernels.Device{SMs: float64(g.model.sms), Bandwidth: i.bandwidth(g)},
				true,
			)
		}
	}

	n.contendForEngines(g)

	for _, t := range g.tasks {
		t.sms = t.result.SMs
		t.speed = t.result.Throughput
	}
}

// contendForEngines slows down the tasks that share the media engines of a GPU instance, or of a
// GPU without MIG.
func (n *Node) contendForEngines(g *simGPU) {
	for _, tasks := range tasksBy(g.tasks, func(t *task) *Instance { return t.on.instance }) {
		if len(tasks) < 2 {
			continue
		}

		results := make([]*kernels.Result, len(tasks))
		demands := make([]kernels.Demand, len(tasks))

		for i, t := range tasks {
			results[i] = &t.result
			demands[i] = n.demand(t)
		}

		kernels.ContendForEngines(results, demands, tasks[0].on.engines())
	}
}

func (g *simGPU) sharesByMPS() bool { return g.sharing.Kind == gpu.SharingMPS }

// contend slows down tasks that share a device: they run at once with MPS, and in turns without.
func contend(tasks []*task, on kernels.Device, mps bool) {
	if len(tasks) < 2 {
		return
	}

	results := make([]*kernels.Result, len(tasks))
	for i, t := range tasks {
		results[i] = &t.result
	}

	kernels.Contend(results, on, mps)
}

// tasksBy groups tasks by a key. It yields each key with its tasks; groups, and the tasks in each,
// are in the order of their start.
func tasksBy[K comparable](tasks []*task, keyOf func(t *task) K) iter.Seq2[K, []*task] {
	return func(yield func(K, []*task) bool) {
		for first, t := range tasks {
			key := keyOf(t)

			hasKey := func(o *task) bool { return keyOf(o) == key }
			if slices.ContainsFunc(tasks[:first], hasKey) {
				continue // it is in a group that we have yielded
			}

			// Most groups have one task: the part of tasks itself, without an allocation.
			group := tasks[first : first+1 : first+1]
			for _, o := range tasks[first+1:] {
				if hasKey(o) {
					group = append(group, o)
				}
			}

			if !yield(key, group) {
				return
			}
		}
	}
}
