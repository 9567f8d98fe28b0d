package nvmlsource

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Actuator reads and changes GPUs for partition control. It calls the driver of its Source, but
// keeps no handles: every method looks up again what it needs. A method returns gpu.ErrTimeout when
// its context ends; we abandon the driver call that hangs, and change nothing further when it
// returns. Until then, calls of the same kind for the same GPU fail at once with gpu.ErrTimeout:
// two changes of one GPU never run at the same time.
type Actuator struct {
	source *Source

	mu     sync.Mutex
	queues map[queueKey]*gpuQueue
	hung   int // calls that were given up and have not returned yet
}

// queueKey names a queue. Each GPU has one for changes and one for readings; the zero queueKey is
// the queue of lookups, which concern all GPUs.
type queueKey struct {
	id      gpu.UUID
	changes bool
}

type gpuQueue struct {
	slot chan struct{} // has room for the call under way
	hung bool          // the call under way was given up; guarded by the Actuator's mu
}

// Actuator returns the Actuator of the Source's GPUs.
func (s *Source) Actuator() *Actuator { return s.actuator }

func newActuator(s *Source) *Actuator {
	return &Actuator{source: s, queues: map[queueKey]*gpuQueue{}}
}

// Hung reports whether a call that reads or changes a GPU was given up and has not returned yet.
func (a *Actuator) Hung(id gpu.UUID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	for key, q := range a.queues {
		if key.id == id && q.hung {
			return true
		}
	}

	return false
}

// WatchLayouts makes w the receiver of the layout changes that the driver reports. w first learns
// for which GPUs it does.
func (a *Actuator) WatchLayouts(w mig.LayoutWatcher) { a.source.queue.watchLayouts(w) }

// HungCalls counts the calls that were given up and have not returned yet.
func (a *Actuator) HungCalls() int {
	a.mu.Lock()
	defer a.mu.Unlock()

	return a.hung
}

var errStillHangs = errors.New("an earlier call still hangs in the driver")

// acquire waits for the slot of a queue.
func (a *Actuator) acquire(ctx context.Context, key queueKey) (*gpuQueue, error) {
	a.mu.Lock()

	q := a.queues[key]
	if q == nil {
		q = &gpuQueue{slot: make(chan struct{}, 1)}
		a.queues[key] = q
	}

	hung := q.hung
	a.mu.Unlock()

	if hung {
		return nil, fmt.Errorf("%w: %w", gpu.ErrTimeout, errStillHangs)
	}

	if ctx.Err() != nil {
		return nil, abandonedError(ctx)
	}

	select {
	case q.slot <- struct{}{}:
		return q, nil
	case <-ctx.Done():
		return nil, abandonedError(ctx)
	}
}

// abandonedError returns the error of a call that has not returned when its context ended.
func abandonedError(ctx context.Context) error {
	return fmt.Errorf("%w: the driver has not answered: %w", gpu.ErrTimeout, ctx.Err())
}

// runQueued waits for the slot of the queue and calls do, in a goroutine that it abandons when ctx
// ends. NVML stays loaded until do returns.
func runQueued[T any](
	ctx context.Context,
	a *Actuator,
	key queueKey,
	do func() (T, error),
) (T, error) {
	var none T

	q, err := a.acquire(ctx, key)
	if err != nil {
		return none, err
	}

	use, err := a.source.beginCall()
	if err != nil {
		<-q.slot
		return none, err
	}

	var value T
	done := make(chan struct{})
	go func() {
		defer a.source.endCall(use)
		value, err = do()
		a.mu.Lock()
		defer a.mu.Unlock()

		if q.hung {
			q.hung = false
			a.hung--
		}

		close(done)
		<-q.slot
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

	q.hung = true
	a.hung++

	return none, abandonedError(ctx)
}

// findGPU returns a GPU that answers and has this UUID. It looks up all GPUs again if this one is
// unknown or its handle is lost.
func (a *Actuator) findGPU(id gpu.UUID) (*gpuState, error) {
	g := a.source.stateOf(id)
	if g == nil || !g.isUsable() {
		inventory, err := a.source.rediscover()
		if err != nil {
			return nil, err
		}

		if g, err = a.findAfterLookup(id, g, inventory.Missing); err != nil {
			return nil, err
		}
	}

	uuid, ret := g.handle.GetUUID()
	if err := checkReturn("nvmlDeviceGetUUID", ret); err != nil {
		if losesDevice(err) || errors.Is(err, gpu.ErrInvalidArgument) {
			g.advanceTo(phaseLost)
		}

		return nil, err
	}

	if gpu.UUID(validUTF8(uuid)) != id {
		g.advanceTo(phaseLost)

		return nil, fmt.Errorf(
			"GPU %s: %w: its handle is that of %s",
			id,
			gpu.ErrReplaced,
			validUTF8(uuid),
		)
	}

	return g, nil
}

// findAfterLookup returns a GPU after all were looked up again. before is its state until then, nil
// if it was unknown: at its index we find why the GPU is missing now.
func (a *Actuator) findAfterLookup(
	id gpu.UUID,
	before *gpuState,
	missing []gpu.MissingGPU,
) (*gpuState, error) {
	if g := a.source.stateOf(id); g != nil {
		return g, nil
	}

	for _, m := range missing {
		if before != nil && int(before.index.Load()) == m.Index {
			return nil, m.Err
		}
	}

	if a.source.isReleased(id) {
		return nil, fmt.Errorf("GPU %s: %w", id, gpu.ErrReleased)
	}

	return nil, fmt.Errorf("GPU %s: %w", id, gpu.ErrNotFound)
}

func (s *Source) stateOf(id gpu.UUID) *gpuState {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.gpus[id]
}

// markChanged makes the next Read of a GPU read everything again, after a change.
func (a *Actuator) markChanged(id gpu.UUID) {
	if g := a.source.stateOf(id); g != nil {
		g.markChanged(changeMade)
	}
}
