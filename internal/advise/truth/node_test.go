package truth

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

const gib = 1 << 30

// node is a generated node of eight GPUs of one model.
type node struct {
	name  string
	model model
	gpus  [8]*workload // nil for a free one
}

// newNode generates a node; the same numbers give the same node.
func newNode(seed uint64, index int) *node {
	r := rand.New(rand.NewPCG(seed, uint64(index)))
	all := models()

	n := &node{name: fmt.Sprintf("node-%d", index), model: all[r.IntN(len(all))]}
	for i := 0; i < len(n.gpus); i++ {
		if r.IntN(20) == 0 {
			continue
		}

		w := newWorkload(r, &n.model)

		w.pods, w.copies = min(w.pods, len(n.gpus)-i), min(w.copies, len(n.gpus)-i)
		for k := range w.pods {
			n.gpus[i+k] = w
		}

		for k := 1; k < w.copies; k++ {
			other := *w
			other.replica = k
			n.gpus[i+k] = &other
		}

		i += max(w.pods, w.copies) - 1
	}

	return n
}

// start is a Monday at midnight.
func start() time.Time { return time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC) }

func (n *node) wholeDevice() kernels.Device {
	return kernels.Device{SMs: float64(n.model.sms), Bandwidth: 1, Engines: n.model.engines}
}

// device returns what a profile is to the workload model.
func (n *node) device(p *gpu.Profile, loss float64) kernels.Device {
	return kernels.Device{
		SMs: float64(p.SMs), Bandwidth: float64(p.MemorySlices) / float64(n.model.AxisUnits), Engines: enginesOf(p), Loss: loss,
	}
}

// snapshot returns what the exporter publishes of the node before the first minute.
func (n *node) snapshot() *gpu.Snapshot {
	sources := []gpu.SourceState{{Name: gpu.SourceKubelet, Up: true}, {Name: gpu.SourceKubernetes, Up: true}}

	s := &gpu.Snapshot{Hostname: n.name, Sources: sources}
	for i := range n.gpus {
		g := gpu.GPU{
			Facts: gpu.Facts{
				UUID: gpu.UUID(fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i)), Index: i, Name: n.model.Name,
				SMs: gpu.Some(n.model.sms), Profiles: n.model.Profiles,
			},
			Device: gpu.Device{Up: true}, MIG: gpu.MIGState{Enabled: gpu.Some(false)}, ActivitySource: gpu.ActivityGPM,
			Power: gpu.PowerEstimate{IdleWatts: gpu.Some(n.model.idleWatts)},
		}
		g.Readings.Memory.Total = gpu.Some(uint64(n.model.gib * gib))
		g.Readings.PowerLimitWatts = gpu.Some(n.model.limitWatts)
		g.Readings.Processes = gpu.Some([]gpu.Process{}) // the exporter sees the host's, and none draws
		g.Readings.PCIe = gpu.PCIe{LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(n.model.pcieGen)}
		s.GPUs = append(s.GPUs, g)
	}

	return s
}

// linkBytes returns what the PCIe link of a GPU moves in a second.
func linkBytes(m *model) float64 { return 16 * 250e6 * float64(int(1)<<(m.pcieGen-1)) }

// watts returns the power of a GPU by what kernels do, as the full simulator has it for kernels
// without tensor cores.
func (m *model) watts(r kernels.Result) float64 {
	load := 0.62*r.SMs/float64(m.sms) + 0.35*r.Bandwidth
	return m.idleWatts + min(1, load)*(m.limitWatts-m.idleWatts)
}

// advance makes a Snapshot that of the end of a minute, for GPUs without MIG mode.
func (n *node) advance(s *gpu.Snapshot, minute int) {
	s.Time = start().Add(time.Duration(minute+1) * time.Minute)
	for i, w := range n.gpus {
		n.work(&s.GPUs[i], w, n.hold(&s.GPUs[i], w, minute), 60)
	}

	n.answer(s, minute)
}

// hold gives a GPU its holders, memory and media engines in a minute, and returns what its kernels
// do.
func (n *node) hold(g *gpu.GPU, w *workload, minute int) kernels.Result {
	r := kernels.Result{}

	running := false

	number := 0
	if w != nil {
		running, number = w.runs(minute)
	}

	g.Holders, g.Allocated = nil, gpu.Some(running)
	used := uint64(0)
	wanted := kernels.Engines{}

	if running {
		r = kernels.Run(w.demand(minute), n.wholeDevice())
		g.Holders = w.holders(g.Index, number)
		used, wanted = uint64(w.takes(minute)*gib), w.uses(minute)
	}

	g.Readings.Memory.Used = gpu.Some(used)
	g.Readings.Media = mediaOf(wanted, n.model.engines, r)

	return r
}

// work gives a GPU what its kernels do in some seconds.
func (n *node) work(g *gpu.GPU, w *workload, r kernels.Result, seconds float64) {
	g.Activity.GraphicsEngine, g.Activity.SM = gpu.Some(r.Busy), gpu.Some(r.SMs/float64(n.model.sms))
	g.Activity.DRAM = gpu.Some(r.Bandwidth)

	g.Readings.PowerWatts = gpu.Some(n.model.watts(r))
	if w != nil {
		addTo(&g.Totals.PCIeReceive, w.pcie*r.Busy*linkBytes(&n.model)*seconds)
		addTo(&g.Totals.PCIeTransmit, 0)
		addTo(&g.Totals.NVLinkReceive, w.nvlink*r.Busy*seconds)
		addTo(&g.Totals.NVLinkTransmit, w.nvlink*r.Busy*seconds)
	}
}

func addTo(c *gpu.Opt[gpu.Counter], amount float64) {
	v := c.Or(gpu.Counter{Value: 1e6})
	v.Value += amount
	*c = gpu.Some(v)
}

// mediaOf returns how busy the engines of a device are of which a workload uses so many at full
// speed. Some that it does not have are never busy.
func mediaOf(used, have kernels.Engines, r kernels.Result) gpu.Media {
	share := func(kind int) gpu.Opt[float64] {
		if have[kind] == 0 {
			return gpu.Some(0.)
		}

		return gpu.Some(min(1, used[kind]*r.Throughput/have[kind]))
	}

	return gpu.Media{Encoder: share(0), Decoder: share(1), JPEG: share(2), OFA: share(3)}
}

// holders returns who holds a GPU: one container, or two that share it. They are the same slice
// until the pod is another one.
func (w *workload) holders(index, number int) []gpu.Holder {
	if w.held == nil || w.heldNumber != number {
		w.held = w.newHolders(index, number)
		w.heldNumber = number
	}

	return w.held
}

func (w *workload) newHolders(index, number int) []gpu.Holder {
	name := fmt.Sprintf("%s-%x", w.kind, w.seed)

	owner := "Deployment/" + name
	if w.job {
		owner = "Job/" + name
	}

	h := gpu.Holder{
		Container: gpu.Container{Namespace: "ml", Pod: fmt.Sprintf("%s-%d", name, number), Name: "main"},
		PodUID:    fmt.Sprintf("uid-%s-%d", name, number), Workload: owner,
		Resource: "nvidia.com/gpu", Sharing: gpu.SharingExclusive, Rightsizing: w.hints(),
	}
	if w.replica > 0 {
		h.Pod, h.PodUID = fmt.Sprintf("%s-r%d", h.Pod, w.replica), fmt.Sprintf("%s-r%d", h.PodUID, w.replica)
	}

	if !w.shared {
		return []gpu.Holder{h}
	}

	h.Sharing = gpu.SharingMPS
	other := h
	other.Pod = fmt.Sprintf("other-%d", index)
	other.PodUID = "uid-other"
	other.Workload = "Deployment/other"

	return []gpu.Holder{h, other}
}

// slice is a GPU instance that a workload was moved to.
type slice struct {
	index   int // of the GPU that it was on
	work    *workload
	profile *gpu.Profile
	loss    float64
	moved   int // the minute in which it was moved
}

// sliced returns a node on which each slice is on a GPU of its own: MIG isolates what the workload
// model knows of.
func (n *node) sliced(slices []slice) *gpu.Snapshot {
	s := n.snapshot()
	for i := range s.GPUs {
		g := &s.GPUs[i]
		g.MIG.Enabled = gpu.Some(true)

		if i >= len(slices) {
			continue
		}

		p := slices[i].profile
		g.Instances = []gpu.GPUInstance{{
			ID: 1, Generation: 1, Profile: p.Name, ProfileID: gpu.Some(p.ID), Placement: gpu.Some(p.Placements[0]),
			Device: gpu.Device{Up: true},
			SMs:    gpu.Some(p.SMs), MemorySlices: gpu.Some(p.MemorySlices), ComputeSlices: gpu.Some(p.ComputeSlices),
			ComputeInstances: []gpu.ComputeInstance{{ComputeSlices: gpu.Some(p.ComputeSlices), SMs: gpu.Some(p.SMs)}},
		}}
		g.Instances[0].Memory.Total = gpu.Some(p.MemoryBytes)
	}

	return s
}

// advanceSlices makes a Snapshot of sliced that of the end of a minute.
func (n *node) advanceSlices(s *gpu.Snapshot, slices []slice, minute int) {
	s.Time = start().Add(time.Duration(minute+1) * time.Minute)
	for k := range slices {
		i := &s.GPUs[k].Instances[0]
		n.workIn(i, &slices[k], n.holdSlice(i, &slices[k], minute))
	}

	n.answerIn(s, slices, minute)
}

// holdSlice gives a GPU instance its holders, memory and media engines in a minute, and returns
// what its kernels do.
func (n *node) holdSlice(i *gpu.GPUInstance, s *slice, minute int) kernels.Result {
	w := s.work
	running, number := w.runs(minute)
	i.Holders, i.Allocated = nil, gpu.Some(running)
	r := kernels.Result{}
	used := uint64(0)
	wanted := kernels.Engines{}

	on := n.device(s.profile, s.loss)
	if running {
		r = kernels.Run(w.demand(minute), on)
		i.Holders = s.movedHolders(number)
		wanted = w.uses(minute)

		alive := false
		if used, alive = s.uses(minute); !alive {
			r = kernels.Result{}
			wanted = kernels.Engines{}
		}
	}

	i.Memory.Used = gpu.Some(used)
	if n.model.hasGPM() {
		i.Media = mediaOf(wanted, on.Engines, r)
	}

	return r
}

// workIn gives a GPU instance what its kernels do.
func (n *node) workIn(i *gpu.GPUInstance, s *slice, r kernels.Result) {
	on := n.device(s.profile, s.loss)
	i.Activity = gpu.Activity{
		GraphicsEngine: gpu.Some(r.Busy), SM: gpu.Some(r.SMs / on.SMs), DRAM: gpu.Some(r.Bandwidth / on.Bandwidth),
	}
}
