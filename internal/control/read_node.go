package control

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// nodeReading is what a reading of GPUs has returned.
type nodeReading struct {
	gpus       []mig.GPULayout
	unreadable map[gpu.UUID]error
	err        error
}

// readNode reads the layouts of all GPUs, or only of those named: each costs calls that keep all
// other clients of the driver waiting. A GPU that is named or needed, and was up at the last poll,
// has the call timeout to answer. It does not wait for others for longer than answerTime, so that a
// GPU that hangs holds up no request about another one: a GPU that is silent is unreadable.
func (e *Engine) readNode(
	ctx context.Context,
	needed func(gpu.Facts) bool,
	only ...gpu.UUID,
) ([]mig.GPULayout,
	map[gpu.UUID]error, error) {
	// The reading is not given up with the request: what is given up counts as hung, for an
	// operation of the GPU too.
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

// readAnswering reads GPUs once more, those named or all of the last Snapshot, for a short time. It
// returns false if it is worth to wait for another one: it is named or needed, and was up at the
// last poll.
func (e *Engine) readAnswering(
	ctx context.Context,
	needed func(gpu.Facts) bool,
	only []gpu.UUID,
) (nodeReading,
	bool) {
	s := e.o.Poller.Current()
	if s == nil || len(s.GPUs) == 0 {
		return nodeReading{}, false
	}

	ids := only
	if len(ids) == 0 {
		for n := range s.GPUs {
			ids = append(ids, s.GPUs[n].UUID)
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

	for _, id := range ids {
		if instancesOn(r.gpus, id) != nil {
			continue
		}

		at := slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == id })
		if at < 0 || s.GPUs[at].Up && (len(only) > 0 || needed(s.GPUs[at].Facts)) {
			return nodeReading{}, false
		}

		if silent[id] == nil {
			silent[id] = gpu.ErrTimeout
		}
	}

	r.unreadable = silent

	return r, true
}

// needsNoOther is what a reading needs that names its GPUs: no other one is worth waiting for.
func needsNoOther(gpu.Facts) bool { return false }
