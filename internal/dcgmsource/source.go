package dcgmsource

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// Mode is where the host engine runs.
type Mode string

// The modes: in this process, or in a running nv-hostengine.
const (
	ModeEmbedded Mode = "embedded"
	ModeRemote   Mode = "remote"
)

const (
	defaultInterval = time.Second
	minInterval     = 100 * time.Millisecond // DCGM's for profiling
	// hierarchyLag is how long the engine's hierarchy may still show the previous layout: we have
	// seen 1-2 s.
	hierarchyLag = 2 * time.Second
	// hierarchyTimeout is how long the engine's hierarchy may differ from the driver's layout
	// before it counts as stale. Then an engine in this process is started again; a running one is
	// left to the operator.
	hierarchyTimeout         = 30 * time.Second
	hierarchyTimeoutEmbedded = 10 * time.Second
	// staleIntervals is for how many intervals a value is served if no newer one comes.
	staleIntervals = 3
	// updateLag is how much later than its interval a value may be measured.
	updateLag  = time.Second
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// Options of a Source.
type Options struct {
	Mode    Mode
	Address string // of a remote engine, for messages
	// Interval between two values of the engine: 1 s unless set, at least 100 ms.
	Interval time.Duration
	// IncludeGPM includes the GPUs that the driver itself profiles (by GPM).
	IncludeGPM bool
	Now        func() time.Time // the clock of the engine's timestamps; time.Now unless set
	// User returns the effective user id of this process; os.Geteuid unless set.
	User   func() int
	Logger log.Logger
}

// Source profiles GPUs by a DCGM host engine. It is safe for concurrent use; calls of Profile wait
// for each other.
type Source struct {
	connector Connector
	opts      Options
	fields    [levels][]uint16 // fieldsOf each level
	firstRate int              // index of the first of a GPU's fields that is a rate; those before it are ratios

	calls    atomic.Uint64
	closed   atomic.Bool
	releases atomic.Int32 // how many Releases have not been resumed
	retryNow atomic.Bool  // Retry was called

	mu sync.Mutex // guards what follows; held for a cycle, and so for as long as a call hangs

	// Connecting.
	session     Session // nil while not connected
	connected   bool    // a cycle has succeeded in this session
	reconnect   retry.Backoff
	lastErr     error
	starts      startLimit
	cannotStart bool // MIG is on and we are not root: no engine starts here
	// restarted holds, by GPU, the layout for which an engine in this process was started again
	// because it did not follow.
	restarted map[gpu.UUID]uint64

	// What we know of the engine, and have created in it: disconnect forgets it.
	profiled      map[gpu.UUID]*profiledGPU // the GPUs to profile
	devices       map[gpu.UUID]uint32       // the engine's numbers of the GPUs
	fieldGroups   [levels]FieldGroup        // valid if hasFieldGroup
	hasFieldGroup [levels]bool
	shared        *watch   // of all GPUs; nil if each has its own
	cannotShare   bool     // the engine refuses to watch the GPUs together
	leftover      []*watch // whose groups could not be destroyed yet
	loggedCause   error    // why no GPU can be profiled, as it was logged

	groupNames int // how many names newName has returned

	// The present cycle.
	wanted        []*gpu.GPU  // the GPUs to profile
	hierarchy     []MIGEntity // the engine's
	hierarchyErr  error       // why it could not be read, if the engine has one
	pausedInCycle bool        // the engine refused the shared watch because profiling is paused

	values   []Value  // readWatch's buffer
	entities []Entity // buffer for the GPUs of a watch
}

// New returns a Source, which connects with the first Profile.
func New(connector Connector, opts Options) *Source {
	if opts.Interval == 0 {
		opts.Interval = defaultInterval
	}

	opts.Interval = max(opts.Interval, minInterval)
	if opts.Now == nil {
		opts.Now = time.Now
	}

	if opts.User == nil {
		opts.User = os.Geteuid
	}

	if opts.Logger == nil {
		opts.Logger = log.NewNopLogger()
	}

	s := &Source{
		connector: connector,
		opts:      opts,
		profiled:  map[gpu.UUID]*profiledGPU{},
		devices:   map[gpu.UUID]uint32{},
		restarted: map[gpu.UUID]uint64{},
	}

	for l := range s.fields {
		s.fields[l] = fieldsOf(Level(l))
	}

	s.firstRate = slices.Index(s.fields[LevelGPU], fieldPCIeTransmit)

	return s
}

// Calls returns how many calls of the engine we have made.
func (s *Source) Calls() uint64 { return s.calls.Load() }

// countedSession returns the session and counts one call of the engine.
func (s *Source) countedSession() Session {
	s.calls.Add(1)
	return s.session
}

// Profile returns the activity of the GPUs that the engine is to profile, for the layout that the
// Snapshot shows. A GPU that cannot be profiled is left out and logged; an error means that the
// engine does not answer: gpu.ErrUnavailable.
func (s *Source) Profile(snapshot *gpu.Snapshot) (map[gpu.UUID]gpu.Profiling, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.closed.Load() {
		return nil, fmt.Errorf("profile by DCGM: %w: closed", gpu.ErrUnavailable)
	}

	if s.releases.Load() > 0 {
		return nil, fmt.Errorf(
			"profile by DCGM: %w: released while a MIG mode changes or a GPU is released",
			gpu.ErrUnavailable,
		)
	}

	now := s.opts.Now()
	s.cannotStart = s.needsRoot(snapshot)

	if err := s.connect(snapshot, now); err != nil {
		return nil, err
	}

	activities, err := s.cycle(snapshot, now)
	if err != nil {
		s.disconnect()
		return nil, s.recordFailure(err, now)
	}

	s.reconnect = retry.Backoff{}
	if !s.connected {
		s.connected = true
		level.Info(s.opts.Logger).Log(
			"msg", "connected to DCGM",
			"mode", s.opts.Mode,
			"address", s.opts.Address,
		)
	}

	s.restartStale(now)

	return activities, nil
}

// restartStale ends an engine in this process that has not followed a change of a GPU's instances;
// none follows a change of the MIG mode. The next cycle starts another one, once for each layout.
// (A running nv-hostengine follows such changes by itself.) We keep an engine that would not start
// again: it still serves the other GPUs.
func (s *Source) restartStale(now time.Time) {
	if s.opts.Mode != ModeEmbedded || s.cannotStart {
		return
	}

	stale := false

	for id, p := range s.profiled {
		if p.wanted && p.isStale(now, hierarchyTimeoutEmbedded) && s.restarted[id] != p.layout {
			s.restarted[id] = p.layout
			stale = true
		}
	}

	if !stale {
		return
	}

	level.Info(s.opts.Logger).Log(
		"msg", "embedded DCGM lists other instances than the driver; restarting it",
	)

	if err := s.tearDown(); err != nil {
		level.Debug(s.opts.Logger).Log("msg", "cannot stop embedded DCGM", "err", err)
	}
}

// Retry makes the next Profile connect at once if there is no connection, even after maxStarts. It
// does not block.
func (s *Source) Retry() { s.retryNow.Store(true) }

// connect connects unless there is a session. Until the next attempt is due, it returns the last
// error.
func (s *Source) connect(snapshot *gpu.Snapshot, now time.Time) error {
	if s.retryNow.Swap(false) && !s.versionIsFinal() {
		s.reconnect = retry.Backoff{}
		s.starts = startLimit{}
	}

	if s.session != nil {
		return nil
	}

	if s.versionIsFinal() {
		return s.lastErr
	}

	if s.opts.Mode == ModeEmbedded && len(snapshot.GPUs) == 0 {
		// An engine in this process opens all GPUs, which the driver's source may have to leave
		// alone.
		return s.recordFailure(
			fmt.Errorf("%w: no GPU has been read from the driver", gpu.ErrUnavailable),
			now,
		)
	}

	if s.opts.Mode == ModeEmbedded && s.starts.update(snapshot) {
		s.reconnect = retry.Backoff{}
	}

	if !s.reconnect.IsDue(now) || s.starts.failed >= maxStarts {
		return s.lastErr
	}

	s.calls.Add(1)

	session, err := s.connector.Connect()
	if err != nil {
		if s.opts.Mode == ModeEmbedded && leavesThread(err) {
			s.starts.failed++
		}

		return s.recordFailure(s.explainStart(err), now)
	}

	s.starts.failed = 0
	s.session = session

	return nil
}

// recordFailure returns the error of an attempt. Calls return it until the next attempt.
func (s *Source) recordFailure(err error, now time.Time) error {
	if errors.Is(err, gpu.ErrUnavailable) {
		s.lastErr = fmt.Errorf("profile by DCGM: %w", err)
	} else {
		s.lastErr = fmt.Errorf("profile by DCGM: %w: %w", gpu.ErrUnavailable, err)
	}

	if s.starts.failed >= maxStarts {
		after := "a change of a MIG mode or layout, a GPU that answers again, or a reload (SIGHUP)"
		if s.versionIsFinal() {
			after = "a restart of this program"
		}

		s.lastErr = fmt.Errorf(
			"%w; %d starts have failed: the next one is after %s",
			s.lastErr,
			maxStarts,
			after,
		)
	}

	s.reconnect.Postpone(now, minBackoff, maxBackoff)

	return s.lastErr
}

// disconnect forgets what was created in the session: the engine drops it with the connection, or
// has done so already.
func (s *Source) disconnect() {
	if err := s.countedSession().Close(); err != nil {
		level.Debug(s.opts.Logger).Log("msg", "cannot close the connection to DCGM", "err", err)
	}

	s.session = nil
	s.connected = false
	s.shared = nil
	s.cannotShare = false
	s.leftover = nil
	s.loggedCause = nil
	clear(s.profiled)
	clear(s.devices)
	s.hasFieldGroup = [levels]bool{}
}

// Close destroys what was created in the engine, and disconnects. If a call of the engine hangs,
// Close abandons it when ctx ends and returns gpu.ErrTimeout; what the call holds is released with
// the process.
func (s *Source) Close(ctx context.Context) error {
	s.closed.Store(true)

	if err := s.awaitTearDown(ctx); err != nil {
		return fmt.Errorf("close DCGM: %w", err)
	}

	return nil
}

// Release disconnects from the engine for a change of the MIG mode: an engine in this process holds
// the GPUs open and does not follow the change; a running one follows, but holds the watches that
// were created in it. Until resume is called, Profile returns gpu.ErrUnavailable. It fails as
// Close does; then nothing is paused, and resume is nil.
func (s *Source) Release(ctx context.Context) (resume func(), err error) {
	s.releases.Add(1)

	if err := s.awaitTearDown(ctx); err != nil {
		s.releases.Add(-1)
		return nil, fmt.Errorf("release DCGM: %w", err)
	}

	return sync.OnceFunc(func() { s.releases.Add(-1) }), nil
}

// awaitTearDown calls tearDown, and waits for it until ctx ends.
func (s *Source) awaitTearDown(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		done <- s.tearDown()
	}()

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: a call hangs", gpu.ErrTimeout)
	}
}

func (s *Source) tearDown() error {
	if s.session == nil {
		return nil
	}

	err := s.releaseAll()
	if err == nil {
		for l, exists := range s.hasFieldGroup {
			if exists {
				err = errors.Join(err, s.countedSession().DestroyFieldGroup(s.fieldGroups[l]))
			}
		}
	}

	s.disconnect()

	if err != nil && !isLost(err) {
		return err
	}

	return nil
}
