package capture

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// Recorder writes down what a driver answers.
type Recorder struct{ lib *library }

// NewRecorder puts a recorder in front of a driver. The first poll is at a time.
func NewRecorder(driver nvmlsource.Library, start time.Time) *Recorder {
	rec := &Recording{Version: 1, Recorded: recorded{
		Start: start.Round(0).UTC(), Polls: pollTimes{0}, Node: nodeAnswers{}, GPUs: map[gpuName]*gpuRecord{},
	}}
	return &Recorder{newLibrary(rec, driver)}
}

// Library is the driver as it is recorded. Only calls that are made through it are.
func (r *Recorder) Library() nvmlsource.Library { return r.lib }

// Next begins another poll, and runs move, which returns its time, between the two: what happens in it belongs to the next
// poll. It must not be called during one.
func (r *Recorder) Next(move func() (time.Time, error)) error {
	t, of := r.lib.time, &r.lib.rec.Recorded
	t.mu.Lock()
	t.poll++
	t.between = true
	t.mu.Unlock()
	now, err := move()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.between = false
	of.Polls = append(of.Polls, now.Round(0).Sub(of.Start).Round(time.Millisecond)) // the wall clock, which may be set back
	return err
}

// Recording is what was answered up to now. Calls that have not returned are in it as such.
func (r *Recorder) Recording(hostname, by string) *Recording {
	r.lib.time.mu.Lock()
	defer r.lib.time.mu.Unlock()
	rec := r.lib.rec.clone()
	rec.Node.Hostname, rec.Recorded.By = hostname, by
	rec.Recorded.Events = slices.DeleteFunc(rec.Recorded.Events, func(e eventRecord) bool {
		return e.Before > rec.lastPoll() // no poll has seen it
	})
	return rec
}
