package nvmlsource

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// gpuRead is one reading of one GPU.
type gpuRead struct {
	querier
	state    *gpuState
	dev      Device
	now      time.Time
	media    bool     // media engines are read
	retryAll bool     // calls that were not supported are tried again
	scan     treeScan // of the GPU's instances
	out      gpu.GPU
}

func newGPURead(s *Source, g *gpuState) *gpuRead {
	now := s.opts.Now()
	retryAll := g.retryUnsupported(now)
	if g.ourChange.Swap(false) {
		g.slowAt = time.Time{}
	}
	since := now.Sub(g.slowAt)
	return &gpuRead{
		querier:  querier{source: s, answers: g.answers, slow: g.slowAt.IsZero() || since < 0 || since >= s.opts.SlowEvery},
		state:    g,
		dev:      g.handle,
		now:      now,
		media:    s.opts.Media != nil && s.opts.Media(),
		retryAll: retryAll,
	}
}

// read reads everything. If the GPU as a whole does not answer in a step, the later steps make no calls.
func (r *gpuRead) read() (gpu.GPU, error) {
	r.readMode()  // first: a change of the mode makes everything else new
	r.readFacts() // the profiles among them are needed to read the tree
	r.takeSamples()
	r.readTree()
	r.readFast()
	r.readSlow()
	r.readInstances() // reads the tree again if an instance has vanished
	r.readActivity()  // from the samples, if the tree has not changed since they were taken
	r.readEvents()
	if r.fatal != nil {
		return gpu.GPU{}, r.fatal
	}
	r.out.Facts = r.state.facts
	r.out.UUID = r.state.uuid
	r.out.Index = int(r.state.index.Load())
	r.out.Up = true
	r.out.Errors = r.errs
	for _, kept := range [][]gpu.ReadError{r.state.static.errs, r.state.slow.errs, r.state.tree.errs} {
		r.out.Errors = append(r.out.Errors, kept...)
		markRemembered(kept)
	}
	return r.out, nil
}

// markRemembered marks errors that are reported again until what failed is read again.
func markRemembered(errs []gpu.ReadError) {
	for i := range errs {
		errs[i].Remembered = true
	}
}

// forgetAnswers clears the cache of refused calls and makes the slow tier due, after a change of what the GPU can
// answer.
func (r *gpuRead) forgetAnswers() {
	r.answers = newAnswers()
	r.state.answers, r.state.slowAt = r.answers, time.Time{}
	r.slow = true
}

// readMode reads the MIG mode. A change makes everything else new: profiles are immutable only within a mode, and the
// minor number may change (nvml.h). The call is made in every reading, also if it was not supported, because all else
// depends on it. A GPU that had a mode keeps it through an answer that it has none.
func (r *gpuRead) readMode() {
	const call = "nvmlDeviceGetMigMode"
	mode := r.state.mode // kept if it cannot be read
	if r.mayQuery(call, gpu.ReadingMIG) {
		current, pending, ret := r.dev.GetMigMode()
		switch {
		case ret == nvml.ERROR_INVALID_ARGUMENT: // the handle is the only one
			r.fatal = r.source.checkReturn(call, ret)
		case r.accept(call, gpu.ReadingMIG, ret):
			mode.enabled = gpu.Some(current == nvml.DEVICE_MIG_ENABLE)
			mode.pending = gpu.Some(pending == nvml.DEVICE_MIG_ENABLE)
		case r.unsupported[call]:
			delete(r.unsupported, call)
			if mode.enabled.Present() {
				r.errs = append(r.errs, gpu.ReadError{Reading: gpu.ReadingMIG, Err: driverError(call, ret)})
			}
		}
	}
	if r.state.known && mode.enabled != r.state.mode.enabled {
		r.forgetAnswers()
		r.state.gpm.asked, r.state.gpm.layoutChanged = false, true
		r.state.static = static{answered: map[string]bool{}}
		r.state.facts = gpu.Facts{}
		r.dropTree()
	}
	r.state.known, r.state.mode = true, mode
	r.out.MIG.Enabled, r.out.MIG.Pending = mode.enabled, mode.pending
}
