package control

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// nodeReading is what a reading of all GPUs has returned.
type nodeReading struct {
	gpus       []mig.GPULayout
	unreadable map[gpu.UUID]error
	err        error
}

// readNode reads the layouts of all GPUs, or only of those named: each costs calls that keep all other clients of the
// driver waiting. A GPU that is needed, and was up at the last poll, has the call timeout to answer. It does not wait
// for others for longer than answerTime, so that a GPU that hangs holds up no request about another one: a GPU that is
// silent is unreadable.
func (e *Engine) readNode(ctx context.Context, needed func(gpu.Facts) bool, only ...gpu.UUID) ([]mig.GPULayout,
	map[gpu.UUID]error, error) {
	// The reading is not given up with the request: what is given up counts as hung, for an operation of the GPU too.
	all := make(chan nodeReading, 1)
	go func() {
		var r nodeReading
		r.gpus, r.unreadable, r.err = e.readLayouts(context.WithoutCancel(ctx), only...)
		all <- r
	}()

	timer := time.NewTimer(answerTime / 2)
	defer timer.Stop()
	select {
	case r := <-all:
		return r.gpus, r.unreadable, r.err
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-timer.C:
	}

	if r, ok := e.readAnswering(ctx, needed, only); ok {
		return r.gpus, r.unreadable, r.err
	}
	select {
	case r := <-all:
		return r.gpus, r.unreadable, r.err
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// readAnswering reads GPUs of the last Snapshot once more, all or only those named, those that answer soon. It returns
// false if it is worth to wait for another one: it is needed, and was up at the last poll.
func (e *Engine) readAnswering(ctx context.Context, needed func(gpu.Facts) bool, only []gpu.UUID) (nodeReading,
	bool) {
	s := e.o.Poller.Current()
	if s == nil || len(s.GPUs) == 0 {
		return nodeReading{}, false
	}
	var ids []gpu.UUID
	for n := range s.GPUs {
		if id := s.GPUs[n].UUID; len(only) == 0 || slices.Contains(only, id) {
			ids = append(ids, id)
		}
	}

	ctx, cancel := context.WithTimeout(ctx, answerTime/2)
	defer cancel()
	var r nodeReading
	r.gpus, r.unreadable, r.err = e.readLayouts(ctx, ids...)
	if r.err != nil {
		return nodeReading{}, false
	}

	silent := map[gpu.UUID]error{}
	maps.Copy(silent, r.unreadable)
	for n := range s.GPUs {
		g := &s.GPUs[n]
		if !slices.Contains(ids, g.UUID) || instancesOn(r.gpus, g.UUID) != nil {
			continue
		}
		if g.Up && needed(g.Facts) {
			return nodeReading{}, false
		}
		if silent[g.UUID] == nil {
			silent[g.UUID] = gpu.ErrTimeout
		}
	}
	r.unreadable = silent
	return r, true
}

// isOneOf returns a function that reports whether a GPU is one of those.
func isOneOf(ids ...gpu.UUID) func(gpu.Facts) bool {
	return func(f gpu.Facts) bool { return slices.Contains(ids, f.UUID) }
}
