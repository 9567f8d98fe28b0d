// Package rightsizing runs the advisor: it observes every Snapshot, recommends once a minute and when
// a device changes hands, and keeps the evidence over restarts.
package rightsizing

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Options are the options of a Loop.
type Options struct {
	Advise   advise.Options
	StateDir string // the folder for the evidence; empty: a restart loses the evidence
	// WriteFile replaces a file atomically and blocks until it is on disk. It creates the folder if
	// that is missing.
	WriteFile  func(path string, content []byte) error
	IsNodeName bool // Advise's name of the node is that of a Kubernetes node
	// Published is called with each report.
	Published func(*advise.Report)
	Logger    log.Logger
}

// Loop observes every Snapshot, and recomputes the recommendations once a minute, by the Snapshots'
// times, and when a device changes hands. Run recomputes and saves. The poll calls Observe, which must
// wait for neither the packing nor a disk.
type Loop struct {
	file       *evidenceFile      // nil: the evidence is not kept
	wake       chan struct{}      // Observe wakes Run: recommendations are due
	flush      chan chan struct{} // Flush asks Run to close the channel that it sends
	stopped    chan struct{}      // closed when Run has returned
	current    atomic.Pointer[advise.Report]
	isNodeName bool
	published  func(*advise.Report)

	mu      sync.Mutex
	found   *advise.Checkpoint // the file's evidence, until we know whether it is this node's
	foreign error              // why it is not, until the file is set aside
	advisor *advise.Advisor
	last    *gpu.Snapshot // the last Snapshot observed; nil before the first
	minute  time.Time     // last's time, truncated
	held    uint64        // the hash of what held the devices when a report was due last
	due     time.Time     // when it was due
	seed    maphash.Seed  // makes the hashes of different Snapshots comparable
}

// New returns a loop. It reads the evidence of the last run, if that was kept.
func New(o Options) *Loop {
	l := &Loop{
		wake: make(chan struct{}, 1), flush: make(chan chan struct{}), stopped: make(chan struct{}),
		advisor:    advise.New(o.Advise),
		isNodeName: o.IsNodeName,
		published:  o.Published,
		seed:       maphash.MakeSeed(),
	}
	if o.StateDir == "" {
		level.Info(o.Logger).Log(
			"msg", "evidence for right-sizing is not saved; a restart loses it",
			"see", "--advise.state-dir",
		)

		return l
	}

	l.file, l.found = openEvidence(&o)

	return l
}

// Observe adds a Snapshot to the evidence, unless its time is in doubt.
func (l *Loop) Observe(s *gpu.Snapshot) {
	l.mu.Lock()
	l.restore(s)

	due := false
	if l.advisor.Observe(s) {
		due = l.isDue(s)
		l.last = s
	}

	l.mu.Unlock()

	if !due {
		return // the last report stands
	}

	select {
	case l.wake <- struct{}{}:
	default: // Run has not begun with the one before: it will use this Snapshot
	}
}

// isDue reports whether s needs another report than the Snapshot before: a minute has begun, or a
// device has changed hands. The report of before names a container that does not hold the device any
// more, so that metrics would show no advice until the next minute. The caller holds mu.
func (l *Loop) isDue(s *gpu.Snapshot) bool {
	minute := s.Time.Truncate(time.Minute)
	due := l.last == nil || !minute.Equal(l.minute)
	l.minute = minute

	held, known := l.hashHolders(s)
	changed := known && held != l.held && s.Time.Sub(l.due) >= handoverPause

	if !due && !changed {
		return false
	}

	l.due = s.Time
	if known {
		l.held = held
	}

	return true
}

// handoverPause is how long after a report a device that changes hands has to wait for the next one. On a
// node of many slices with short jobs, one changes hands every second.
const handoverPause = 5 * time.Second

// hashHolders returns a hash of which containers and batch jobs hold which devices. It returns false
// while the pod of one is not described: until then the advisor does not know its workload.
func (l *Loop) hashHolders(s *gpu.Snapshot) (held uint64, known bool) {
	var hash maphash.Hash
	hash.SetSeed(l.seed)

	for d := range s.Devices() {
		for i := range d.Holders {
			h := &d.Holders[i]
			if h.Undescribed {
				return 0, false
			}

			maphash.WriteComparable(&hash, d.ID())
			maphash.WriteComparable(&hash, h.Container)
			maphash.WriteComparable(&hash, h.PodUID)
			maphash.WriteComparable(&hash, h.Workload)
		}

		for _, job := range d.Jobs() {
			maphash.WriteComparable(&hash, d.ID())
			maphash.WriteComparable(&hash, job)
		}
	}

	return hash.Sum64(), true
}

// restore gives the advisor the evidence that was found, once a Snapshot shows that it is of this
// node. The caller holds mu.
func (l *Loop) restore(s *gpu.Snapshot) {
	if l.found == nil {
		return
	}

	same, known := l.found.IsOf(s, l.isNodeName)
	if !known {
		return
	}

	if same {
		l.file.logRestored(l.found, l.found.HasGPUOf(s))
		l.advisor.Restore(l.found)
	} else {
		l.foreign = fmt.Errorf(
			"it is of another node, %q, none of whose GPUs this one has",
			l.found.Node,
		)
	}

	l.found = nil
}

// Run recomputes what is due until ctx ends, and then saves the evidence.
func (l *Loop) Run(ctx context.Context) error {
	defer close(l.stopped)

	for {
		select {
		case <-ctx.Done():
			l.save(true)
			return nil
		case <-l.wake:
			l.update()
		case done := <-l.flush:
			select {
			case <-l.wake:
				l.update()
			default:
			}

			close(done)
		}
	}
}

// Flush blocks until what was due is published and saved, Run has returned or ctx ends.
func (l *Loop) Flush(ctx context.Context) {
	done := make(chan struct{})
	select {
	case l.flush <- done:
	case <-l.stopped:
		return
	case <-ctx.Done():
		return
	}

	select {
	case <-done:
	case <-ctx.Done():
	}
}

// update publishes the recommendations for the last Snapshot, and saves the evidence if that is
// due.
func (l *Loop) update() {
	l.mu.Lock()
	s := l.last
	report := l.advisor.Recommend(s)
	l.mu.Unlock()
	report.Pack(s)
	l.current.Store(report)
	l.published(report)
	l.save(false)
}

// save writes the evidence to its file if that is due or, with force, in any case. It does not while
// the evidence in the file may still be this node's and was not restored.
func (l *Loop) save(force bool) {
	if l.file == nil {
		return
	}

	l.mu.Lock()
	foreign := l.foreign
	l.foreign = nil
	var at time.Time

	var evidence *advise.Checkpoint

	if l.found == nil && l.last != nil && (force || l.file.isDue(l.last.Time)) {
		at = l.last.Time
		evidence = l.advisor.Checkpoint()
	}

	l.mu.Unlock()

	if foreign != nil && !l.file.setAside(foreign) {
		l.file = nil
		return
	}

	if evidence != nil {
		l.file.write(evidence, at)
	}
}

// Last returns the last report; nil before the first.
func (l *Loop) Last() *advise.Report { return l.current.Load() }

// Report returns the last report, or nil before the first. With an id that is not empty, it returns
// the part for the devices of that GPU, which has no packing.
func (l *Loop) Report(id gpu.UUID) any {
	now := l.Last()
	if now == nil {
		return nil
	}

	if id == "" {
		return now
	}

	part := *now
	part.Packing = nil
	all := slices.Clone(part.Devices)
	part.Devices = slices.DeleteFunc(all, func(d advise.Recommendation) bool {
		return d.GPU != id
	})

	return &part
}
