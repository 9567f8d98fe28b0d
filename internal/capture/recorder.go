package capture

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// Recorder records the answers of a driver.
type Recorder struct{ lib *library }

// NewRecorder returns a recorder in front of a driver. Its first poll begins at start.
func NewRecorder(driver nvmlsource.Library, start time.Time) *Recorder {
	rec := &Recording{Version: 1, Recorded: recorded{
		Start: start.Round(0).UTC(),
		Polls: pollTimes{0},
		Node:  nodeAnswers{},
		GPUs:  map[gpuName]*gpuRecord{},
	}}

	return &Recorder{newLibrary(rec, driver)}
}

// Library returns the driver whose calls are recorded.
func (r *Recorder) Library() nvmlsource.Library { return r.lib.seam }

// Next begins another poll. Before that it runs move, which returns the time of the new poll;
// events during move belong to the new poll. Next must not be called during a poll.
func (r *Recorder) Next(move func() (time.Time, error)) error {
	t := r.lib.time
	rec := &r.lib.rec.Recorded

	t.mu.Lock()
	t.poll++
	t.between = true
	t.mu.Unlock()

	now, err := move()

	t.mu.Lock()
	defer t.mu.Unlock()

	t.between = false

	// Round(0) drops the monotonic clock: the wall clock may be set back.
	rec.Polls = append(rec.Polls, now.Round(0).Sub(rec.Start).Round(time.Millisecond))

	return err
}

// Recording returns what was recorded until now. by is the program that records, and
// processesHidden says that processes may have been hidden from it. Calls that have not returned
// are recorded as calls that hang.
func (r *Recorder) Recording(hostname, by string, processesHidden bool) *Recording {
	r.lib.time.mu.Lock()
	defer r.lib.time.mu.Unlock()

	rec := r.lib.rec.clone()

	rec.Node.Hostname = hostname
	rec.Node.PIDNamespace = hostNamespace
	rec.Recorded.By = by

	if processesHidden {
		rec.Node.PIDNamespace = containerNamespace
	}

	rec.Recorded.Events = slices.DeleteFunc(rec.Recorded.Events, func(e eventRecord) bool {
		return e.Before > rec.lastPoll() // no poll has seen it
	})

	return rec
}
