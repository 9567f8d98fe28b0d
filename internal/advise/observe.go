package advise

import (
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// observeWhole adds what a Snapshot says of a whole GPU.
func (d *device) observeWhole(g *gpu.GPU, elapsed float64) {
	r := &g.Readings

	busy := g.Activity.GraphicsEngine
	if !busy.Present() {
		busy = r.Utilization // observeActivity then takes kernels for as wide as the whole GPU
	}

	d.observeActivity(busy, g.Activity.SM, g.Activity.DRAM, elapsed)
	d.observeQueues(g, nil, &g.Activity, elapsed)
	d.observeMemory(r.Memory.Used, shareOf(busy), elapsed)
	d.findEngines(g, "")
	d.observeMedia(&r.Media, shareOf(busy), elapsed)
	d.observeLinks(g, shareOf(busy), elapsed)
	d.followTraffic(g, busy)
	d.observePower(g, elapsed)

	if events, ok := r.ClockEvents.Get(); ok && events&slowdowns != 0 {
		d.open.throttled += elapsed
	}

	processes, known := r.Processes.Get()
	if !known && canDraw(g) {
		d.open.graphicsUnread += elapsed
	}

	for i := range processes {
		d.open.graphics = d.open.graphics || processes[i].Graphics && !processes[i].MPS
	}
}

// canDraw reports whether a GPU runs graphics processes: some of its profiles have graphics. A
// model without any is for computing.
func canDraw(g *gpu.GPU) bool {
	return slices.ContainsFunc(g.Profiles, func(p gpu.Profile) bool {
		return strings.Contains(p.Name, "+gfx")
	})
}

// observePower adds the power that a GPU draws above its idle power.
func (d *device) observePower(g *gpu.GPU, elapsed float64) {
	watts, wattsOK := g.Readings.PowerWatts.Get()

	limit, limitOK := g.Readings.PowerLimitWatts.Get()
	if wattsOK && limitOK && limit > 0 {
		d.open.power += max(0, watts-g.Power.IdleWatts.Or(0)) / limit * elapsed
		d.open.powered += elapsed
	}
}

// slowdowns are the reasons for lower clocks that come from outside of the workload: hw_slowdown,
// sw_thermal_slowdown, hw_thermal_slowdown and hw_power_brake_slowdown.
const slowdowns gpu.ClockEvents = 0x8 | 0x20 | 0x40 | 0x80

// observeInstance adds what a Snapshot says of a GPU instance. We leave its power out, which is an
// estimate.
func (d *device) observeInstance(g *gpu.GPU, i *gpu.GPUInstance, elapsed float64) {
	// DCGM can report too little busy time for an instance: for a 2g of an A100 we saw 50 % at most. SM
	// activity that passes it, by more than rounding, shows that.
	if busy, ok := i.Activity.GraphicsEngine.Get(); ok && g.ActivitySource != gpu.ActivityGPM &&
		d.workload != nil {
		d.workload.Untrusted = d.workload.Untrusted || i.Activity.SM.Or(0) > busy+0.02
	}

	d.observeActivity(i.Activity.GraphicsEngine, i.Activity.SM, i.Activity.DRAM, elapsed)
	d.observeQueues(g, i, &i.Activity, elapsed)
	busy := shareOf(i.Activity.GraphicsEngine)
	d.observeMemory(i.Memory.Used, busy, elapsed)
	d.findEngines(g, i.Profile)
	d.observeMedia(&i.Media, busy, elapsed)
}

// shareOf returns a busy time as a share; 0 if it is unknown.
func shareOf(busy gpu.Opt[float64]) float64 { return min(max(busy.Or(0), 0), 1) }

// observeMemory adds the use of memory of a device that is busy for a share.
func (d *device) observeMemory(used gpu.Opt[uint64], busy, elapsed float64) {
	bytes, ok := used.Get()
	if !ok {
		d.open.memoryUnread.add(busy, elapsed)
	}

	inUse := float64(bytes) / (1 << 20)
	d.open.memory = max(d.open.memory, inUse)

	if d.isBetweenStarts(d.seen) {
		d.open.settled = max(d.open.settled, inUse)
	}
}

// observeActivity adds busy time, and what kernels used while they ran. Activity above 1, which DCGM
// reports for some profiles of an A100, counts as 1. Without SM or DRAM activity, we take kernels to
// fill the device.
func (d *device) observeActivity(busy, sm, dram gpu.Opt[float64], elapsed float64) {
	share, ok := busy.Get()
	if !ok {
		d.idle = time.Time{} // what is not known is not idle
		return
	}

	share = min(max(share, 0), 1)
	d.open.observed += elapsed
	d.open.busy += share * elapsed
	d.open.sm += min(sm.Or(share), 1) * elapsed
	d.open.dram += min(dram.Or(share), 1) * elapsed

	if sm.Present() && dram.Present() {
		d.open.measured += elapsed
		d.open.measuredBusy += share * elapsed
		d.open.measuredSM += min(sm.Or(share), 1) * elapsed
		d.open.measuredDRAM += min(dram.Or(share), 1) * elapsed
	} else {
		d.open.activityUnread += elapsed
	}

	if share > idleShare {
		d.idle = time.Time{}
	} else if d.idle.IsZero() {
		d.idle = d.seen
	}
}

// idleShare is the busy time up to which a device counts as idle: the driver's own work takes that much.
const idleShare = 0.001

// linkFloor is the traffic in bytes per second up to which a link counts as unused.
const linkFloor = 1 << 20

// observeLinks adds the traffic of the links since the last Snapshot, of a GPU that is busy for a share.
func (d *device) observeLinks(g *gpu.GPU, busy, elapsed float64) {
	nvlink := total(g.Totals.NVLinkReceive, g.Totals.NVLinkTransmit)
	pcie := total(g.Totals.PCIeReceive, g.Totals.PCIeTransmit)

	if moved, ok := grown(d.nvlink, nvlink); ok && elapsed > 0 && moved > linkFloor*elapsed {
		d.open.nvlink = true
	}

	// What a GPU does not have, or its driver does not count, is absent without an error. If it was
	// read before, it is unread all the same.
	read := &g.Readings.NVLink

	failed := isFailed(g, gpu.ReadingNVLink) && !areBoth(read.ReceiveBytes, read.TransmitBytes)
	if failed || d.hasNVLink && !nvlink.Present() {
		d.open.nvlinkUnread.add(busy, elapsed)
	}

	d.hasNVLink = d.hasNVLink || nvlink.Present()
	d.nvlink = nvlink
	d.observePCIe(g, pcie, elapsed)
}

// observePCIe adds the traffic over PCIe since the last Snapshot.
func (d *device) observePCIe(g *gpu.GPU, bytes gpu.Opt[float64], elapsed float64) {
	read := &g.Readings.PCIe

	failed := isFailed(g, gpu.ReadingPCIe) && !areBoth(read.ReceiveBytes, read.TransmitBytes)
	if failed {
		bytes = gpu.None[float64]() // a total keeps its value meanwhile, as if there were no traffic
	}

	moved, ok := grown(d.pcie, bytes)
	known := bytes.Present()

	if rx, tx := g.Rates.PCIeReceive, g.Rates.PCIeTransmit; rx.Present() && tx.Present() {
		// We prefer rates: the driver's counters can have 32 bits, and wrap more than once between
		// two polls.
		moved = (rx.Or(0) + tx.Or(0)) * elapsed
		ok = true
		known = true
	}

	capacity := linkBytes(&g.Readings.PCIe)
	if ok && elapsed > 0 && capacity > 0 {
		d.open.pcie += moved / capacity
		d.open.linked += elapsed
	}

	d.pcie = bytes

	if d.workload == nil {
		return
	}

	// What the driver never counts is absent without an error. Traffic over a link of unknown width can
	// be any share of it.
	isUnknownShare := ok && moved > linkFloor*elapsed && capacity == 0
	if isUnknownShare || !known && (failed || d.workload.HasPCIe) {
		d.open.pcieUnread += elapsed
	}

	d.workload.HasPCIe = d.workload.HasPCIe || known
}

// areBoth reports whether the bytes of both directions were read: then another part of the reading has
// failed.
func areBoth(received, sent gpu.Opt[uint64]) bool { return received.Present() && sent.Present() }

// isFailed reports whether a reading of a GPU has failed.
func isFailed(g *gpu.GPU, reading gpu.Reading) bool {
	return slices.ContainsFunc(g.Errors, func(e gpu.ReadError) bool { return e.Reading == reading })
}

// total returns the bytes of both directions. It is absent if one of them is.
func total(receive, transmit gpu.Opt[gpu.Counter]) gpu.Opt[float64] {
	r, rOK := receive.Get()

	t, tOK := transmit.Get()
	if !rOK || !tOK {
		return gpu.None[float64]()
	}

	return gpu.Some(r.Value + t.Value)
}

// grown returns by how much a counter has grown. It returns false if we do not know, since the counter
// is absent or was reset.
func grown(from, to gpu.Opt[float64]) (float64, bool) {
	before, beforeOK := from.Get()
	now, nowOK := to.Get()

	return now - before, beforeOK && nowOK && now >= before
}

// linkBytes returns how many bytes a PCIe link moves in a second in one direction; 0 if unknown. Each
// lane moves 250 MB in the first generation, and each further generation doubles that.
func linkBytes(p *gpu.PCIe) float64 {
	const lastGeneration = 7

	width := p.LinkWidth.Or(0)
	generation := p.LinkGeneration.Or(0)

	if width <= 0 || generation <= 0 || generation > lastGeneration {
		return 0
	}

	// An idle link reports a lower generation than it has under load. All GPUs with MIG have the fourth
	// generation at least.
	generation = max(generation, 4)

	return float64(width) * 250e6 * float64(int(1)<<(generation-1))
}
