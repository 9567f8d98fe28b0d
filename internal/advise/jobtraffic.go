package advise

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Ranks of one job exchange data in each step and wait for each other: over any time, what one
// sends is what another receives. So do replicas of a service if the same number of requests comes
// to each, but then busy time explains it. Compared are therefore the changes from poll to poll of
// what one GPU sends and another one receives, less what the changes of each one's own busy time
// explain.

const (
	// exchangeFloor is the traffic in bytes per second of one direction from which on a poll
	// counts: far above what requests and their answers take, which go in one direction for the
	// most part.
	exchangeFloor = 1e9
	// exchangePolls is how many polls decide, half an hour at five seconds each.
	exchangePolls = 360
	// Sent and received are in step from this correlation of the rests on, if they differ by this
	// share in sum at most.
	inStepFrom, maxImbalance = 0.9, 0.2
	// minUnexplained is how much of the traffic the rests must be, as a standard deviation: less
	// can come from polls that are late for all GPUs.
	minUnexplained = 0.03
)

// traffic is what a device has sent and received over PCIe in the time before a poll, in bytes per
// second, and its busy time, 0-1.
type traffic struct {
	at                   time.Time // of the poll; zero if unknown
	busy, sent, received float64
	// Changes since the poll before, and whether they are known.
	busyChange, sentChange, receivedChange float64
	changed                                bool

	transmitted, taken gpu.Opt[float64] // totals in bytes
	readAt             time.Time        // of the totals
}

// exchange compares what one device sends with what another one receives.
type exchange struct {
	to    *device
	since time.Time // when the other one's holder was first seen
	polls int
	// Sums over the polls: of the traffic, and of the products of changes in what is sent and
	// received, s and r, and in the busy time of the sender and the receiver, b and c.
	sent, received                 float64
	ss, rr, bb, cc, sr, sb, rc, sc float64
	br, bc                         float64
}

// followTraffic adds a reading of a whole GPU's traffic.
func (d *device) followTraffic(g *gpu.GPU, busy gpu.Opt[float64]) {
	was := d.traffic
	now := traffic{busy: min(busy.Or(0), 1), readAt: g.LastRead}
	now.transmitted = valueOf(g.Totals.PCIeTransmit)
	now.taken = valueOf(g.Totals.PCIeReceive)

	if now.readAt.IsZero() {
		now.readAt = d.seen
	}

	known := busy.Present() && g.Rates.PCIeTransmit.Present() && g.Rates.PCIeReceive.Present()
	if known {
		now.sent = g.Rates.PCIeTransmit.Or(0)
		now.received = g.Rates.PCIeReceive.Or(0)
	} else if seconds := now.readAt.Sub(was.readAt).Seconds(); seconds > 0 && !was.readAt.IsZero() {
		sent, sentOK := grown(was.transmitted, now.transmitted)
		received, receivedOK := grown(was.taken, now.taken)
		known = busy.Present() && sentOK && receivedOK
		now.sent = sent / seconds
		now.received = received / seconds
	}

	if known {
		now.at = d.seen
		now.busyChange = now.busy - was.busy
		now.sentChange = now.sent - was.sent
		now.receivedChange = now.received - was.received
		now.changed = !was.at.IsZero()
	}

	d.traffic = now
}

func valueOf(c gpu.Opt[gpu.Counter]) gpu.Opt[float64] {
	v, ok := c.Get()
	if !ok {
		return gpu.None[float64]()
	}

	return gpu.Some(v.Value)
}

// compareTraffic compares all pairs of whole GPUs that are held, after a poll.
func (a *Advisor) compareTraffic() {
	for _, from := range a.order {
		if from.traffic.sent < exchangeFloor || !a.hasTraffic(from) {
			continue
		}

		for _, to := range a.order {
			if to != from && to.traffic.received >= exchangeFloor && a.hasTraffic(to) {
				a.compare(from, to)
			}
		}
	}
}

// hasTraffic reports whether the last poll has what a device's traffic has changed by.
func (a *Advisor) hasTraffic(d *device) bool {
	return d.traffic.changed && d.traffic.at.Equal(a.now) && d.workload != nil
}

// compare adds a poll to what we know of two devices. In step, both work on one job.
func (a *Advisor) compare(from, to *device) {
	x := from.exchangeWith(to)
	x.add(&from.traffic, &to.traffic)

	if x.polls < exchangePolls {
		return
	}

	if x.isInStep() {
		from.workload.InStep = a.now.Unix()
		from.inStepWith = to.id.GPU()
		to.workload.InStep = a.now.Unix()
		to.inStepWith = from.id.GPU()
	}

	*x = exchange{to: to, since: to.since}
}

// exchangeWith returns what is compared with another device, from its present holder on.
func (d *device) exchangeWith(to *device) *exchange {
	at := slices.IndexFunc(d.exchanges, func(x exchange) bool { return x.to == to })
	if at < 0 {
		at = len(d.exchanges)
		d.exchanges = append(d.exchanges, exchange{to: to, since: to.since})
	}

	x := &d.exchanges[at]
	if !x.since.Equal(to.since) {
		*x = exchange{to: to, since: to.since}
	}

	return x
}

// add adds a poll in which both are above the floor.
func (x *exchange) add(from, to *traffic) {
	const giga = 1e9
	s := from.sentChange / giga
	r := to.receivedChange / giga
	b := from.busyChange
	c := to.busyChange
	x.polls++
	x.sent += from.sent / giga
	x.received += to.received / giga
	x.ss += s * s
	x.rr += r * r
	x.bb += b * b
	x.cc += c * c
	x.sr += s * r
	x.sb += s * b
	x.rc += r * c
	x.sc += s * c
	x.br += b * r
	x.bc += b * c
}

// isInStep reports whether what was sent and received is as much, and changes together by more than
// busy time explains.
func (x *exchange) isInStep() bool {
	if math.Abs(x.sent-x.received) > maxImbalance*max(x.sent, x.received) {
		return false
	}

	bySender := ratioOf(x.sb, x.bb)
	byReceiver := ratioOf(x.rc, x.cc)
	sent := x.ss - bySender*x.sb
	received := x.rr - byReceiver*x.rc
	together := x.sr - bySender*x.br - byReceiver*x.sc + bySender*byReceiver*x.bc

	least := minUnexplained * (x.sent + x.received) / 2
	least *= least / float64(x.polls) // the sum of squares

	return sent >= least && received >= least && together >= inStepFrom*math.Sqrt(sent*received)
}

// ratioOf returns a / b, and 0 if b is next to nothing.
func ratioOf(a, b float64) float64 {
	if b < 1e-9 {
		return 0
	}

	return a / b
}

// forgetExchanges drops the comparisons with devices that have gone.
func (d *device) forgetExchanges(now time.Time) {
	d.exchanges = slices.DeleteFunc(d.exchanges, func(x exchange) bool {
		return now.Sub(x.to.seen) > time.Hour
	})
}
