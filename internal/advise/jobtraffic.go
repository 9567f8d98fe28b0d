package advise

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Ranks of one job exchange data in each step and wait for each other: over any time, what one GPU
// sends is what another one receives. The traffic of two replicas of a service also rises and falls
// together if a load balancer spreads the requests evenly, but then the busy time of each explains it.
//
// So we compare changes from poll to poll: of what one GPU sends, and of what another one receives,
// each less the part that the changes of its own busy time explain by linear regression. If these two
// residuals correlate, the GPUs work on one job.

const (
	// exchangeFloor is the traffic in bytes per second, in one direction, from which on a poll
	// counts. It is far above what requests and their answers take, most of which goes in the other
	// direction.
	exchangeFloor = 1e9
	// exchangePolls is how many polls we decide by: half an hour at five seconds each.
	exchangePolls = 360
	// inStepFrom is the correlation of the residuals from which on GPUs are in step.
	inStepFrom = 0.9
	// maxImbalance is the share of the traffic by which what was sent may differ from what was
	// received.
	maxImbalance = 0.2
	// minUnexplained is the least standard deviation of the residuals, as a share of the traffic. A
	// smaller one can come from polls that are late for all GPUs.
	minUnexplained = 0.03
)

// traffic is what a device has sent and received over PCIe in the time before a poll, in bytes per
// second, and its busy time, 0-1.
type traffic struct {
	at                   time.Time // of the poll; zero if unknown
	busy, sent, received float64

	// Changes since the poll before, if they are known.
	changeKnown                            bool
	busyChange, sentChange, receivedChange float64

	// Totals in bytes, and when they were read.
	sentTotal, receivedTotal gpu.Opt[float64]
	readAt                   time.Time
}

// exchange compares what one device sends with what another one receives.
type exchange struct {
	to    *device
	since time.Time // when the receiver's holder was first seen
	polls int

	// Sums over the polls, in GB per second.
	sent, received float64

	// Sums of products of two changes: s of what is sent, r of what is received, b of the sender's
	// and c of the receiver's busy time.
	ss, rr, bb, cc, sr, sb, rc, sc, br, bc float64
}

// followTraffic adds a reading of a whole GPU's traffic. It takes the driver's rates or, without them,
// how far the totals have grown.
func (d *device) followTraffic(g *gpu.GPU, busy gpu.Opt[float64]) {
	before := d.traffic
	now := traffic{
		busy:          min(busy.Or(0), 1),
		sentTotal:     valueOf(g.Totals.PCIeTransmit),
		receivedTotal: valueOf(g.Totals.PCIeReceive),
		readAt:        g.LastRead,
	}

	if now.readAt.IsZero() {
		now.readAt = d.seen
	}

	known := busy.Present() && g.Rates.PCIeTransmit.Present() && g.Rates.PCIeReceive.Present()
	if known {
		now.sent = g.Rates.PCIeTransmit.Or(0)
		now.received = g.Rates.PCIeReceive.Or(0)
	} else if seconds := now.readAt.Sub(before.readAt).Seconds(); seconds > 0 && !before.readAt.IsZero() {
		sent, sentOK := grown(before.sentTotal, now.sentTotal)
		received, receivedOK := grown(before.receivedTotal, now.receivedTotal)
		known = busy.Present() && sentOK && receivedOK
		now.sent = sent / seconds
		now.received = received / seconds
	}

	if known {
		now.at = d.seen
		now.busyChange = now.busy - before.busy
		now.sentChange = now.sent - before.sent
		now.receivedChange = now.received - before.received
		now.changeKnown = !before.at.IsZero()
	}

	d.traffic = now
}

// valueOf returns the value of a counter.
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

// hasTraffic reports whether we know by how much the traffic of a held device has changed in this poll.
func (a *Advisor) hasTraffic(d *device) bool {
	return d.traffic.changeKnown && d.traffic.at.Equal(a.now) && d.workload != nil
}

// compare adds a poll to what we know of two devices. After exchangePolls polls it notes whether they
// are in step, and begins anew.
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

// exchangeWith returns the exchange with a receiver, since its present holder came.
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

// isInStep reports whether as much was received as sent, and whether both change together by more than
// busy time explains.
func (x *exchange) isInStep() bool {
	if math.Abs(x.sent-x.received) > maxImbalance*max(x.sent, x.received) {
		return false
	}

	// How much traffic changes with busy time: the slopes of two regressions through the origin.
	bySender := ratioOf(x.sb, x.bb)
	byReceiver := ratioOf(x.rc, x.cc)

	// Sums of squares of the residuals s - bySender*b and r - byReceiver*c, and of their product.
	sent := x.ss - bySender*x.sb
	received := x.rr - byReceiver*x.rc
	together := x.sr - bySender*x.br - byReceiver*x.sc + bySender*byReceiver*x.bc

	// polls * (minUnexplained * mean traffic)^2, from the sum of the traffic.
	least := minUnexplained * (x.sent + x.received) / 2
	least *= least / float64(x.polls)

	return sent >= least && received >= least && together >= inStepFrom*math.Sqrt(sent*received)
}

// ratioOf returns a / b; 0 if b is next to nothing.
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
