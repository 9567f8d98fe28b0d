package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// wrapped turns a driver's byte counter, which may wrap or begin anew, into one that only grows.
type wrapped struct {
	total gpu.Counter
	last  uint64
	begun bool
}

// The widths at which counters wrap. nvml.h says of the PCIe counters only that "value can be wrapped", not where; a
// counter that has never passed 32 bits is taken for a 32-bit one (unverified on hardware).
const wrap32 = 1 << 32

// maxBytesPerSecond bounds what a link can have carried: above the fastest announced (NVLink 5 at 1.8 TB/s both ways). A
// "wrap" that would need more than that was a reset.
const maxBytesPerSecond = 4e12

// add takes the driver's value read after a time and returns the running total.
func (w *wrapped) add(raw gpu.Opt[uint64], elapsed time.Duration, at time.Time) gpu.Opt[gpu.Counter] {
	now, ok := raw.Get()
	if !ok {
		if !w.begun {
			return gpu.None[gpu.Counter]()
		}
		return gpu.Some(w.total) // one failed reading does not end the counter
	}
	if !w.begun {
		w.begun, w.last, w.total = true, now, gpu.Counter{Since: at}
		return gpu.Some(w.total)
	}
	w.total.Value += float64(grown(w.last, now, elapsed))
	w.last = now
	return gpu.Some(w.total)
}

// grown is how far a counter went from one value to the next.
func grown(from, to uint64, elapsed time.Duration) uint64 {
	if to >= from {
		return to - from
	}
	if from < wrap32 {
		if delta := to + wrap32 - from; float64(delta) <= maxBytesPerSecond*elapsed.Seconds() {
			return delta
		}
	}
	return to // it began anew at 0
}

func (t *tracked) addTraffic(r *gpu.Readings, elapsed time.Duration, at time.Time) {
	t.totals.PCIeReceive = t.pcie[0].add(r.PCIe.ReceiveBytes, elapsed, at)
	t.totals.PCIeTransmit = t.pcie[1].add(r.PCIe.TransmitBytes, elapsed, at)
	t.totals.NVLinkReceive = t.nvlink[0].add(r.NVLink.ReceiveBytes, elapsed, at)
	t.totals.NVLinkTransmit = t.nvlink[1].add(r.NVLink.TransmitBytes, elapsed, at)
}
