package poll

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// discoverGPUs updates the inventory of GPUs. While the driver does not answer we keep the last
// inventory; without a driver only the released GPUs stay in it.
func (p *Poller) discoverGPUs(now time.Time, expired <-chan struct{}) error {
	wait := expired
	if !p.discovery.start(now, p.source.Discover) {
		wait = nil // the cycle that started it has waited long enough
	}

	r, ok := p.discovery.receive(wait)
	switch {
	case !ok && p.discovery.isHung(p.opts.Now(), p.opts.Timeout):
		p.driverErr = fmt.Errorf("discover GPUs: %w", gpu.ErrTimeout)
	case !ok: // it may still end in time
	case errors.Is(r.err, gpu.ErrLibraryClosed):
		p.setReleased(r.value.Released)
		p.recordClosed(r.err, now)
	case errors.Is(r.err, gpu.ErrVersionMismatch):
		return r.err
	case r.err != nil:
		p.driverErr = r.err
		p.libraryClosed = nil

		if errors.Is(r.err, gpu.ErrNoDriver) {
			p.inventory = gpu.Inventory{}
		}

		p.setReleased(r.value.Released)
	default:
		p.driverErr = nil
		p.libraryClosed = nil
		p.inventory = r.value
		p.driverAnsweredAt = r.started
	}

	p.updateTracked(now)

	return nil
}

// recordClosed records that the driver's library is closed for a while. The driver may be well, so
// this is a failure only once its last answer is stale.
func (p *Poller) recordClosed(err error, now time.Time) {
	p.libraryClosed = err
	if p.driverAnsweredAt.IsZero() || now.Sub(p.driverAnsweredAt) >= p.staleAfter() {
		p.driverErr = err
	}
}

// setReleased sets the released GPUs of the inventory, and removes them from its other GPUs. The
// source knows the released GPUs even if it cannot list the others.
func (p *Poller) setReleased(released []gpu.ReleasedGPU) {
	p.inventory.Released = released
	p.inventory.GPUs = slices.DeleteFunc(
		slices.Clone(p.inventory.GPUs),
		func(found gpu.FoundGPU) bool {
			return slices.ContainsFunc(
				released,
				func(r gpu.ReleasedGPU) bool { return r.UUID == found.UUID },
			)
		},
	)
}

// keepDisplaced is how long we keep a lost GPU after another GPU got its index: Prometheus must
// scrape its XID counts, and the alerts look at a range of them.
const keepDisplaced = 15 * time.Minute

// updateTracked tracks every new GPU of the inventory, marks GPUs that have left it as down, and
// forgets those that never answered or whose index another GPU has had for keepDisplaced.
func (p *Poller) updateTracked(now time.Time) {
	present := make(map[gpu.UUID]bool, len(p.inventory.GPUs))
	indexUsed := make(map[int]bool, len(p.inventory.GPUs))

	for _, found := range p.inventory.GPUs {
		present[found.UUID] = true
		indexUsed[found.Index] = true

		t := p.gpus[found.UUID]
		if t == nil {
			t = newTrackedGPU(found.UUID, now, &p.opts)
			p.gpus[found.UUID] = t
		}

		t.last.Index = found.Index
		t.displacedSince = time.Time{}
	}

	p.updateReleased(now)

	for id, t := range p.gpus {
		switch {
		case present[id] || t.released.Present():
			continue
		case t.last.LastRead.IsZero(): // it never answered
			delete(p.gpus, id)
			continue
		case t.up:
			t.markDown(p.lossReason(t.last.Index), now)
		}

		switch {
		case !indexUsed[t.last.Index]:
			t.displacedSince = time.Time{}
		case t.displacedSince.IsZero():
			t.displacedSince = now
		case now.Sub(t.displacedSince) >= keepDisplaced:
			delete(p.gpus, id)
		}
	}

	p.updateMissing(now)
}

// updateReleased marks the GPUs that the source has released. A GPU that is no longer released is
// down until a reading succeeds.
func (p *Poller) updateReleased(now time.Time) {
	released := make(map[gpu.UUID]gpu.Release, len(p.inventory.Released))
	for _, r := range p.inventory.Released {
		released[r.UUID] = r.Release
		if p.gpus[r.UUID] == nil {
			p.gpus[r.UUID] = newTrackedGPU(r.UUID, now, &p.opts)
			p.gpus[r.UUID].last.Index = r.Index
		}
	}

	for id, t := range p.gpus {
		if r, ok := released[id]; ok {
			t.up = false
			t.failure = nil
			t.hangCounted = false
			t.released = gpu.Some(r)
		} else if t.released.Present() {
			t.released = gpu.None[gpu.Release]()
			t.failure = []gpu.ReadError{
				{Reading: gpu.ReadingDevice, Err: p.absenceReason(id, t.last.Index)},
			}
		}
	}
}

// updateMissing updates p.missing, the GPUs that the driver counts but gives no handle for. A GPU
// that has answered before has a UUID and is in p.gpus instead.
func (p *Poller) updateMissing(now time.Time) {
	known := map[int]bool{}
	for _, t := range p.gpus {
		known[t.last.Index] = true
	}

	missing := make(map[int]bool, len(p.inventory.Missing))
	for _, m := range p.inventory.Missing {
		if known[m.Index] {
			continue
		}

		missing[m.Index] = true

		t := p.missing[m.Index]
		if t == nil {
			t = newTrackedGPU("", now, &p.opts)
			t.last.Index = m.Index
			p.missing[m.Index] = t
		}

		switch {
		case !m.Hung:
			t.markDown(m.Err, now)
		case now.Sub(t.firstSeen) >= p.opts.Timeout:
			t.markHung(t.firstSeen)
		}
	}

	for index := range p.missing {
		if !missing[index] {
			delete(p.missing, index)
		}
	}
}

// absenceReason returns why we have not read a GPU yet since it is no longer released.
func (p *Poller) absenceReason(id gpu.UUID, index int) error {
	listed := slices.ContainsFunc(
		p.inventory.GPUs,
		func(f gpu.FoundGPU) bool { return f.UUID == id },
	)
	if listed || p.libraryClosed != nil {
		return errNoAnswerYet
	}

	return p.lossReason(index)
}

// lossReason returns why a GPU that answered before is no longer in the inventory.
func (p *Poller) lossReason(index int) error {
	for _, m := range p.inventory.Missing {
		if m.Index == index {
			return m.Err
		}
	}

	if p.driverErr != nil {
		return p.driverErr
	}

	return fmt.Errorf("GPU %d: %w", index, gpu.ErrLost)
}

// readGPUs starts a reading of every GPU of the inventory that has none under way, and receives
// those that end before expired is closed.
func (p *Poller) readGPUs(now time.Time, expired <-chan struct{}) error {
	// startedNow has every GPU of the inventory: whether its reading began in this cycle.
	startedNow := make(map[gpu.UUID]bool, len(p.inventory.GPUs))
	for _, found := range p.inventory.GPUs {
		t := p.gpus[found.UUID]
		if p.libraryClosed != nil {
			startedNow[found.UUID] = false
			t.markUnread(p.libraryClosed, now, p.staleAfter())
			continue
		}

		// Receive a reading that outlasted the cycle in which it began.
		if err := p.receiveReading(t, found.Index, now, nil); err != nil {
			return err
		}

		cues := p.nextCues(t)

		started := t.read.start(
			now,
			func() (reading, error) { return p.readGPU(found.UUID, wholeGPU, cues) },
		)
		if started {
			t.cues.changed = false
		}

		startedNow[found.UUID] = started
	}

	// We do not wait for a reading of an earlier cycle: that cycle has waited for it.
	for _, found := range p.inventory.GPUs {
		var wait <-chan struct{}
		if startedNow[found.UUID] {
			wait = expired
		}

		if err := p.receiveReading(p.gpus[found.UUID], found.Index, now, wait); err != nil {
			return err
		}
	}

	p.dropOutdatedReadings(startedNow)
	p.markHungReadings()

	return nil
}

// receiveLateReadings records readings that began in an earlier cycle and have ended since. It does
// not wait.
func (p *Poller) receiveLateReadings(now time.Time) error {
	for _, found := range p.inventory.GPUs {
		if err := p.receiveReading(p.gpus[found.UUID], found.Index, now, nil); err != nil {
			return err
		}
	}

	p.markHungReadings()

	return nil
}

// dropOutdatedReadings drops the results of readings of GPUs that have left the inventory.
func (p *Poller) dropOutdatedReadings(inventory map[gpu.UUID]bool) {
	for id, t := range p.gpus {
		if _, present := inventory[id]; present {
			continue
		}

		if _, ended := t.read.receive(nil); ended {
			t.hangCounted = false
		}
	}
}

// markHungReadings marks the GPUs whose readings hang as down.
func (p *Poller) markHungReadings() {
	now := p.opts.Now()
	for id, t := range p.gpus {
		if p.isReadingHung(id, t, now) {
			t.markHung(t.read.started)
		}
	}
}

// readLimit is how many Timeouts a reading may take as long as it makes progress.
const readLimit = 10

// isReadingHung reports whether a reading of a GPU is under way and hangs: a driver call has not
// returned for Timeout, or the reading has lasted readLimit times that long. With many tenants
// every call can be slow: then a reading of hundreds of calls takes longer than Timeout although
// its GPU answers.
func (p *Poller) isReadingHung(id gpu.UUID, t *trackedGPU, now time.Time) bool {
	if p.opts.Progress == nil || !t.read.running {
		return t.read.isHung(now, p.opts.Timeout)
	}

	if reported := p.opts.Progress(id); !reported.Equal(t.progressReported) {
		t.progressReported = reported
		t.progressedAt = reported

		if reported.After(now) { // the clock was set back
			t.progressedAt = now
		}
	}

	since := laterOf(t.read.started, t.progressedAt)

	return now.Sub(since) >= p.opts.Timeout || t.read.isHung(now, readLimit*p.opts.Timeout)
}

// receiveReading records a GPU's reading if one has ended. It waits for a reading under way until
// expired is closed; with a nil expired it does not wait. index is the inventory's: the GPU may
// have had another one when the reading began.
func (p *Poller) receiveReading(
	t *trackedGPU,
	index int,
	now time.Time,
	expired <-chan struct{},
) error {
	r, ok := t.read.receive(expired)
	switch {
	case !ok:
		return nil
	case errors.Is(r.err, gpu.ErrVersionMismatch):
		return r.err
	case errors.Is(r.err, gpu.ErrLibraryClosed), t.released.Present():
		// The source has read nothing, or began before we released the GPU.
	case r.err != nil:
		t.markDown(r.err, r.started)
	case now.Sub(r.started) >= readLimit*p.opts.Timeout: // too old to show the GPU's present state
		t.markHung(r.started)
		t.hangCounted = false
	case r.value.extent == layoutOnly:
		t.recordLayout(r.value.GPU, r.started)
	default:
		r.value.Index = index
		t.recordReading(r.value.GPU, r.started)
		t.receivedAt = now
	}

	return nil
}
