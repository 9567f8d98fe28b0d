package nvmlsrc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Actuator reads and changes GPUs for partition control, through the driver of its Source but by handles of its own: each
// call looks up what it needs anew. Every method gives up when its context ends, with gpu.ErrTimeout; the driver call
// that hangs goes on by itself. No two changes of one GPU are ever under way at once: while one hangs, the next one waits
// for it, and gives up the same way.
type Actuator struct {
	source *Source

	mu    sync.Mutex
	lanes map[gpu.UUID]chan struct{} // of the changes of each GPU: with room for one
	hung  int
}

// Actuator returns the one that changes the Source's GPUs.
func (s *Source) Actuator() *Actuator { return s.actuator }

func newActuator(s *Source) *Actuator {
	return &Actuator{source: s, lanes: map[gpu.UUID]chan struct{}{}}
}

// HungCalls counts the calls that were given up and have not returned yet.
func (a *Actuator) HungCalls() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hung
}

// run does something with the driver in a goroutine that is left behind when ctx ends. Like a Read, it keeps NVML loaded.
func run[T any](ctx context.Context, a *Actuator, what string, do func() (T, error)) (T, error) {
	var none T
	if err := a.source.enter(); err != nil {
		return none, err
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	left := make(chan struct{})
	go func() {
		defer a.source.leave()
		value, err := do()
		done <- outcome{value, err}
		a.mu.Lock()
		defer a.mu.Unlock()
		select {
		case <-left:
			a.hung--
		default:
		}
	}()
	select {
	case o := <-done:
		return o.value, wrap(what, o.err)
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case o := <-done: // it has just returned
		return o.value, wrap(what, o.err)
	default:
	}
	a.hung++
	close(left)
	return none, givenUp(ctx, what)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// givenUp is the error of what has not ended with its context.
func givenUp(ctx context.Context, what string) error {
	return fmt.Errorf("%s: %w: the driver has not answered (%w)", what, gpu.ErrTimeout, context.Cause(ctx))
}

// change is run for what changes a GPU: one at a time.
func change[T any](ctx context.Context, a *Actuator, id gpu.UUID, what string, do func() (T, error)) (T, error) {
	var none T
	a.mu.Lock()
	lane := a.lanes[id]
	if lane == nil {
		lane = make(chan struct{}, 1)
		a.lanes[id] = lane
	}
	a.mu.Unlock()
	if ctx.Err() != nil {
		return none, givenUp(ctx, what)
	}
	select {
	case lane <- struct{}{}:
	case <-ctx.Done():
		return none, fmt.Errorf("%s: %w: an earlier change of the GPU still hangs in the driver", what, gpu.ErrTimeout)
	}
	return run(ctx, a, what, func() (T, error) {
		defer func() { <-lane }()
		return do()
	})
}

// Do does one step and reads back that it is done. A creation gives exactly the placement asked for, or
// gpu.ErrInsufficientResources and nothing. What is to be destroyed is gpu.ErrNotFound where it does not stand any more,
// and gpu.ErrReplaced where something else has its place, its id or its UUID. A destruction after which the instance is
// still there is gpu.ErrDriver.
func (a *Actuator) Do(ctx context.Context, s mig.Step) (mig.Done, error) {
	what := fmt.Sprintf("%s %s at %s of GPU %s", s.Op, s.Profile, s.Placement, s.GPU)
	return change(ctx, a, s.GPU, what, func() (mig.Done, error) {
		var done mig.Done
		var err error
		switch s.Op {
		default:
			err = errors.New("no such step")
		}
		return done, err
	})
}
