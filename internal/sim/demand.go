package sim

import (
	"iter"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

// Demand is what a workload asks of the SMs and of the memory bandwidth. Without Width and Phases
// it does nothing.
type Demand struct {
	Width     signalOf[smCount]        `yaml:",omitempty"` // SMs that its kernels fill while they run
	Bandwidth signalOf[reachableShare] `yaml:",omitempty"` // of the GPU's memory, that they draw meanwhile
	// Phases are several kinds of kernels, in the place of Width and Bandwidth.
	Phases phaseList `yaml:",omitempty"`
	// Busy is how much of the time kernels run on a device large enough. It is not used if there
	// are Requests.
	Busy     signalOf[share] `yaml:",omitempty"`
	Requests *Requests       `yaml:",omitempty"`
	// Loss is the share by which its kernels run longer in a slice than SMs and bandwidth explain:
	// what no metric shows, such as a smaller share of the L2 cache, or lower clocks.
	Loss share `yaml:",omitempty"`
	// ofDevice is set for the shorthand sm: kernels draw the workload's DRAM of what their device
	// has, and are never short of it.
	ofDevice bool
}

// Requests are a load in requests: of Concurrency clients that each wait for the answer, or Rate
// per second that queue.
type Requests struct {
	Concurrency int                      `yaml:",omitempty" range:"1..65536"`
	Rate        signalOf[requestsPerSec] `yaml:",omitempty"`
	// GPU and Host are the times that each takes.
	GPU  time.Duration `yaml:"gpu" expected:"the time on the GPU of a request, such as 24ms" nonzero:"more than no time"` //nolint:lll // a struct tag is one line
	Host time.Duration `yaml:",omitempty"`
}

// demand returns what a task would do now on a device large enough.
func (n *Node) demand(t *task) kernels.Demand {
	if t.workload == nil {
		return kernels.Demand{}
	}

	l := &t.workload.Demand

	d := kernels.Demand{Phases: l.Phases, Media: kernels.Engines(t.media(n))}
	if d.Phases == nil {
		p := kernels.Phase{
			Share:     1,
			Width:     t.now(n, l.Width.Signal),
			Bandwidth: t.now(n, l.Bandwidth.Signal),
		}
		if p.Width == 0 && p.Bandwidth == 0 {
			return d
		}

		t.kernels[0] = p
		d.Phases = t.kernels[:]
	}

	if r := l.Requests; r != nil {
		d.Requests = kernels.Requests{
			Concurrency: r.Concurrency,
			Rate:        t.now(n, r.Rate.Signal),
			GPU:         r.GPU,
			Host:        r.Host,
		}

		return d
	}

	d.Busy = t.now(n, l.Busy.Signal)

	return d
}

// kernelDevice returns what a device has for kernels. Those of a slice suffer a loss.
func (p place) kernelDevice(loss float64) kernels.Device {
	if p.compute == nil {
		return kernels.Device{SMs: float64(p.gpu.model.sms), Bandwidth: 1, Engines: p.engines()}
	}

	return kernels.Device{
		SMs:       float64(p.compute.SMs),
		Bandwidth: p.instance.bandwidth(p.gpu),
		Engines:   p.engines(),
		Loss:      loss,
	}
}

// engines returns the media engines of a device. Compute instances share those of their GPU
// instance.
func (p place) engines() kernels.Engines {
	have := p.gpu.engines()
	if p.instance != nil {
		have = p.instance.Profile.Engines.Or(gpu.Engines{})
	}

	var engines kernels.Engines
	for kind, count := range mediaCounts(have) {
		engines[kind] = float64(count)
	}

	return engines
}

// bandwidth returns an instance's share of its GPU's memory bandwidth, which is in proportion to
// its memory.
func (i *Instance) bandwidth(g *simGPU) float64 {
	return float64(i.Placement.Size) / float64(g.mig.AxisUnits)
}

// runKernels computes what the tasks of a GPU do: each on its device, and together with the others
// there. Compute instances of a GPU instance have SMs of their own, but share its memory.
func (n *Node) runKernels(g *simGPU) {
	for _, t := range g.tasks {
		loss := 0.0
		if t.workload != nil {
			loss = float64(t.workload.Demand.Loss)
		}

		t.does = kernels.Run(n.demand(t), t.on.kernelDevice(loss))
	}

	for on, tasks := range tasksBy(g.tasks, func(t *task) place { return t.on }) {
		contend(tasks, on.kernelDevice(0), g.sharesByMPS())
	}

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
		t.sms = t.does.SMs
		t.speed = t.does.Throughput
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
			results[i] = &t.does
			demands[i] = n.demand(t)
		}

		kernels.ContendForEngines(results, demands, tasks[0].on.engines())
	}
}

func (g *simGPU) sharesByMPS() bool { return g.sharing.Kind == gpu.SharingMPS }

func contend(tasks []*task, on kernels.Device, mps bool) {
	if len(tasks) < 2 {
		return
	}

	results := make([]*kernels.Result, len(tasks))
	for i, t := range tasks {
		results[i] = &t.does
	}

	kernels.Contend(results, on, mps)
}

// tasksBy yields the tasks that have a key in common, in the order of their start.
func tasksBy[K comparable](tasks []*task, key func(t *task) K) iter.Seq2[K, []*task] {
	return func(yield func(K, []*task) bool) {
		for first, t := range tasks {
			of := key(t)

			have := func(o *task) bool { return key(o) == of }
			if slices.ContainsFunc(tasks[:first], have) {
				continue
			}

			group := tasks[first : first+1 : first+1] // mostly all
			for _, o := range tasks[first+1:] {
				if have(o) {
					group = append(group, o)
				}
			}

			if !yield(of, group) {
				return
			}
		}
	}
}
