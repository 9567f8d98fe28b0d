package capture

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

// Recorder writes down what a driver says.
type Recorder struct {
	lib     *library
	start   time.Time
	moments []time.Duration
}

// NewRecorder puts a recorder in front of a driver. The first poll is at a time.
func NewRecorder(driver nvmlsrc.Library, start time.Time) *Recorder {
	t := newTape(false)
	return &Recorder{
		lib:     &library{tape: t, real: driver, node: newEntity(t, nil), events: &eventQueue{sets: map[*eventSet]bool{}}},
		start:   start.Round(0).UTC(),
		moments: []time.Duration{0},
	}
}

// Library is the driver as it is recorded. Only what is asked of it is.
func (r *Recorder) Library() nvmlsrc.Library { return r.lib }

// Next says that another poll begins, and runs move, which returns its time, between the two: what happens in it belongs
// to the next poll. It must not be called during one.
func (r *Recorder) Next(move func() (time.Time, error)) error {
	t := r.lib.tape
	t.mu.Lock()
	t.moment++
	t.between = true
	t.mu.Unlock()
	now, err := move()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.between = false
	r.moments = append(r.moments, now.Round(0).Sub(r.start).Round(time.Millisecond)) // the wall clock, which may be set back
	return err
}

// Recording is what was said up to now. Calls that have not returned are in it as such.
func (r *Recorder) Recording(hostname, by string) *Recording {
	t := r.lib.tape
	t.mu.Lock()
	defer t.mu.Unlock()
	rec := &Recording{
		Hostname: hostname, By: by, Start: r.start, Moments: slices.Clone(r.moments), node: r.lib.node.said(),
	}
	for _, d := range r.lib.devices {
		rec.gpus = append(rec.gpus, d.record())
	}
	slices.SortFunc(rec.gpus, func(a, b gpuRecord) int { return compareNatural(a.name, b.name) })
	for _, e := range r.lib.events.records {
		if e.before < len(rec.Moments) { // later ones no poll has seen
			rec.events = append(rec.events, e)
		}
	}
	return rec
}
