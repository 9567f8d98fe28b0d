package poll

import (
	"context"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// eventReads is what events and requests ask the loop to read at once.
type eventReads struct {
	everything bool
	gpus       map[gpu.UUID]extent
}

// extent is how much of a GPU is read.
type extent int

const (
	layoutOnly extent = iota // its MIG mode and its instances, without their readings
	wholeGPU
)

func (r *eventReads) add(id gpu.UUID, e extent) {
	if r.gpus == nil {
		r.gpus = map[gpu.UUID]extent{}
	}

	r.gpus[id] = max(r.gpus[id], e)
}

// handleEvent records one event, and adds what it asks for.
func (p *Poller) handleEvent(e gpu.Event, reads *eventReads) {
	switch e.Kind {
	case gpu.EventXID, gpu.EventUnavailable, gpu.EventRecoveryAction:
		if t := p.gpus[e.GPU]; t != nil {
			p.recordFault(t, e)
		} else if e.GPU == "" { // a GPU that is lost does not say any more which one it is
			p.countLost(
				"the driver reported an event of a GPU that it does not identify; it is missing from the counts",
				e.Time,
			)
		}
	case gpu.EventMIGChange:
		reads.add(e.GPU, layoutOnly)
	case gpu.EventsLost:
		p.countLost("lost events of the driver; XIDs may be missing from the counts", e.Time)
		reads.everything = true // one of them may have been of any GPU
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

// recordHealthEvent counts and logs what the driver reports of the health of a GPU beside XIDs.
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
func (p *Poller) drainEvents(reads *eventReads) {
	for {
		select {
		case e := <-p.source.Events():
			p.handleEvent(e, reads)
		default:
			return
		}
	}
}

// readAfterEvent handles an event, with those that wait behind it, and reads what they ask for.
func (p *Poller) readAfterEvent(ctx context.Context, e gpu.Event) error {
	var reads eventReads
	p.handleEvent(e, &reads)
	p.drainEvents(&reads)

	return p.read(ctx, reads)
}

// read reads what was asked for.
func (p *Poller) read(ctx context.Context, reads eventReads) error {
	// Of a GPU that doesn't answer, or that we don't know, the layout alone would be published beside nothing.
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

// readSome reads some GPUs, or only their layouts, and publishes a Snapshot in which all else is as the last cycle has
// found it. A layout change is many events, and each call of the driver costs the node's users: we read no other GPU,
// and ask neither the kubelet nor the profiler. What they would say of a new instance stays unknown until the next
// cycle.
func (p *Poller) readSome(ctx context.Context, gpus map[gpu.UUID]extent) error {
	began := time.Now()
	now := p.opts.Now()
	p.adjustForClockSetBack(now)

	expired, stop := closedAfter(ctx, p.opts.Grace)
	defer stop()

	started := make([]*trackedGPU, 0, len(gpus))
	for id, e := range gpus {
		t := p.gpus[id]
		// A reading that outlasted its cycle is older than what we are asked for.
		if err := p.receiveReading(t, t.last.Index, now, nil); err != nil {
			return err
		}

		if !t.up {
			continue // as that reading has found
		}

		cues := p.nextCues(t)
		cues.Asked = true

		begun := t.read.start(now, func() (reading, error) { return p.readGPU(id, e, cues) })
		if begun { // else one that began in an earlier cycle has not returned yet
			started = append(started, t)
		}
	}

	for _, t := range started {
		if err := p.receiveReading(t, t.last.Index, now, expired); err != nil {
			return err
		}
	}

	if ctx.Err() != nil {
		return nil // the cycle was interrupted
	}

	s := p.buildSnapshot(now)
	s.BetweenPolls = true
	// The list of holders is that of the last cycle: the pod of a device that is gone since may have ended before it.
	s.Unmatched = slices.DeleteFunc(s.Unmatched, func(a gpu.Assignment) bool {
		return !isListed(p.current.Load().Unmatched, &a)
	})
	p.publish(s, time.Since(began))

	return nil
}

// readGPU reads one GPU.
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
