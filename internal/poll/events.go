package poll

import (
	"context"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// dueReads is what we have to read because of events and requests.
type dueReads struct {
	everything bool                // run a cycle
	gpus       map[gpu.UUID]extent // otherwise: read these GPUs
}

// extent is how much of a GPU we read.
type extent int

const (
	layoutOnly extent = iota // its MIG mode and its instances, without their readings
	wholeGPU
)

// add adds a GPU. If the GPU is due already, the larger extent counts.
func (r *dueReads) add(id gpu.UUID, e extent) {
	if r.gpus == nil {
		r.gpus = map[gpu.UUID]extent{}
	}

	r.gpus[id] = max(r.gpus[id], e)
}

// handleEvent records an event, and adds to reads what we must read after it.
func (p *Poller) handleEvent(e gpu.Event, reads *dueReads) {
	switch e.Kind {
	case gpu.EventXID, gpu.EventUnavailable, gpu.EventRecoveryAction:
		if t := p.gpus[e.GPU]; t != nil {
			p.recordFault(t, e)
		} else if e.GPU == "" { // the driver cannot identify a lost GPU
			p.countLost(
				"the driver reported an event of a GPU that it does not identify; it is missing from the counts",
				e.Time,
			)
		}
	case gpu.EventMIGChange:
		reads.add(e.GPU, layoutOnly)
	case gpu.EventsLost:
		p.countLost("lost events of the driver; XIDs may be missing from the counts", e.Time)
		reads.everything = true // we do not know which GPUs they were of
	}
}

// countLost logs and counts, for each GPU, that XIDs may have been missed.
func (p *Poller) countLost(msg string, at time.Time) {
	level.Warn(p.opts.Logger).Log("msg", msg)

	for _, t := range p.gpus {
		t.countError(gpu.ReadError{Reading: gpu.ReadingEvents, Err: gpu.ErrUnavailable}, at)
	}
}

// recordFault records an event about a fault of a GPU.
func (p *Poller) recordFault(t *trackedGPU, e gpu.Event) {
	if e.Kind == gpu.EventXID {
		p.recordXID(t, e)
		return
	}

	p.recordHealthEvent(t, e)
}

// recordHealthEvent counts and logs an EventUnavailable or an EventRecoveryAction.
func (p *Poller) recordHealthEvent(t *trackedGPU, e gpu.Event) {
	total := &t.unavailable
	msg := "the driver cannot use the GPU any more"

	if e.Kind == gpu.EventRecoveryAction {
		total = &t.recoveryActions
		msg = "recovery action changed"
	}

	total.Value++

	if t.shouldLog(&e, p.opts.Now()) {
		level.Warn(p.opts.Logger).Log("msg", msg, "gpu", e.GPU, "index", t.last.Index)
	}
}

// drainEvents handles the events that are waiting.
func (p *Poller) drainEvents(reads *dueReads) {
	for {
		select {
		case e := <-p.source.Events():
			p.handleEvent(e, reads)
		default:
			return
		}
	}
}

// readAfterEvent handles an event and those that wait behind it, and reads what they make due.
func (p *Poller) readAfterEvent(ctx context.Context, e gpu.Event) error {
	var reads dueReads
	p.handleEvent(e, &reads)
	p.drainEvents(&reads)

	return p.read(ctx, reads)
}

// read reads what is due, and publishes a Snapshot. If nothing is due, it does nothing.
func (p *Poller) read(ctx context.Context, reads dueReads) error {
	// For a GPU that is down or unknown we need a cycle: it has no other readings that we could
	// publish together with its layout.
	for id := range reads.gpus {
		if t := p.gpus[id]; t == nil || !t.up {
			reads.everything = true
		}
	}

	switch {
	case reads.everything:
		return p.runCycle(ctx, true)
	case len(reads.gpus) > 0:
		return p.readSome(ctx, reads.gpus)
	}

	return nil
}

// readSome reads some GPUs, or only their layouts, and publishes a Snapshot with the rest from the
// last cycle. A layout change causes many events, and each driver call slows down the node's users:
// so we read no other GPU, and ask neither the kubelet nor the profiler. Holders and activity of a
// new instance stay unknown until the next cycle.
func (p *Poller) readSome(ctx context.Context, gpus map[gpu.UUID]extent) error {
	began := time.Now()
	now := p.opts.Now()
	p.adjustForClockSetBack(now)

	expired, stop := closedAfter(ctx, p.opts.Grace)
	defer stop()

	started := make([]*trackedGPU, 0, len(gpus))
	for id, e := range gpus {
		t := p.gpus[id]

		// Receive a reading of an earlier cycle first: the event or request needs a newer one.
		if err := p.receiveReading(t, t.last.Index, now, nil); err != nil {
			return err
		}

		if !t.up {
			continue // that reading has failed
		}

		cues := p.nextCues(t)
		cues.Asked = true

		// If a reading of an earlier cycle has not returned yet, we can't start another.
		if t.read.start(now, func() (reading, error) { return p.readGPU(id, e, cues) }) {
			started = append(started, t)
		}
	}

	for _, t := range started {
		if err := p.receiveReading(t, t.last.Index, now, expired); err != nil {
			return err
		}
	}

	if ctx.Err() != nil {
		return nil // we stopped waiting early: a Snapshot would lack readings under way
	}

	s := p.buildSnapshot(now)
	s.BetweenPolls = true

	// The holders are those of the last cycle. If a device is gone since then, its assignment is no
	// problem: the pod may have ended before.
	s.Unmatched = slices.DeleteFunc(s.Unmatched, func(a gpu.Assignment) bool {
		return !isListed(p.current.Load().Unmatched, &a)
	})
	p.publish(s, time.Since(began))

	return nil
}

// readGPU reads one GPU, or its layout. It blocks as long as the driver does.
func (p *Poller) readGPU(id gpu.UUID, e extent, cues gpu.ReadCues) (reading, error) {
	if e == wholeGPU {
		g, err := p.source.ReadWith(id, cues)
		return reading{GPU: g, extent: wholeGPU}, err
	}

	g, whole, err := p.source.ReadLayout(id, cues)
	if whole {
		e = wholeGPU
	}

	return reading{GPU: g, extent: e}, err
}
