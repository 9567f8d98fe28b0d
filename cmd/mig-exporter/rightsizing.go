package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// rightsizing observes every Snapshot, and recomputes the recommendations once a minute of their time. That and the
// evidence file are the work of run; observe, on the path of the poll, waits for neither the packing nor a disk.
type rightsizing struct {
	file       *evidenceFile // nil: the evidence is not kept
	wake       chan struct{} // recommendations are due
	flush      chan chan struct{}
	stopped    chan struct{} // closed when run has returned
	current    atomic.Pointer[recommended]
	isNodeName bool // the node's name is that of a Kubernetes node
	// published is called with each report; nil: nothing else wants it.
	published func(*advise.Report)

	mu      sync.Mutex
	found   *advise.Checkpoint // evidence of which it is not known yet whether it is of this node
	foreign error              // why the evidence in the file is not; nil if it is
	advisor *advise.Advisor
	last    *gpu.Snapshot // that was observed; nil before the first
	minute  time.Time     // of last
}

// recommended is what was computed at once.
type recommended struct {
	report *advise.Report
	advice []collector.Advice
}

// newRightsizing returns right-sizing, with the evidence of its last run if it was kept; nil if right-sizing is off.
func newRightsizing(cfg *Config, logger log.Logger) *rightsizing {
	if !cfg.Advise.Enabled {
		return nil
	}

	logger = log.With(logger, "component", "rightsizing")

	r := &rightsizing{
		wake: make(chan struct{}, 1), flush: make(chan chan struct{}), stopped: make(chan struct{}),
		advisor:    advise.New(cfg.Advise.options(cfg.PollInterval * cfg.clockSpeed())),
		isNodeName: cfg.NodeName != "",
	}
	if cfg.Advise.StateDir == "" {
		level.Info(logger).Log(
			"msg", "evidence for right-sizing is not saved; a restart loses it",
			"see", "--advise.state-dir",
		)

		return r
	}

	r.file, r.found = openEvidence(cfg.Advise.StateDir, logger)

	return r
}

// observe adds a Snapshot to the evidence, unless its time is in doubt.
func (r *rightsizing) observe(s *gpu.Snapshot) {
	r.mu.Lock()
	minute := s.Time.Truncate(time.Minute)
	due := r.last == nil || !minute.Equal(r.minute)
	r.restore(s)

	observed := r.advisor.Observe(s)
	if observed {
		r.last = s
		r.minute = minute
	}

	r.mu.Unlock()

	if !observed || !due {
		return // what was published stands
	}

	select {
	case r.wake <- struct{}{}:
	default: // run has not got to the minute before yet
	}
}

// restore gives the advisor the evidence that was found, once a Snapshot shows that it is of this node. The caller
// holds mu.
func (r *rightsizing) restore(s *gpu.Snapshot) {
	if r.found == nil {
		return
	}

	same, known := r.found.IsOf(s, r.isNodeName)
	if !known {
		return
	}

	if same {
		r.file.logRestored(r.found, r.found.HasGPUOf(s))
		r.advisor.Restore(r.found)
	} else {
		r.foreign = fmt.Errorf(
			"it is of another node, %q, none of whose GPUs this one has",
			r.found.Node,
		)
	}

	r.found = nil
}

// run recomputes what is due until ctx ends, and then saves the evidence.
func (r *rightsizing) run(ctx context.Context) error {
	defer close(r.stopped)

	for {
		select {
		case <-ctx.Done():
			r.save(true)
			return nil
		case <-r.wake:
			r.update()
		case done := <-r.flush:
			select {
			case <-r.wake:
				r.update()
			default:
			}

			close(done)
		}
	}
}

// flushUpdates blocks until what was due is published and saved, run has returned or ctx ends.
func (r *rightsizing) flushUpdates(ctx context.Context) {
	done := make(chan struct{})
	select {
	case r.flush <- done:
	case <-r.stopped:
		return
	case <-ctx.Done():
		return
	}

	select {
	case <-done:
	case <-ctx.Done():
	}
}

// update publishes the recommendations for the last Snapshot, and saves the evidence if that is due.
func (r *rightsizing) update() {
	r.mu.Lock()
	s := r.last
	report := r.advisor.Recommend(s)
	r.mu.Unlock()
	report.Pack(s)
	r.current.Store(&recommended{report: report, advice: adviceOf(report)})

	if r.published != nil {
		r.published(report)
	}

	r.save(false)
}

// save writes the evidence to its file, unless none is kept or what the file has may be of this node. Without force it
// does so if saveEvery has passed.
func (r *rightsizing) save(force bool) {
	if r.file == nil {
		return
	}

	r.mu.Lock()
	foreign := r.foreign
	r.foreign = nil
	var at time.Time

	var evidence *advise.Checkpoint

	if r.found == nil && r.last != nil && (force || r.file.isDue(r.last.Time)) {
		at = r.last.Time
		evidence = r.advisor.Checkpoint()
	}

	r.mu.Unlock()

	if foreign != nil && !r.file.setAside(foreign) {
		r.file = nil
		return
	}

	if evidence != nil {
		r.file.write(evidence, at)
	}
}

// report returns the last recommendations, or those for the devices of one GPU, which have no packing. It returns nil
// before the first.
func (r *rightsizing) report(id gpu.UUID) any {
	now := r.current.Load()
	if now == nil {
		return nil
	}

	if id == "" {
		return now.report
	}

	part := *now.report
	part.Packing = nil
	all := slices.Clone(part.Devices)
	part.Devices = slices.DeleteFunc(all, func(d advise.Recommendation) bool {
		return d.GPU != id
	})

	return &part
}

// advice returns what metrics show of the last recommendations.
func (r *rightsizing) advice() []collector.Advice {
	now := r.current.Load()
	if now == nil {
		return nil
	}

	return now.advice
}

// adviceOf returns the recommendations that metrics show.
func adviceOf(report *advise.Report) []collector.Advice {
	var list []collector.Advice

	for i := range report.Devices {
		d := &report.Devices[i]

		a := collector.Advice{
			GPU:       d.GPU,
			Instance:  d.Instance,
			Placement: d.Placement,
			Profile:   d.Recommended,
		}
		if d.Pod != nil {
			a.Holder = gpu.Container{
				Namespace: d.Pod.Namespace,
				Pod:       d.Pod.Name,
				Name:      d.Pod.Container,
			}
		}

		if d.Instance.Present() {
			if isInstanceCandidate(d) {
				a.Action = string(d.Action)
				list = append(list, a)
			}

			continue
		}

		if d.Candidate() {
			a.Action = string(d.Action)
			a.Reclaimable = gpu.Some(d.Reclaimable)
			a.Figure = d.Predicted.Decided.Figure
			a.Deciding = gpu.Some(d.Predicted.Decided.Ratio)

			if d.Gain != nil {
				a.FreedGPUs = gpu.Some(d.Gain.FreedGPUs)
			}

			if stretch := d.Predicted.StretchP95; stretch != (advise.Stretch{}) {
				a.StretchLow, a.StretchHigh = roundedStretch(stretch.Low), roundedStretch(stretch.High)
			}
		} else if a.Rejected = rejection(d); a.Rejected == "" {
			continue
		}

		// A confidence of 0 says something only after an hour.
		if d.Confidence > 0 || d.Evidence != nil && d.Evidence.ObservedHours >= 1 {
			a.Confidence = gpu.Some(d.Confidence)
		}

		list = append(list, a)
	}

	return list
}

// roundedStretch has as many digits as the report: a value that hardly changes costs Prometheus little.
func roundedStretch(x float64) gpu.Opt[float64] { return gpu.Some(math.Round(x*1000) / 1000) }

// isInstanceCandidate reports whether metrics name a GPU instance: what it lacks and that it is idle is seen at once,
// that a smaller one does is not.
func isInstanceCandidate(d *advise.Recommendation) bool {
	switch d.Action {
	case advise.ActionGrow, advise.ActionIdle:
		return true
	case advise.ActionShrink:
		return !d.Provisional && !d.NotChecked
	}

	return false
}

// rejection returns the reason that metrics show for a whole GPU that is no candidate; empty if there is nothing to
// show yet.
func rejection(d *advise.Recommendation) string {
	switch {
	case d.Action == advise.ActionSlice && d.Provisional:
		return "provisional"
	case d.Action == advise.ActionSlice:
		return "media-not-checked"
	case d.Reason == advise.ReasonNoMIG,
		d.Reason == advise.ReasonLittleEvidence,
		d.Reason == advise.ReasonHoldersUnknown:
		return ""
	}

	return string(d.Reason)
}
