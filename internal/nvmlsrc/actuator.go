package nvmlsrc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Actuator reads and changes GPUs for partition control, through the driver of its Source but by handles of its own: every
// call looks up anew what it needs. Each method gives up when its context ends, with gpu.ErrTimeout; the driver call that
// hangs goes on by itself, and nothing further is changed when it returns. While it hangs, calls of the same kind for the
// same GPU are refused at once with gpu.ErrTimeout: no two changes of one GPU are ever under way.
type Actuator struct {
	source *Source

	mu    sync.Mutex
	lanes map[laneKey]*lane
	hung  int
}

// laneKey names what is done one by one: the changes of a GPU, its readings, and the lookup of all GPUs (no id).
type laneKey struct {
	id      gpu.UUID
	changes bool
}

type lane struct {
	turn chan struct{} // room for the one under way
	hung bool          // which was given up; of the Actuator's mu
}

// Actuator returns the one that changes the Source's GPUs.
func (s *Source) Actuator() *Actuator { return s.actuator }

func newActuator(s *Source) *Actuator { return &Actuator{source: s, lanes: map[laneKey]*lane{}} }

// Hung reports whether a call that reads or changes a GPU was given up and has not returned yet.
func (a *Actuator) Hung(id gpu.UUID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, l := range a.lanes {
		if key.id == id && l.hung {
			return true
		}
	}
	return false
}

// HungCalls counts the calls that were given up and have not returned yet.
func (a *Actuator) HungCalls() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hung
}

var errStillHangs = errors.New("an earlier call still hangs in the driver")

// wait waits for the turn in a lane.
func (a *Actuator) wait(ctx context.Context, key laneKey) (*lane, error) {
	a.mu.Lock()
	l := a.lanes[key]
	if l == nil {
		l = &lane{turn: make(chan struct{}, 1)}
		a.lanes[key] = l
	}
	hung := l.hung
	a.mu.Unlock()
	if hung {
		return nil, fmt.Errorf("%w: %w", gpu.ErrTimeout, errStillHangs)
	}
	if ctx.Err() != nil {
		return nil, givenUp(ctx)
	}
	select {
	case l.turn <- struct{}{}:
		return l, nil
	case <-ctx.Done():
		return nil, givenUp(ctx)
	}
}

// givenUp is the error of what has not ended with its context.
func givenUp(ctx context.Context) error {
	return fmt.Errorf("%w: the driver has not answered: %w", gpu.ErrTimeout, ctx.Err())
}

// run does something with the driver when it is its turn, in a goroutine that is left behind when ctx ends. Like a Read it
// keeps NVML loaded.
func run[T any](ctx context.Context, a *Actuator, key laneKey, do func() (T, error)) (T, error) {
	var none T
	l, err := a.wait(ctx, key)
	if err != nil {
		return none, err
	}
	if err := a.source.enter(); err != nil {
		<-l.turn
		return none, err
	}
	var value T
	done := make(chan struct{})
	go func() {
		defer a.source.leave()
		value, err = do()
		a.mu.Lock()
		defer a.mu.Unlock()
		if l.hung {
			l.hung = false
			a.hung--
		}
		close(done)
		<-l.turn
	}()
	select {
	case <-done:
		return value, err
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-done: // it has just returned
		return value, err
	default:
	}
	l.hung = true
	a.hung++
	return none, givenUp(ctx)
}

// board finds a GPU that answers by its UUID. It looks up the GPUs if this one is not known, or its handle is lost.
func (a *Actuator) board(id gpu.UUID) (*board, error) {
	b := a.source.boardOf(id)
	if b == nil || b.lost.Load() {
		inventory, err := a.source.Discover()
		if err != nil {
			return nil, err
		}
		if b, err = a.found(id, b, inventory.Missing); err != nil {
			return nil, err
		}
	}
	uuid, ret := b.handle.GetUUID()
	if err := a.source.check("nvmlDeviceGetUUID", ret); err != nil {
		if losesDevice(err) || errors.Is(err, gpu.ErrInvalidArgument) {
			b.lost.Store(true)
		}
		return nil, err
	}
	if gpu.UUID(text(uuid)) != id {
		b.lost.Store(true)
		return nil, fmt.Errorf("GPU %s: %w: its handle is that of %s", id, gpu.ErrReplaced, text(uuid))
	}
	return b, nil
}

// found returns a GPU after a lookup. The error of one that was known before is why it is missing now.
func (a *Actuator) found(id gpu.UUID, before *board, missing []gpu.MissingGPU) (*board, error) {
	if b := a.source.boardOf(id); b != nil {
		return b, nil
	}
	for _, m := range missing {
		if before != nil && int(before.index.Load()) == m.Index {
			return nil, m.Err
		}
	}
	return nil, fmt.Errorf("GPU %s: %w", id, gpu.ErrNotFound)
}

func (s *Source) boardOf(id gpu.UUID) *board {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boards[id]
}

// touch makes the next Read of a GPU ask everything anew, after a change.
func (a *Actuator) touch(id gpu.UUID) {
	if b := a.source.boardOf(id); b != nil {
		b.recut.Store(true)
		b.touched.Store(true)
	}
}
