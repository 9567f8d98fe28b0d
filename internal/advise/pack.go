package advise

import (
	"cmp"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// What MIG does not isolate is kept in bounds on a GPU that gets slices: power as a share of the
// limit, traffic as a share of the link.
const (
	maxPower = 0.9
	maxPCIe  = 0.7
)

// maxPackingSteps bounds the search for the fewest GPUs, in slices tried on a GPU; 16 GPUs need far
// fewer. It takes about a second.
const maxPackingSteps = 500_000

// moved is a workload that is to leave its whole GPU for a slice.
type moved struct {
	from    int // index of the GPU in the Snapshot
	device  int // index of its Recommendation in the Report
	owner   owner
	profile *gpu.Profile
	draw    draw
}

// owner is what replicas have in common, on GPUs and slices of whatever kind.
type owner struct{ namespace, name string }

func ownerOf(r *Recommendation) owner { return owner{r.Workload.Namespace, r.Workload.Owner} }

// target is a GPU that can get slices.
type target struct {
	at   int // index of the GPU in the Snapshot
	cost int // 1 if it is a whole GPU now, 0 if MIG is on
	// drained: a workload must leave it first.
	drained bool
	fixed   []mig.Placed
	free    []mig.Placed // GPU instances that exist and that nothing holds
	idle    float64      // its power, as a share of the limit
	// What stays on it: whether anything does, what that draws, and its replicas.
	tenants bool
	draw    draw
	staying map[owner]int
	taken   []int // indices of the moved workloads that it gets
}

// packer searches for the targets of all moved workloads of one model that need the fewest whole
// GPUs.
type packer struct {
	profiles []gpu.Profile
	moved    []moved
	targets  []target
	replicas map[owner]int // of the owners of moved workloads, those that stay included
	steps    int
	cost     int
	best     [][]int // by target; nil if none was found yet
	bestCost int
	fits     map[string][]mig.Placed // by target and profiles; nil if they do not fit
}

// Pack adds how the recommendations for the devices of a Snapshot fit on the fewest GPUs, and what
// each gains. Those that gain nothing become ReasonNoGain. It can take a second and needs no
// Advisor.
func (r *Report) Pack(s *gpu.Snapshot) {
	// An answer that is not final yet, and gains nothing even if all others are, will be refused in
	// the end: so we refuse it at once.
	if slices.ContainsFunc(r.Devices, func(d Recommendation) bool { return d.isSlice() && !d.Candidate() }) {
		r.packAll(s.GPUs, (*Recommendation).isSlice, func(d *Recommendation) bool { return !d.Candidate() })
	}

	r.Packing = r.packAll(s.GPUs, (*Recommendation).Candidate, (*Recommendation).Candidate)

	for i := range r.Devices {
		if d := &r.Devices[i]; d.Gain != nil {
			d.Explanation = d.sentence + "; " + d.Gain.String()
		}
	}
}

// packAll packs the workloads that move until each one that may be refused gains something.
func (r *Report) packAll(gpus []gpu.GPU, moves, mayRefuse func(*Recommendation) bool) *Packing {
	for {
		for i := range r.Devices {
			r.Devices[i].Gain = nil
		}

		packing, idle := pack(r, gpus, moves)
		idle = slices.DeleteFunc(idle, func(at int) bool { return !mayRefuse(&r.Devices[at]) })

		if len(idle) == 0 {
			return packing
		}

		// Without them the others may be packed another way.
		for _, at := range idle {
			r.Devices[at].refuseGain()
		}
	}
}

// pack places the recommended slices of a node on the fewest of its GPUs, and fills in their gains.
// It returns nil if nothing is to be moved, or if the node uses the single strategy and not all of
// it can move. Slices for which no placement was found are left out, and Proven is false then. It
// also returns the devices that gain nothing.
func pack(
	report *Report,
	gpus []gpu.GPU,
	moves func(*Recommendation) bool,
) (found *Packing, idle []int) {
	devices := report.Devices
	single := report.SingleStrategy
	packing := &Packing{Proven: true, GPUs: []PackedGPU{}, FreedGPUs: []int{}}
	models := map[string]bool{}

	for i := range devices {
		r := &devices[i]
		if !r.isSlice() {
			continue
		}

		if single && !moves(r) {
			return nil, nil // the node cannot move in part
		}

		if !moves(r) || models[r.Model] {
			continue
		}

		models[r.Model] = true
		p := newPacker(r.Model, report, gpus, moves)
		p.search(0)

		if p.best == nil {
			packing.Proven = false
			continue
		}

		packing.Proven = packing.Proven && p.steps < maxPackingSteps
		idle = append(idle, p.weighGains(report)...)
		p.addTo(packing, gpus)
	}

	if len(models) == 0 {
		return nil, nil
	}

	slices.SortFunc(packing.GPUs, func(a, b PackedGPU) int { return cmp.Compare(a.Index, b.Index) })
	slices.Sort(packing.FreedGPUs)

	return packing, idle
}

// newPacker collects the moved workloads and the targets of one model. Targets are sorted by what
// their use costs an operator: GPUs in MIG mode, free GPUs, GPUs that must be drained.
func newPacker(
	model string,
	report *Report,
	gpus []gpu.GPU,
	moves func(*Recommendation) bool,
) *packer {
	p := &packer{
		replicas: map[owner]int{},
		fits:     map[string][]mig.Placed{},
		bestCost: len(gpus) + 1,
	}
	var drained, free, partitioned []target

	for i := range gpus {
		g := &gpus[i]
		if g.Name != model || !g.Up || !g.MIG.Enabled.Present() {
			continue
		}

		if p.profiles == nil {
			p.profiles = g.Profiles
		}

		r := recommendationOf(report.Devices, g.UUID)
		switch on := g.MIG.Enabled.Or(false); {
		case on && !report.SingleStrategy:
			partitioned = append(partitioned, partitionedTarget(i, g, report))
		case on || r == nil:
		case r.Action == ActionFree:
			free = append(free, target{at: i, cost: 1, idle: idleShareOf(g)})
		case moves(r):
			at := slices.IndexFunc(g.Profiles, func(q gpu.Profile) bool {
				return q.Name == r.Recommended
			})
			if at < 0 {
				continue
			}

			p.moved = append(p.moved, moved{
				from:    i,
				device:  indexOf(report.Devices, g.UUID),
				owner:   ownerOf(r),
				profile: &g.Profiles[at],
				draw:    draw{r.Evidence.PowerP95, r.Evidence.PCIeMax},
			})
			drained = append(drained, target{at: i, cost: 1, drained: true, idle: idleShareOf(g)})
		}
	}

	p.targets = slices.Concat(partitioned, free, drained)
	slices.SortStableFunc(p.moved, func(a, b moved) int {
		return cmp.Or(
			cmp.Compare(b.profile.MemorySlices, a.profile.MemorySlices),
			cmp.Compare(b.profile.SMs, a.profile.SMs),
		)
	})

	for i := range report.Devices {
		if r := &report.Devices[i]; r.Workload != nil {
			p.replicas[ownerOf(r)]++
		}
	}

	return p
}

// recommendationOf returns the recommendation for a whole GPU.
func recommendationOf(devices []Recommendation, id gpu.UUID) *Recommendation {
	at := indexOf(devices, id)
	if at < 0 {
		return nil
	}

	return &devices[at]
}

// indexOf returns the index of the recommendation for a whole GPU; -1 if there is none.
func indexOf(devices []Recommendation, id gpu.UUID) int {
	return slices.IndexFunc(devices, func(r Recommendation) bool {
		return r.GPU == id && !r.Instance.Present()
	})
}

// partitionedTarget returns a GPU in MIG mode with what stays on it. Until its power has been
// observed, what it draws now stands for that.
func partitionedTarget(at int, g *gpu.GPU, report *Report) target {
	t := target{at: at, idle: idleShareOf(g), staying: map[owner]int{}}

	observed := false
	if t.draw, observed = report.tenants[g.UUID]; !observed {
		t.draw.power = max(
			0,
			g.Readings.PowerWatts.Or(0)/max(1, g.Readings.PowerLimitWatts.Or(1))-t.idle,
		)
	}

	free := map[gpu.InstanceID]bool{}

	for i := range report.Devices {
		r := &report.Devices[i]
		if r.GPU != g.UUID || !r.Instance.Present() {
			continue
		}

		free[r.Instance.Or(0)] = r.Action == ActionFree

		t.tenants = t.tenants || r.Action != ActionFree
		if r.Workload != nil {
			t.staying[ownerOf(r)]++
		}
	}

	for k := range g.Instances {
		i := &g.Instances[k]

		place, ok := i.Placement.Get()
		if !ok {
			t.fixed = append(t.fixed, mig.Placed{Profile: i.Profile}) // it takes what its name says
			continue
		}

		placed := mig.Placed{ProfileID: i.ProfileID.Or(0), Profile: i.Profile, Placement: place}

		allocated, known := i.Allocated.Get()
		if known && !allocated && free[i.ID] && len(i.ComputeInstances) == 1 && !i.IsSplit() {
			t.free = append(t.free, placed)
		}

		t.fixed = append(t.fixed, placed)
	}

	return t
}

func idleShareOf(g *gpu.GPU) float64 {
	return g.Power.IdleWatts.Or(0) / max(1, g.Readings.PowerLimitWatts.Or(1))
}

// search assigns targets to the moved workloads from index from on, and keeps the cheapest
// assignment.
func (p *packer) search(from int) {
	if p.cost+p.needed(from) >= p.bestCost || p.steps >= maxPackingSteps {
		return
	}

	if from == len(p.moved) {
		if p.spreadsReplicas() {
			p.bestCost = p.cost
			p.best = make([][]int, len(p.targets))

			for i := range p.targets {
				p.best[i] = slices.Clone(p.targets[i].taken)
			}
		}

		return
	}

	var empty []float64 // idle power of the empty targets that were tried: one of several alike is enough

	for i := range p.targets {
		t := &p.targets[i]

		unused := len(t.taken) == 0 && t.cost == 1
		if unused && slices.Contains(empty, t.idle) {
			continue
		}

		if unused {
			empty = append(empty, t.idle)
		}

		p.steps++
		t.taken = append(t.taken, from)

		if p.holds(i) {
			if unused {
				p.cost++
			}

			p.search(from + 1)

			if unused {
				p.cost--
			}
		}

		t.taken = t.taken[:len(t.taken)-1]
	}
}

// needed returns how many further whole GPUs the moved workloads from an index on need at least:
// their memory slices, less all that the used targets have left.
func (p *packer) needed(from int) int {
	axis := 0
	slices := 0

	for i := range p.profiles {
		axis = max(axis, p.profiles[i].MemorySlices)
	}

	for i := from; i < len(p.moved); i++ {
		slices += p.moved[i].profile.MemorySlices
	}

	for i := range p.targets {
		t := &p.targets[i]
		if t.cost == 1 && len(t.taken) == 0 {
			continue
		}

		slices -= axis
		for _, k := range t.taken {
			slices += p.moved[k].profile.MemorySlices
		}
	}

	if axis == 0 || slices <= 0 {
		return 0
	}

	return (slices + axis - 1) / axis
}

// holds reports whether a target can hold what it was given.
func (p *packer) holds(at int) bool {
	t := &p.targets[at]

	var all draw
	if t.tenants {
		all = t.draw
	}

	for _, k := range t.taken {
		all.add(p.moved[k].draw)
	}

	// A workload that is alone is no worse off than on a GPU of its own.
	if (len(t.taken) > 1 || t.tenants) && (t.idle+all.power > maxPower || all.pcie > maxPCIe) {
		return false
	}

	return p.arrangeTarget(at) != nil
}

// arrangeTarget returns where the slices of a target can be created, or which exist, in the order
// of taken; nil if they do not fit.
func (p *packer) arrangeTarget(at int) []mig.Placed {
	t := &p.targets[at]

	var key strings.Builder
	if t.cost == 0 {
		key.WriteByte(byte('A' + at))
	}

	for _, k := range t.taken {
		key.WriteByte('/')
		key.WriteString(p.moved[k].profile.Name)
	}

	placed, known := p.fits[key.String()]
	if !known {
		placed = p.arrange(t)
		p.fits[key.String()] = placed
	}

	return placed
}

// arrange places the slices that a target gets. Those that exist already and are free come first.
func (p *packer) arrange(t *target) []mig.Placed {
	free := slices.Clone(t.free)
	placed := make([]mig.Placed, len(t.taken))
	var created []string

	for i, k := range t.taken {
		name := p.moved[k].profile.Name

		at := slices.IndexFunc(free, func(f mig.Placed) bool { return f.Profile == name })
		if at < 0 {
			created = append(created, name)
			continue
		}

		placed[i] = free[at]
		free = slices.Delete(free, at, at+1)
	}

	beside := mig.PlaceBeside(p.profiles, t.fixed, created)
	if beside == nil {
		return nil
	}

	for i := range placed {
		if placed[i].Profile == "" {
			placed[i] = beside[0]
			beside = beside[1:]
		}
	}

	return placed
}

// spreadsReplicas reports whether no target gets all replicas of an owner that has several, with
// those that it has.
func (p *packer) spreadsReplicas() bool {
	for i := range p.targets {
		t := &p.targets[i]
		counts := map[owner]int{}

		for _, k := range t.taken {
			of := p.moved[k].owner

			counts[of]++
			if all := counts[of] + t.staying[of]; all > 1 && all == p.replicas[of] {
				return false
			}
		}
	}

	return true
}

// addTo adds the best way that was found to a packing.
func (p *packer) addTo(packing *Packing, gpus []gpu.GPU) {
	used := map[int]bool{}

	for i := range p.targets {
		t := &p.targets[i]
		if t.taken = p.best[i]; len(t.taken) == 0 {
			continue
		}

		used[t.at] = true
		packed := PackedGPU{GPU: gpus[t.at].UUID, Index: gpus[t.at].Index}

		for k, placed := range p.arrangeTarget(i) {
			packed.Slices = append(packed.Slices, PackedSlice{
				Profile: placed.Profile,
				From:    gpus[p.moved[t.taken[k]].from].Index,
				Exists:  slices.Contains(t.free, placed),
			})
		}

		packing.GPUs = append(packing.GPUs, packed)
	}

	packing.InUse += len(p.moved)
	packing.Needed += p.bestCost

	for i := range p.moved {
		if from := p.moved[i].from; !used[from] {
			packing.FreedGPUs = append(packing.FreedGPUs, gpus[from].Index)
		}
	}
}
