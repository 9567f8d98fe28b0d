package advise

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// MIG isolates neither power nor PCIe traffic. On a GPU that gets slices we keep both within bounds:
// power as a share of the limit, traffic as a share of the link.
const (
	maxPower = 0.9
	maxPCIe  = 0.7
)

// maxPackingSteps bounds the search for the fewest GPUs, in slices tried on a GPU. It takes about a
// second; nodes with 16 GPUs need far fewer steps.
const maxPackingSteps = 500_000

// move is a workload that should leave its whole GPU for a slice.
type move struct {
	from           int // index of the GPU in the Snapshot
	recommendation *Recommendation
	owner          owner
	profile        *gpu.Profile
	draw           draw
}

// owner is what replicas have in common, whatever GPUs and slices they run on.
type owner struct{ namespace, name string }

func ownerOf(r *Recommendation) owner { return owner{r.Workload.Namespace, r.Workload.Owner} }

// target is a GPU that can get slices.
type target struct {
	at        int          // index of the GPU in the Snapshot
	cost      int          // whole GPUs that its use takes: 0 if MIG is on already, else 1
	drained   bool         // a workload must leave it first
	existing  []mig.Placed // its GPU instances
	free      []mig.Placed // those of them that nothing holds
	idlePower float64      // as a share of the power limit
	staying   staying
	taken     []int // indices of the moves that it gets
}

// staying is what stays on a target.
type staying struct {
	any      bool
	draw     draw
	replicas map[owner]int
}

// isUnused reports whether a target is a whole GPU that gets no slice so far.
func (t *target) isUnused() bool { return t.cost == 1 && len(t.taken) == 0 }

// packer assigns all moves of one model to targets, and searches for the assignment that needs the
// fewest whole GPUs.
type packer struct {
	profiles []gpu.Profile
	moves    []move
	targets  []target
	replicas map[owner]int // of each owner on the node, moved or not

	steps    int     // slices tried on a GPU so far
	cost     int     // of the assignment so far: whole GPUs
	best     [][]int // moves by target; nil if no assignment was found yet
	bestCost int

	// arrangements remembers arrange by target and profiles; nil if the profiles do not fit. Targets
	// in MIG mode come first, so that their indices are the same in all searches of a model.
	arrangements map[string][]mig.Placed
}

// nodePacker packs the slices of a node, each model apart.
type nodePacker struct {
	report *Report
	gpus   []gpu.GPU
	// arrangements are those of packer by model. All searches share them: they do not depend on which
	// slices move.
	arrangements map[string]map[string][]mig.Placed
	steps        int // slices tried on a GPU, in all searches
}

func newNodePacker(r *Report, gpus []gpu.GPU) *nodePacker {
	return &nodePacker{report: r, gpus: gpus, arrangements: map[string]map[string][]mig.Placed{}}
}

// Pack adds how the recommendations for the devices of a Snapshot fit on the fewest GPUs, and what
// each gains. Those that gain nothing become ReasonNoGain. It can take two seconds and needs no
// Advisor.
func (r *Report) Pack(s *gpu.Snapshot) {
	r.Packing = newNodePacker(r, s.GPUs).packNode()
	r.countSlices(s.GPUs)

	for i := range r.Devices {
		if d := &r.Devices[i]; d.Gain != nil {
			d.Explanation = d.sentence + "; " + d.Gain.String()
		}
	}

	r.Notes = append(r.Notes, r.unreadNotes(s.GPUs)...)
}

// unreadNotes say which limits the packing could not check, since something could not be read.
func (r *Report) unreadNotes(gpus []gpu.GPU) []string {
	var moving, staying, uncounted, power []string
	isPacked := map[string]bool{} // models

	for i := range r.Devices {
		if d := &r.Devices[i]; d.isPackable() {
			isPacked[d.Model] = true
		}
	}

	for i := range gpus {
		g := &gpus[i]
		index := strconv.Itoa(g.Index)

		if isPacked[g.Name] && r.tenants[g.UUID].pcieUnread {
			staying = append(staying, index)
		}

		d := r.ofWhole(g.UUID)
		if d == nil || !d.isPackable() {
			continue
		}

		switch {
		case d.Evidence.pcieUnread:
			moving = append(moving, index)
		case !d.Evidence.PCIeMax.Present():
			uncounted = append(uncounted, index)
		}

		if d.Evidence.powerUnread || !g.Readings.PowerLimitWatts.Present() {
			power = append(power, index)
		}
	}

	var list []string

	note := func(indices []string, begin, end string) {
		if len(indices) > 0 {
			list = append(list, begin+strings.Join(indices, ", ")+end)
		}
	}

	note(moving, "the PCIe traffic of what runs on GPU ",
		" could not be read: it may need the whole link, so its slice shares no GPU")
	note(staying, "the PCIe traffic of what runs on the slices of GPU ",
		" could not be read: it may need the whole link, so no slice is added there")
	note(uncounted, "the driver reports no PCIe traffic of GPU ",
		": whether slices that share a GPU stay within the link was not checked")
	note(power, "the power or the power limit of GPU ",
		" could not be read: whether slices that share a GPU stay within the limit was not checked")

	return list
}

// isPackable reports whether a recommendation is a slice, or would be one if it gained something.
func (r *Recommendation) isPackable() bool {
	return r.Evidence != nil && !r.Instance.Present() && (r.isSlice() || r.Reason == ReasonNoGain)
}

// packNode returns the packing of the candidates, after it has refused what gains nothing.
func (n *nodePacker) packNode() *Packing {
	// A slice that is not final yet, and gains nothing even if all others move, will be refused in the
	// end: so we refuse it at once. Some slices are never final, and we pack every minute. So we spare
	// this search if each of them would gain even alone on a GPU, as on a node without a free one.
	// Else only the search shows which of them end up alone. The search for the candidates cannot, since
	// it packs fewer slices.
	unfinished := (*Recommendation).isUnfinishedSlice
	n.packUntilGain((*Recommendation).isSlice, unfinished, func(p *packer) bool {
		return p.mayGainNothing(n.report, unfinished)
	})

	candidate := (*Recommendation).Candidate

	return n.packUntilGain(candidate, candidate, func(*packer) bool { return true })
}

// packUntilGain packs the recommendations that are moves, of the models that need it. It refuses those
// that gain nothing, if it may refuse them, and packs again until there are none.
func (n *nodePacker) packUntilGain(
	isMove, mayRefuse func(*Recommendation) bool,
	isNeeded func(*packer) bool,
) *Packing {
	for {
		for i := range n.report.Devices {
			n.report.Devices[i].Gain = nil
		}

		packing, gainless := n.pack(isMove, isNeeded)
		gainless = slices.DeleteFunc(gainless, func(d *Recommendation) bool { return !mayRefuse(d) })

		if len(gainless) == 0 {
			return packing
		}

		// We pack again without these: the others may fit in another way.
		for _, d := range gainless {
			d.refuseGain()
		}
	}
}

// pack places the slices that are moves on the fewest GPUs of a node, and fills in their gains.
// It also returns the recommendations that gain nothing. It leaves out models that need no packing.
//
// The packing is nil if nothing should move, or if the node uses the single strategy and not all of
// it can move. It leaves out slices that it found no placement for; Proven is false then.
func (n *nodePacker) pack(
	isMove func(*Recommendation) bool,
	isNeeded func(*packer) bool,
) (packing *Packing, gainless []*Recommendation) {
	packing = &Packing{Proven: true, GPUs: []PackedGPU{}, FreedGPUs: []int{}}
	packed := map[string]bool{} // by model

	for i := range n.report.Devices {
		r := &n.report.Devices[i]
		if !r.isSlice() {
			continue
		}

		if n.report.SingleStrategy && !isMove(r) {
			return nil, nil // the node cannot move in part
		}

		if !isMove(r) || packed[r.Model] {
			continue
		}

		packed[r.Model] = true

		p := n.newPacker(r.Model, isMove)
		if !isNeeded(p) {
			continue
		}

		p.search(0)
		n.steps += p.steps

		if p.best == nil {
			packing.Proven = false
			continue
		}

		packing.Proven = packing.Proven && p.steps < maxPackingSteps
		gainless = append(gainless, p.weighGains(n.report)...)
		p.addTo(packing, n.gpus)
	}

	if len(packed) == 0 {
		return nil, nil
	}

	slices.SortFunc(packing.GPUs, func(a, b PackedGPU) int { return cmp.Compare(a.Index, b.Index) })
	slices.Sort(packing.FreedGPUs)

	return packing, gainless
}

// newPacker collects the moves and the targets of one model. Targets are in the order in which an
// operator would rather use them: GPUs in MIG mode, free GPUs, GPUs that must be drained.
func (n *nodePacker) newPacker(model string, isMove func(*Recommendation) bool) *packer {
	report := n.report

	if n.arrangements[model] == nil {
		n.arrangements[model] = map[string][]mig.Placed{}
	}

	p := &packer{
		replicas:     map[owner]int{},
		arrangements: n.arrangements[model],
		bestCost:     len(n.gpus) + 1,
	}
	var partitioned, free, drained []target

	for i := range n.gpus {
		g := &n.gpus[i]
		if g.Name != model || !g.Up || !g.MIG.Enabled.Present() {
			continue
		}

		if p.profiles == nil {
			p.profiles = g.Profiles
		}

		if g.MIG.Enabled.Or(false) {
			if !report.SingleStrategy {
				partitioned = append(partitioned, partitionedTarget(i, g, report))
			}

			continue
		}

		r := report.ofWhole(g.UUID)
		if r == nil {
			continue
		}

		whole := target{at: i, cost: 1, idlePower: idlePowerOf(g)}
		if r.Action == ActionFree {
			free = append(free, whole)
		}

		if profile := findProfile(g, r.Recommended); isMove(r) && profile != nil {
			whole.drained = true
			drained = append(drained, whole)
			p.moves = append(p.moves, move{
				from:           i,
				recommendation: r,
				owner:          ownerOf(r),
				profile:        profile,
				draw:           newDraw(r.Evidence.leastPower, r.Evidence.PCIeMax.Or(0), r.Evidence.pcieUnread),
			})
		}
	}

	p.targets = slices.Concat(partitioned, free, drained)

	// Large slices come first: they leave the search the fewest choices.
	slices.SortStableFunc(p.moves, func(a, b move) int {
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

// ofWhole returns the recommendation for a whole GPU; nil if there is none.
func (r *Report) ofWhole(id gpu.UUID) *Recommendation {
	for i := range r.Devices {
		if d := &r.Devices[i]; d.GPU == id && !d.Instance.Present() {
			return d
		}
	}

	return nil
}

// partitionedTarget returns a GPU in MIG mode as a target.
func partitionedTarget(at int, g *gpu.GPU, report *Report) target {
	t := target{at: at, idlePower: idlePowerOf(g)}
	t.staying = stayingOn(g, report, t.idlePower)
	isFree := map[gpu.InstanceID]bool{}

	for i := range report.Devices {
		r := &report.Devices[i]
		if instance, ok := r.Instance.Get(); ok && r.GPU == g.UUID {
			isFree[instance] = r.Action == ActionFree
		}
	}

	for k := range g.Instances {
		i := &g.Instances[k]

		place, ok := i.Placement.Get()
		if !ok {
			// PlaceBeside takes it for as large as its name says.
			t.existing = append(t.existing, mig.Placed{Profile: i.Profile})
			continue
		}

		placed := mig.Placed{ProfileID: i.ProfileID.Or(0), Profile: i.Profile, Placement: place}
		t.existing = append(t.existing, placed)

		allocated, known := i.Allocated.Get()
		if known && !allocated && isFree[i.ID] && len(i.ComputeInstances) == 1 && !i.IsSplit() {
			t.free = append(t.free, placed)
		}
	}

	return t
}

// stayingOn returns what stays on a GPU in MIG mode. Until we have observed what its workloads
// draw, we take the power that they draw now.
func stayingOn(g *gpu.GPU, report *Report, idlePower float64) staying {
	s := staying{replicas: map[owner]int{}}

	observed := false
	if s.draw, observed = report.tenants[g.UUID]; !observed || !s.draw.powered {
		now := powerShare(g, g.Readings.PowerWatts)
		s.draw.power = max(0, now-idlePower)
	}

	for i := range report.Devices {
		r := &report.Devices[i]
		if r.GPU != g.UUID || !r.Instance.Present() {
			continue
		}

		s.any = s.any || r.Action != ActionFree
		if r.Workload != nil {
			s.replicas[ownerOf(r)]++
		}
	}

	return s
}

// idlePowerOf returns the idle power of a GPU as a share of its power limit.
func idlePowerOf(g *gpu.GPU) float64 { return powerShare(g, g.Power.IdleWatts) }

// powerShare returns a power as a share of a GPU's power limit. It is 0 if one of them is unknown: the
// GPU keeps its limit itself, by lower clocks, so that we rather pack slices than none, see unreadNotes.
func powerShare(g *gpu.GPU, watts gpu.Opt[float64]) float64 {
	limit := g.Readings.PowerLimitWatts.Or(0)
	if limit <= 0 {
		return 0
	}

	return watts.Or(0) / limit
}

// newDraw returns what to count for workloads. Traffic that could not be read counts as the whole link,
// so that nothing shares a GPU with them.
func newDraw(power, pcie float64, pcieUnread bool) draw {
	if pcieUnread {
		pcie = 1
	}

	return draw{power: power, pcie: pcie, pcieUnread: pcieUnread}
}

// search assigns targets to the moves from index from on, and keeps the cheapest assignment.
func (p *packer) search(from int) {
	if p.cost+p.needed(from) >= p.bestCost || p.steps >= maxPackingSteps {
		return
	}

	if from == len(p.moves) {
		if p.spreadsReplicas() {
			p.keepBest()
		}

		return
	}

	// Unused whole GPUs with the same idle power are alike: we try the first of them.
	var tried []float64

	for i := range p.targets {
		t := &p.targets[i]

		unused := t.isUnused()
		if unused && slices.Contains(tried, t.idlePower) {
			continue
		}

		added := 0 // to the cost

		if unused {
			tried = append(tried, t.idlePower)
			added = 1
		}

		p.steps++
		t.taken = append(t.taken, from)

		if p.holds(i) {
			p.cost += added
			p.search(from + 1)
			p.cost -= added
		}

		t.taken = t.taken[:len(t.taken)-1]
	}
}

// keepBest keeps the current assignment as the cheapest one.
func (p *packer) keepBest() {
	p.bestCost = p.cost
	p.best = make([][]int, len(p.targets))

	for i := range p.targets {
		p.best[i] = slices.Clone(p.targets[i].taken)
	}
}

// needed returns a lower bound of the whole GPUs that the moves from an index on need besides those
// in use: their memory slices, less all that the used targets have left.
func (p *packer) needed(from int) int {
	perGPU := 0
	for i := range p.profiles {
		perGPU = max(perGPU, p.profiles[i].MemorySlices)
	}

	missing := 0
	for i := from; i < len(p.moves); i++ {
		missing += p.moves[i].profile.MemorySlices
	}

	for i := range p.targets {
		t := &p.targets[i]
		if t.isUnused() {
			continue
		}

		missing -= perGPU
		for _, k := range t.taken {
			missing += p.moves[k].profile.MemorySlices
		}
	}

	if perGPU == 0 || missing <= 0 {
		return 0
	}

	return (missing + perGPU - 1) / perGPU
}

// holds reports whether a target can hold the slices that it was assigned.
func (p *packer) holds(at int) bool {
	t := &p.targets[at]

	var total draw
	if t.staying.any {
		total = t.staying.draw
	}

	for _, k := range t.taken {
		total.add(p.moves[k].draw)
	}

	// A workload that is alone is no worse off than on a GPU of its own.
	shared := len(t.taken) > 1 || t.staying.any
	if over := t.overLimit(total); shared && over != (draw{}) {
		p.noteLimit(at, over)
		return false
	}

	return p.arrangeTarget(at) != nil
}

// overLimit returns by how much the workloads on a target pass the limits of power and PCIe together.
func (t *target) overLimit(total draw) draw {
	over := draw{
		power: max(0, t.idlePower+total.power-maxPower),
		pcie:  max(0, total.pcie-maxPCIe),
	}
	over.pcieUnread = over.pcie > 0 && total.pcieUnread

	return over
}

// noteLimit notes with the moves that a target was assigned which limit keeps them apart, if their slices
// would fit on it.
func (p *packer) noteLimit(at int, over draw) {
	for _, k := range p.targets[at].taken {
		apart := &p.moves[k].recommendation.apart
		isKnown := (over.power == 0 || apart.power > 0) && (over.pcie == 0 || apart.pcie > 0)

		if !isKnown && p.arrangeTarget(at) != nil {
			apart.add(over)
		}
	}
}

// arrangeTarget returns the slices of a target, in the order of taken: those that exist, and where
// the others can be created. It returns nil if they do not fit.
func (p *packer) arrangeTarget(at int) []mig.Placed {
	t := &p.targets[at]

	// All empty GPUs of a model are alike. Those in MIG mode differ by what stands on them.
	var key strings.Builder
	if t.cost == 0 {
		key.WriteString(strconv.Itoa(at))
	}

	for _, k := range t.taken {
		key.WriteByte('/')
		key.WriteString(p.moves[k].profile.Name)
	}

	placed, known := p.arrangements[key.String()]
	if !known {
		placed = p.arrange(t)
		p.arrangements[key.String()] = placed
	}

	return placed
}

// arrange places the slices that a target gets. It takes free ones that exist first.
func (p *packer) arrange(t *target) []mig.Placed {
	free := slices.Clone(t.free)
	placed := make([]mig.Placed, len(t.taken))
	var missing []string

	for i, k := range t.taken {
		name := p.moves[k].profile.Name

		at := slices.IndexFunc(free, func(f mig.Placed) bool { return f.Profile == name })
		if at < 0 {
			missing = append(missing, name)
			continue
		}

		placed[i] = free[at]
		free = slices.Delete(free, at, at+1)
	}

	created := mig.PlaceBeside(p.profiles, t.existing, missing)
	if created == nil {
		return nil
	}

	for i := range placed {
		if placed[i].Profile == "" {
			placed[i] = created[0]
			created = created[1:]
		}
	}

	return placed
}

// spreadsReplicas reports whether no target has all replicas of an owner with several, counting
// those that stay on it.
func (p *packer) spreadsReplicas() bool {
	for i := range p.targets {
		t := &p.targets[i]
		moved := map[owner]int{}

		for _, k := range t.taken {
			of := p.moves[k].owner
			moved[of]++

			here := moved[of] + t.staying.replicas[of]
			if here > 1 && here == p.replicas[of] {
				return false
			}
		}
	}

	return true
}

// restoreBest gives the targets the moves of the best assignment.
func (p *packer) restoreBest() {
	for i := range p.targets {
		p.targets[i].taken = p.best[i]
	}
}

// addTo adds the best assignment to a packing.
func (p *packer) addTo(packing *Packing, gpus []gpu.GPU) {
	used := map[int]bool{} // by index in the Snapshot
	p.restoreBest()

	for i := range p.targets {
		t := &p.targets[i]
		if len(t.taken) == 0 {
			continue
		}

		used[t.at] = true
		packed := PackedGPU{GPU: gpus[t.at].UUID, Index: gpus[t.at].Index}

		for k, placed := range p.arrangeTarget(i) {
			packed.Slices = append(packed.Slices, PackedSlice{
				Profile: placed.Profile,
				From:    gpus[p.moves[t.taken[k]].from].Index,
				Exists:  slices.Contains(t.free, placed),
			})
		}

		packing.GPUs = append(packing.GPUs, packed)
	}

	packing.InUse += len(p.moves)
	packing.Needed += p.bestCost

	for i := range p.moves {
		if from := p.moves[i].from; !used[from] {
			packing.FreedGPUs = append(packing.FreedGPUs, gpus[from].Index)
		}
	}
}
