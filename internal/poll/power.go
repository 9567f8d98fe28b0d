package poll

import (
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// No sensor exists below the board, so an instance's power is an estimate. Active power (board - idle, never negative)
// is shared by w*u / sum(w*u), w the instance's share of the SMs of the largest profile and u its graphics engine
// activity; idle power by w. What is left is unallocated, so that the parts add up to the board.

// idlePower learns a board's idle power: the lowest seen while nothing ran, a default for the model until then.
type idlePower struct {
	learnt gpu.Opt[float64]
}

// defaultIdleShare is the idle power of a board whose model has no default, as a share of its power limit.
const defaultIdleShare = 0.1

// defaultIdleWatts lists idle board power by a part of the model's name, the first match counts. They serve until an
// idle moment was seen. Sources: the A100 PCIe figure is a published nvidia-smi capture (34 W); the others are what
// idle boards of that kind commonly show and are marked as defaults in the docs.
func defaultIdleWatts(name string) (float64, bool) {
	for _, d := range []struct {
		part  string
		watts float64
	}{
		{"A100-PCIE", 34}, {"A100", 52}, {"A30", 28}, {"H100 PCIe", 46}, {"H100 NVL", 60}, {"H100", 70}, {"H200", 76},
		{"RTX PRO 6000", 32},
	} {
		if strings.Contains(name, d.part) {
			return d.watts, true
		}
	}
	return 0, false
}

// watts takes one reading in and returns the idle power, absent where nothing is known of it.
func (p *idlePower) watts(g *gpu.GPU) gpu.Opt[float64] {
	board, haveBoard := g.Readings.PowerWatts.Get()
	procs, haveProcs := g.Readings.Processes.Get()
	// A list that is empty because nothing may be seen is told apart by the driver's own utilization, where it has one.
	if haveBoard && board > 0 && haveProcs && len(procs) == 0 && g.Readings.Utilization.Or(0) == 0 {
		if low, ok := p.learnt.Get(); !ok || board < low {
			p.learnt = gpu.Some(board)
		}
	}
	if p.learnt.Present() {
		return p.learnt
	}
	if w, ok := defaultIdleWatts(g.Name); ok {
		return gpu.Some(w)
	}
	if limit, ok := g.Readings.PowerLimitWatts.Get(); ok {
		return gpu.Some(limit * defaultIdleShare)
	}
	return gpu.None[float64]()
}

// estimatePower shares the board's power and energy among the GPU instances.
func (t *tracked) estimatePower(g *gpu.GPU, at time.Time) {
	idle := t.idle.watts(g)
	g.Power = gpu.PowerEstimate{IdleWatts: idle}
	boardJ := g.Readings.EnergyJoules
	spent := energySince(t.boardJ, boardJ)
	if boardJ.Present() {
		t.boardJ = boardJ
	}
	if !g.MIG.Enabled.Or(false) {
		t.totals.EnergyUnallocatedJoules = gpu.None[gpu.Counter]()
		return
	}
	board, ok := g.Readings.PowerWatts.Get()
	shares := make([]float64, len(g.Instances)) // of the board's power
	g.Power.Method = gpu.PowerUnallocated
	if ok {
		var watts []float64
		watts, g.Power.Method = shareWatts(g, board, min(idle.Or(board), board))
		rest := board
		for i := range g.Instances {
			if !g.Instances[i].SMs.Present() {
				continue
			}
			g.Instances[i].PowerWatts = gpu.Some(watts[i])
			rest -= watts[i]
			if board > 0 {
				shares[i] = watts[i] / board
			}
		}
		g.Power.UnallocatedWatts = gpu.Some(max(rest, 0))
	}
	if boardJ.Present() {
		t.addEnergy(g, spent, shares, at)
	}
	for i := range g.Instances { // over one failed reading, too
		g.Instances[i].EnergyJoules = t.instances[g.Instances[i].ID].energy
	}
}

// shareWatts splits board power among the instances; idle is the part of it that is drawn without work.
func shareWatts(g *gpu.GPU, board, idle float64) ([]float64, gpu.PowerMethod) {
	n := len(g.Instances)
	watts := make([]float64, n)
	weight := smShares(g)
	active := make([]float64, n)
	var sum float64
	for i := range g.Instances {
		u, known := busy(&g.Instances[i])
		if !known || !g.Instances[i].SMs.Present() {
			sum = 0
			clear(active)
			break
		}
		active[i] = weight[i] * u
		sum += active[i]
	}
	method := gpu.PowerUnallocated
	for i := range watts {
		watts[i] = idle * weight[i]
		if sum > 0 {
			method = gpu.PowerByActivity
			watts[i] += (board - idle) * active[i] / sum
		}
	}
	return watts, method
}

// busy is the instance's graphics engine activity. One without a compute instance does nothing.
func busy(gi *gpu.GPUInstance) (float64, bool) {
	if len(gi.Computes) == 0 {
		return 0, true
	}
	u, known := gi.Activity.GraphicsEngine.Get()
	return max(u, 0), known
}

// smShares are the instances' shares of the SMs of the largest profile; together they are at most 1.
func smShares(g *gpu.GPU) []float64 {
	largest := g.SMs.Or(0)
	if len(g.Profiles) > 0 {
		largest = 0
		for i := range g.Profiles {
			largest = max(largest, g.Profiles[i].SMs)
		}
	}
	shares := make([]float64, len(g.Instances))
	total := 0
	for i := range g.Instances {
		total += g.Instances[i].SMs.Or(0)
	}
	largest = max(largest, total)
	if largest == 0 {
		return shares
	}
	for i := range g.Instances {
		shares[i] = float64(g.Instances[i].SMs.Or(0)) / float64(largest)
	}
	return shares
}

// energySince is what the board's counter grew by; it began anew where it fell.
func energySince(before, now gpu.Opt[float64]) float64 {
	from, ok := before.Get()
	to, okNow := now.Get()
	switch {
	case !ok || !okNow:
		return 0
	case to < from:
		return to
	}
	return to - from
}

// addEnergy gives each instance its share of the energy spent since the last reading. One that is new had no part in
// it: its counter begins at 0 now.
func (t *tracked) addEnergy(g *gpu.GPU, spent float64, shares []float64, at time.Time) {
	rest := spent
	for i := range g.Instances {
		gi := &g.Instances[i]
		if !gi.SMs.Present() {
			continue
		}
		it := t.instances[gi.ID]
		counter, begun := it.energy.Get()
		if !begun {
			counter.Since = at
		} else {
			counter.Value += spent * shares[i]
			rest -= spent * shares[i]
		}
		it.energy = gpu.Some(counter)
	}
	unallocated, begun := t.totals.EnergyUnallocatedJoules.Get()
	if !begun {
		unallocated = gpu.Counter{Since: at}
	} else {
		unallocated.Value += max(rest, 0)
	}
	t.totals.EnergyUnallocatedJoules = gpu.Some(unallocated)
}
