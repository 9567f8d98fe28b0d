package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// growingCounter turns a driver's byte counter, which may wrap or restart, into a total that only
// grows.
type growingCounter struct {
	total gpu.Opt[gpu.Counter]
	last  uint64 // the driver's last value
	wide  bool   // we have seen a value above 32 bits: the counter has 64
}

// wrap32 is where a 32-bit counter wraps. nvml.h says of the PCIe counters only that "value can be
// wrapped", not where. We assume 32 bits until a value is larger (unverified on hardware).
const wrap32 = 1 << 32

// update adds the driver's value and returns the running total. A counter that fell has wrapped, if
// wraps allows it, or restarted at 0. If raw is absent because the reading failed, the total stays;
// if it is absent for another reason, the driver has no such counter any more and the total ends.
func (w *growingCounter) update(
	raw gpu.Opt[uint64],
	failed, wraps bool,
	at time.Time,
) gpu.Opt[gpu.Counter] {
	now, ok := raw.Get()
	if !ok {
		if !failed {
			*w = growingCounter{}
		}

		return w.total
	}

	w.wide = w.wide || now >= wrap32
	total, begun := w.total.Get()

	switch {
	case !begun:
		total = gpu.Counter{Since: at}
	case now >= w.last:
		total.Value += float64(now - w.last)
	case wraps && !w.wide:
		total.Value += float64(now + wrap32 - w.last)
	default:
		total.Value += float64(now)
	}

	w.last = now
	w.total = gpu.Some(total)

	return w.total
}

// addTraffic adds the bytes transferred over PCIe and NVLink. If the GPU's energy counter fell, the
// driver was reloaded: then its byte counters have restarted, and not wrapped.
func (t *trackedGPU) addTraffic(g *gpu.GPU, at time.Time) {
	r := &g.Readings
	before, hadEnergy := t.energyCounter.Get()
	reloaded := hadEnergy && r.EnergyJoules.Or(before) < before
	failedPCIe := readingFailed(g, gpu.ReadingPCIe)
	failedNVLink := readingFailed(g, gpu.ReadingNVLink)
	t.totals.PCIeReceive = t.pcie[0].update(r.PCIe.ReceiveBytes, failedPCIe, !reloaded, at)
	t.totals.PCIeTransmit = t.pcie[1].update(r.PCIe.TransmitBytes, failedPCIe, !reloaded, at)
	t.totals.NVLinkReceive = t.nvlink[0].update(r.NVLink.ReceiveBytes, failedNVLink, false, at)
	t.totals.NVLinkTransmit = t.nvlink[1].update(r.NVLink.TransmitBytes, failedNVLink, false, at)
}
