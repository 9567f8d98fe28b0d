package nvmlsource

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// NVML keeps all GPUs open from nvmlInit to nvmlShutdown, so that none can be unbound from the
// driver, reset or passed to a virtual machine meanwhile, and it does not list a GPU that is bound
// later. So we release one GPU by shutting NVML down and initialising it again without attaching
// that GPU. Only Discover does that, and only the poll loop calls Discover; partition control looks
// up GPUs by rediscover.

// Opening is what a Source needs to know of the machine to release GPUs.
type Opening struct {
	// BoundGPUs lists the PCI bus ids of the GPUs that the kernel driver has bound. It opens none
	// of them.
	BoundGPUs func() ([]string, error)
	// OpenMinors lists the minor numbers of the GPUs that this process has open.
	OpenMinors func() ([]int, error)
	// Rights returns what this process may open of MIG's capabilities, in any form. The driver
	// probably looks at them only at nvmlInit: if they change while readings are denied, we open
	// NVML again.
	Rights func() string
	// Pause is called before NVML is shut down. It ends other uses of the GPUs in this process, or
	// returns why they go on. When NVML is open again, resume is called; all says whether the other
	// uses may open all GPUs. While one is released, none of them may attach it.
	Pause func(ctx context.Context) (resume func(all bool), err error)
}

// session is whether NVML is open, and which GPUs it was opened without.
type session struct {
	// Discover owns these fields, and so does the change that it has begun.
	pending *pendingChange    // waits for other uses of the GPUs to end, with NVML open; nil if none does
	change  chan struct{}     // closed when the change under way has ended; nil if there is none
	began   time.Time         // when that change began
	down    error             // why NVML stays closed; nil if it does not
	failed  bool              // NVML stays closed for a reason that can end by itself: we try again to open it
	skipped map[gpu.UUID]bool // the GPUs that NVML was opened without
	// targets are the GPUs to look up by their PCI bus ids, by index, while some are skipped; else
	// nil.
	targets map[int]string
	// bound are the PCI bus ids of the GPUs that the kernel driver had bound when NVML was opened;
	// nil if unknown.
	bound []string
	// foreign are those of bound that NVML did not list when it listed all its GPUs: this container
	// does not have them.
	foreign       map[string]bool
	rights        string           // Opening.Rights when NVML was opened
	count         int              // of indexes up to the highest in targets
	resume        []func(all bool) // by Opening.Pause: resume other uses of the GPUs in this process
	loggedRefusal string           // why a change that is due has not been made, as it was logged
	// noEventsAt is when the library last had no system events, or failed to return them; zero if
	// neither has happened since nvmlInit.
	noEventsAt time.Time
	triedAt    time.Time // when the last change failed or was refused
	// retryWait is how long after triedAt only an operator's requests cause a change; 0 after a success.
	retryWait time.Duration

	// The Source's mu guards what follows.
	released map[gpu.UUID]*gpu.ReleasedGPU
	known    map[gpu.UUID]gpu.Facts // of all GPUs that were read
	requests []*releaseRequest
	using    map[*usage]bool // what uses handles of the driver now
	unused   chan struct{}   // closed when using becomes empty; nil unless a change waits for that

	// blocked makes new uses of handles fail, and readings under way end after their present call.
	// It is set under mu.
	blocked atomic.Bool
}

// usage is a use of the driver's handles: by a reading, a lookup or a request of partition control.
type usage struct {
	began time.Time // in real time
	// last is when its last call began, in nanoseconds after began. Only readings update it: for
	// other uses we count the time since they began.
	last atomic.Int64
}

// noteCall notes that a call begins.
func (u *usage) noteCall(now time.Time) { u.last.Store(int64(now.Sub(u.began))) }

// noteWait notes that no driver call is under way until noteCall.
func (u *usage) noteWait() { u.last.Store(math.MaxInt64) }

// isHung reports whether its last call began so long ago that it must hang.
func (u *usage) isHung() bool {
	return time.Since(u.began)-time.Duration(u.last.Load()) >= lookupTimeout
}

// releaseRequest is a request to release a GPU, or to open it again.
type releaseRequest struct {
	id     gpu.UUID
	opens  bool // opens the GPU again, instead of releasing it
	cause  gpu.ReleaseCause
	result chan Released // buffered: the answer does not wait for who asked
}

func (r *releaseRequest) isFromOperator() bool { return r.cause != gpu.ReleasedByDriver }

// Released is what became of a request.
type Released struct {
	Err error // why the request was refused
	// Closed is why NVML stays closed, so that no GPU is read until the released one is opened
	// again; nil if the other GPUs are read.
	Closed error
	// StillOpen is why the GPU to release is open, or may be: this process has it open although NVML
	// was shut down, what it has open cannot be read, or NVML could not be closed again after a lookup
	// had opened the GPU. Do not unbind it until a repeated request has succeeded.
	StillOpen error
	// Took is how long NVML was closed.
	Took time.Duration
}

const (
	// maxPause is how long a change waits for other uses of the GPUs to end. NVML is open
	// meanwhile.
	maxPause = 5 * time.Second
	// maxDrain is for how long it then waits for driver calls to end, while no GPU is read. It is
	// shorter than the time after which readings are stale.
	maxDrain = 2 * time.Second
)

// A change that failed or was refused is tried again after a wait that doubles, unless an operator
// requests it: each try disturbs the reading of all GPUs.
const (
	minRetryWait = time.Second
	maxRetryWait = time.Minute
)

// Release requests that this process releases a GPU. The next Discover does so or refuses, and then
// sends the result. It is no error if the GPU is released already.
func (s *Source) Release(id gpu.UUID, cause gpu.ReleaseCause) <-chan Released {
	return s.addRequest(&releaseRequest{id: id, cause: cause, result: make(chan Released, 1)})
}

// Reacquire requests that a released GPU is opened again.
func (s *Source) Reacquire(id gpu.UUID) <-chan Released {
	return s.addRequest(&releaseRequest{id: id, opens: true, result: make(chan Released, 1)})
}

func (s *Source) addRequest(r *releaseRequest) <-chan Released {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.session.requests = append(s.session.requests, r)

	return r.result
}

// advanceSession makes the changes of the session that are due. It waits for them for at most
// lookupTimeout; the error is why NVML cannot be used now.
func (s *Source) advanceSession() error {
	if s.session.change == nil && s.session.pending == nil {
		s.followBinding()

		if none := s.followKernel(); none && len(s.session.resume) > 0 {
			s.resumeOthers(true)
		}

		s.beginChange()
	}

	s.endPausing()

	if s.session.change != nil {
		timer := time.NewTimer(lookupTimeout)
		defer timer.Stop()

		select {
		case <-s.session.change:
			s.session.change = nil
		case <-timer.C:
			return fmt.Errorf("%w: it is being opened again, since %s", gpu.ErrLibraryClosed,
				s.opts.Now().Sub(s.session.began).Round(time.Second))
		}
	}

	return s.session.down
}

// followKernel compares the released GPUs with those that the kernel driver has bound: a GPU that
// was unbound and is bound again is no longer released. It reports whether it knows that no
// released GPU is bound.
func (s *Source) followKernel() (none bool) {
	bound, err := s.listBound()
	if err != nil || bound == nil {
		return false
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	stillBound := 0

	for id, r := range s.session.released {
		listed := slices.Contains(bound, shortBusID(s.session.known[id].PCIBusID))
		if listed && r.Unbound {
			delete(s.session.released, id)
		}

		r.Unbound = !listed
		if listed {
			stillBound++
		}
	}

	return stillBound == 0
}

// listBound lists the PCI bus ids of the GPUs that the kernel driver has bound, in their short
// form; nil if it is unknown.
func (s *Source) listBound() ([]string, error) {
	if s.opts.Opening.BoundGPUs == nil {
		return nil, nil
	}

	list, err := s.opts.Opening.BoundGPUs()
	if err != nil {
		return nil, fmt.Errorf("list the GPUs that the kernel driver has bound: %w", err)
	}

	bound := make([]string, 0, len(list))
	for _, id := range list {
		bound = append(bound, shortBusID(id))
	}

	slices.Sort(bound)

	return bound, nil
}

// shortBusID returns a PCI bus id in the kernel's form, 0000:07:00.0 of NVML's 00000000:07:00.0.
func shortBusID(id string) string {
	id = strings.ToLower(id)
	if domain, rest, ok := strings.Cut(id, ":"); ok && len(domain) > 4 {
		if short, ok := strings.CutPrefix(domain, "0000"); ok {
			return short + ":" + rest
		}
	}

	return id
}

// beginChange accepts the requests, and begins a change if one is due.
func (s *Source) beginChange() {
	requests, released := s.takeRequests()
	skip := map[gpu.UUID]bool{}

	for id, r := range released {
		if !r.Unbound {
			skip[id] = true
		}
	}

	due := s.reasonToReopen(released, skip)

	reopens := due == "" && s.session.failed
	if reopens {
		due = "open it again"
	}

	if due == "" {
		s.mu.Lock()
		s.session.released = released
		s.mu.Unlock()

		for _, r := range requests {
			r.result <- s.resultOf(r, skip, nil, 0)
		}

		return
	}

	change := &sessionChange{
		source:   s,
		reason:   due,
		released: released,
		skip:     skip,
		requests: requests,
		reopens:  reopens,
	}
	if s.mustWaitToRetry() && !change.isRequested() {
		change.requeue()
		return
	}

	if err := s.findHang(); err != nil {
		change.refuse(err)
		return
	}

	if err := s.enter(); err != nil {
		change.refuse(err)
		return
	}

	s.session.pending = change.beginPausing()
}

// takeRequests returns the requests that can be carried out, and the GPUs that are released once
// they are. It refuses the others.
func (s *Source) takeRequests() ([]*releaseRequest, map[gpu.UUID]*gpu.ReleasedGPU) {
	s.mu.Lock()
	defer s.mu.Unlock()

	released := maps.Clone(s.session.released)
	if released == nil {
		released = map[gpu.UUID]*gpu.ReleasedGPU{}
	}

	var accepted []*releaseRequest

	for _, r := range s.session.requests {
		facts, known := s.session.known[r.id]
		switch {
		case !known || facts.PCIBusID == "" || !facts.Minor.Present():
			r.result <- Released{Err: fmt.Errorf(
				"GPU %s: %w: its PCI bus id and its minor number were never read",
				r.id,
				gpu.ErrNotFound,
			)}
			continue
		case r.opens && released[r.id] != nil && released[r.id].Unbound:
			r.result <- Released{Err: fmt.Errorf(
				"GPU %s: %w: the kernel driver does not list it; bind it, then it is opened by itself",
				r.id,
				gpu.ErrNotFound,
			)}
			continue
		case r.opens:
			delete(released, r.id)
		case released[r.id] == nil:
			released[r.id] = &gpu.ReleasedGPU{
				FoundGPU: gpu.FoundGPU{Index: facts.Index, UUID: r.id},
				Release:  gpu.Release{Since: s.opts.Now(), Cause: r.cause},
			}
		}

		accepted = append(accepted, r)
	}

	s.session.requests = nil

	return accepted, released
}

// reasonToReopen returns why NVML is to be shut down and opened again without the GPUs of skip;
// empty if it need not be.
func (s *Source) reasonToReopen(released map[gpu.UUID]*gpu.ReleasedGPU, skip map[gpu.UUID]bool) string {
	for id := range skip {
		if !s.session.skipped[id] {
			return "release GPU " + string(id)
		}
	}

	for id := range s.session.skipped {
		// A GPU that was unbound and is still released needs no change of its own, unless NVML is
		// closed because of it.
		if !skip[id] && (s.session.down != nil || released[id] == nil) {
			return "open GPU " + string(id) + " again"
		}
	}

	if s.session.down != nil && s.countInits() > 0 {
		return "shut NVML down, which has failed" // in closeAgain
	}

	if !s.initialised {
		return ""
	}

	if err := s.checkClosed(skip); err != nil {
		return "close a released GPU that is open again"
	}

	if s.readRights() != s.session.rights && s.privilege.lacksAny() {
		return "use MIG rights that have changed"
	}

	bound, err := s.listBound()
	if err != nil {
		return ""
	}

	for _, id := range bound {
		if s.session.bound != nil && !slices.Contains(s.session.bound, id) &&
			!s.skipsBusID(skip, id) {
			return "open GPU " + id + ", which was bound"
		}
	}

	if bound != nil {
		s.session.bound = slices.DeleteFunc(slices.Clone(s.session.bound), func(id string) bool {
			return !slices.Contains(bound, id) // if it is bound again, it is new
		})
	}

	return ""
}

func (s *Source) readRights() string {
	if s.opts.Opening.Rights == nil {
		return ""
	}

	return s.opts.Opening.Rights()
}

// isReleased reports whether a GPU is released.
func (s *Source) isReleased(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.session.released[id] != nil
}

// skipsBusID reports whether the GPU at a PCI bus id is one of those to skip.
func (s *Source) skipsBusID(skip map[gpu.UUID]bool, busID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	for id := range skip {
		if shortBusID(s.session.known[id].PCIBusID) == busID {
			return true
		}
	}

	return false
}

// noteFacts keeps the facts of a GPU for the time when it is released.
func (s *Source) noteFacts(f gpu.Facts) {
	if f.PCIBusID == "" {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if old, ok := s.session.known[f.UUID]; ok && old.Index == f.Index && old.Minor == f.Minor &&
		old.PCIBusID == f.PCIBusID {
		return
	}

	s.session.known[f.UUID] = gpu.Facts{
		UUID:     f.UUID,
		Index:    f.Index,
		Minor:    f.Minor,
		PCIBusID: f.PCIBusID,
	}
}

// listReleased returns the GPUs that are released, by index.
func (s *Source) listReleased() []gpu.ReleasedGPU {
	s.mu.Lock()
	defer s.mu.Unlock()

	var list []gpu.ReleasedGPU
	for _, r := range s.session.released {
		list = append(list, *r)
	}

	slices.SortFunc(list, func(a, b gpu.ReleasedGPU) int { return a.Index - b.Index })

	return list
}
