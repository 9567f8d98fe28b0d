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
)

// Mode is how a host engine is had.
type Mode string

// The modes: within this process, or one that runs.
const (
	ModeEmbedded Mode = "embedded"
	ModeRemote   Mode = "remote"
)

const (
	defaultInterval = time.Second
	minInterval     = 100 * time.Millisecond // DCGM's for profiling
	// settle is for how long the engine's hierarchy may be of a layout that has passed: 1-2 s have been seen.
	settle = 2 * time.Second
	// hierarchyTimeout is for how long a hierarchy of another layout is taken for one that lags behind. An engine in this process is
	// started again then, a running one is left to the operator.
	hierarchyTimeout         = 30 * time.Second
	hierarchyTimeoutEmbedded = 10 * time.Second
	// updateLag is how much later than its interval a value may be taken.
	updateLag  = time.Second
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// Options of a Source.
type Options struct {
	Mode    Mode
	Address string // of a remote engine, for what is said of it
	// Interval between two values of the engine: 1 s unless set, at least 100 ms.
	Interval time.Duration
	// Everything profiles the GPUs too that the driver itself profiles (by GPM).
	Everything bool
	Now        func() time.Time // the clock that the engine's values are stamped by; time.Now unless set
	// User returns the effective user id of this process; os.Geteuid unless set.
	User   func() int
	Logger log.Logger
}

// Source profiles GPUs by a DCGM host engine. Profile may be called from any goroutine, by one at a time.
type Source struct {
	engine Engine
	opts   Options
	calls  atomic.Uint64
	closed atomic.Bool
	paused atomic.Int32 // Releases that have not been resumed
	again  atomic.Bool  // Retry was called

	mu        sync.Mutex // held for a cycle, and so for as long as a call hangs
	session   Session    // nil while not connected
	connected bool       // and a cycle has succeeded since
	retry     backoff
	lastErr   error
	starts    startLimit
	rootless  bool  // an engine in this process would not start now, for lack of root
	advised   error // what keeps all GPUs from being profiled and is in the log
	units     map[gpu.UUID]*unit
	devices   map[gpu.UUID]uint32
	looked    backoff // looking for GPUs that the engine does not know
	fields    [levels]FieldGroup
	named     [levels]bool // which field groups exist
	boards    *watch       // of all GPUs; nil if each has its own
	split     bool         // the GPUs can't be watched together
	refused   bool         // they could not be watched in this cycle: profiling is paused
	leftover  []*watch     // could not be destroyed yet
	made      int          // groups, for their names
	sets      [levels][]uint16
	ratios    int // how many of a GPU's fields are ratios; its traffic follows
	tree      []MIGEntity
	treeErr   error // why it could not be read in this cycle
	// restarted are the layouts for which an engine in this process was started again because it did not follow.
	restarted map[gpu.UUID]uint64
	values    []Value
	wanted    []*gpu.GPU
	ids       []Entity
}

// New makes a Source. It connects with the first Profile.
func New(engine Engine, opts Options) *Source {
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
	s := &Source{engine: engine, opts: opts, units: map[gpu.UUID]*unit{}, devices: map[gpu.UUID]uint32{}, restarted: map[gpu.UUID]uint64{}}
	for l := range s.sets {
		s.sets[l] = fieldsOf(Level(l))
	}
	s.ratios = slices.Index(s.sets[LevelGPU], fieldPCIeTransmit)
	return s
}

// Calls counts the calls of the engine.
func (s *Source) Calls() uint64 { return s.calls.Load() }

// Profile returns the activity of the GPUs that are the engine's to profile, for the layout that the Snapshot shows. A GPU
// that can't be profiled is left out and logged; an error means that the engine cannot be asked: gpu.ErrUnavailable.
func (s *Source) Profile(snapshot *gpu.Snapshot) (map[gpu.UUID]gpu.Profiling, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, fmt.Errorf("profile by DCGM: %w: closed", gpu.ErrUnavailable)
	}
	if s.paused.Load() > 0 {
		return nil, fmt.Errorf("profile by DCGM: %w: released for a change of the MIG mode", gpu.ErrUnavailable)
	}
	now := s.opts.Now()
	s.rootless = s.needsRoot(snapshot)
	if err := s.connect(snapshot, now); err != nil {
		return nil, err
	}
	answer, err := s.cycle(snapshot, now)
	if err != nil {
		s.disconnect()
		return nil, s.failed(err, now)
	}
	s.retry = backoff{}
	if !s.connected {
		s.connected = true
		level.Info(s.opts.Logger).Log("msg", "Connected to DCGM", "mode", s.opts.Mode, "address", s.opts.Address)
	}
	s.startOver(now)
	return answer, nil
}

// startOver ends an engine within this process that does not follow a change of a GPU's instances, as none does a change of the MIG
// mode; the next cycle starts another one, once for each layout. (A running nv-hostengine followed such changes by itself.) An engine
// that would not start again is kept: it still serves the other GPUs.
func (s *Source) startOver(now time.Time) {
	if s.opts.Mode != ModeEmbedded || s.rootless {
		return
	}
	stale := false
	for id, u := range s.units {
		if u.wanted && u.stale(now, hierarchyTimeoutEmbedded) && s.restarted[id] != u.layout {
			s.restarted[id], stale = u.layout, true
		}
	}
	if !stale {
		return
	}
	level.Info(s.opts.Logger).Log("msg", "DCGM in this process lists other instances than the driver; it is started again")
	if err := s.tearDown(); err != nil {
		level.Debug(s.opts.Logger).Log("msg", "DCGM in this process did not end well", "err", err)
	}
}

// Retry makes the next Profile connect at once if there is no connection, also where an engine is not started any more. It does not
// block.
func (s *Source) Retry() { s.again.Store(true) }

// connect connects if it is time for that.
func (s *Source) connect(snapshot *gpu.Snapshot, now time.Time) error {
	if s.again.Swap(false) && !s.versionIsFinal() {
		s.retry, s.starts = backoff{}, startLimit{}
	}
	if s.session != nil {
		return nil
	}
	if s.versionIsFinal() {
		return s.lastErr
	}
	if s.opts.Mode == ModeEmbedded && s.starts.changed(snapshot) {
		s.retry = backoff{}
	}
	if !s.retry.due(now) || s.starts.failed >= maxStarts {
		return s.lastErr
	}
	s.calls.Add(1)
	session, err := s.engine.Connect()
	if err != nil {
		if s.opts.Mode == ModeEmbedded && leavesThread(err) {
			s.starts.failed++
		}
		return s.failed(s.explainStart(err), now)
	}
	s.starts.failed = 0
	s.session = session
	return nil
}

// failed is the error of this attempt, and of all until the next one.
func (s *Source) failed(err error, now time.Time) error {
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
		s.lastErr = fmt.Errorf("%w; %d starts have failed: the next one is after %s", s.lastErr, maxStarts, after)
	}
	s.retry.failed(now)
	return s.lastErr
}

// disconnect forgets what was made in the session: the engine drops it with the connection, or has already.
func (s *Source) disconnect() {
	s.calls.Add(1)
	if err := s.session.Close(); err != nil {
		level.Debug(s.opts.Logger).Log("msg", "Closing the connection to DCGM failed", "err", err)
	}
	s.session, s.connected, s.boards, s.split, s.leftover, s.looked, s.advised = nil, false, nil, false, nil, backoff{}, nil
	clear(s.units)
	clear(s.devices)
	s.named = [levels]bool{}
}

// Close destroys what was made in the engine and disconnects. Where a call of the engine hangs it is abandoned when ctx
// ends, with gpu.ErrTimeout, and what it holds goes with the process.
func (s *Source) Close(ctx context.Context) error {
	s.closed.Store(true)
	if err := s.leave(ctx); err != nil {
		return fmt.Errorf("close DCGM: %w", err)
	}
	return nil
}

// Release lets go of all GPUs for a change of the MIG mode: an engine in this process holds them open, and does not follow the change
// until it is started again; a running one, which follows, holds what was made in it. Until resume is called, Profile
// returns gpu.ErrUnavailable. An error is as Close's: then nothing is to be resumed.
func (s *Source) Release(ctx context.Context) (resume func(), err error) {
	s.paused.Add(1)
	if err := s.leave(ctx); err != nil {
		s.paused.Add(-1)
		return nil, fmt.Errorf("release DCGM: %w", err)
	}
	return sync.OnceFunc(func() { s.paused.Add(-1) }), nil
}

// leave tears down, unless a call hangs for longer than ctx lasts.
func (s *Source) leave(ctx context.Context) error {
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
		for l, exists := range s.named {
			if exists {
				s.calls.Add(1)
				err = errors.Join(err, s.session.DestroyFieldGroup(s.fields[l]))
			}
		}
	}
	s.disconnect()
	if err != nil && !lost(err) {
		return err
	}
	return nil
}

// backoff spaces attempts: 1 s after the first failure, twice as long after each, up to a minute.
type backoff struct {
	wait time.Duration
	next time.Time
}

func (b *backoff) due(now time.Time) bool { return !now.Before(b.next) }

func (b *backoff) failed(now time.Time) {
	b.wait = min(max(2*b.wait, minBackoff), maxBackoff)
	b.next = now.Add(b.wait)
}
