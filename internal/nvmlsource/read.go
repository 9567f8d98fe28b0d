package nvmlsource

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// gpuRead is one reading of one GPU: what is due in it, and whether the GPU still answers. Each
// step of the reading returns what it has read, and the errors of what it could not read.
type gpuRead struct {
	source *Source
	state  *gpuState
	dev    Device
	now    time.Time
	slow   bool // the slow tier is due
	// slowEvery is how often the slow tier is due now.
	slowEvery time.Duration
	cues      gpu.ReadCues
	memory    gpu.Memory // of the GPU as a whole, once it was read

	layoutOnly bool // the reading is of the layout alone
	reported   bool // a change of the GPU was reported since the last reading
	hasScanned bool // the tree was scanned in this reading
	retryAll   bool // calls that were not supported are tried again
	// retryDenied is whether calls that were denied are tried again: with a slow tier, once a
	// minute.
	retryDenied bool
	rescans     int   // how often the tree was read again because something of it had vanished
	lost        error // the GPU as a whole does not answer: no further call is made
}

func newGPURead(s *Source, g *gpuState, cues gpu.ReadCues) *gpuRead {
	now := s.opts.Now()
	change := gpuChange(g.change.Swap(int32(unchanged)))
	g.gpm.restart = g.gpm.restart || change != unchanged

	if change == changeMade {
		g.slowAt = time.Time{}
	}

	retryAll := g.retryUnsupported(now, change != unchanged)

	slowEvery := s.opts.SlowEvery
	if cues.SlowEvery > 0 {
		slowEvery = cues.SlowEvery
	}

	since := now.Sub(g.slowAt)
	slow := g.slowAt.IsZero() || since < 0 || since >= slowEvery
	g.meter.beginReading(slow, g.slowAt.IsZero() || retryAll || change != unchanged)

	return &gpuRead{
		source: s,
		state:  g,
		dev:    g.dev,
		now:    now,
		slow:   slow,

		slowEvery: slowEvery,
		cues:      cues,
		reported:  change != unchanged,
		retryAll:  retryAll,

		retryDenied: slow && g.retriesDenied(now),
	}
}

// read reads everything, step by step.
func (r *gpuRead) read() (gpu.GPU, error) {
	defer r.state.meter.endReading()
	mode, modeErrs := r.readMode()           // first: a change of the mode makes everything else new
	facts, factErrs := r.readFacts()         // the profiles among them are needed to read the tree
	sampled, sampleErrs := r.takeSamples()   // before the tree, whose scan confirms the samples
	tree, treeErrs := r.readTree()           // before the tiers: a changed layout makes the slow tier due
	fast, slow := r.readFields(r.readFast()) // the fields of both tiers, by one call
	slow = r.readSlow(slow)
	r.memory = fast.readings.Memory

	// Late, so that it finds what has vanished since the scan.
	layout, layoutErrs := r.readInstances(tree, treeErrs)
	activity, activityErrs := r.readActivity(sampled, &layout)

	if r.lost != nil {
		return gpu.GPU{}, r.lost
	}

	readings := joinTiers(fast.readings, slow.readings)
	readings.Processes = layout.processes
	errs := slices.Concat(
		modeErrs,
		sampleErrs,
		layoutErrs,
		fast.errs,
		activityErrs,
		factErrs.report(),
		slow.errs.report(),
		layout.detailErrs.report(),
	)
	g := gpu.GPU{
		Facts:           facts,
		Device:          gpu.Device{Up: true, Errors: errs, Activity: activity.ratios},
		Readings:        readings,
		MIG:             r.migState(mode),
		Instances:       layout.instances,
		ActivitySource:  activity.source,
		Rates:           activity.rates,
		InvalidActivity: activity.invalid,
	}

	// Last: what was answered above shows whether we have the right to events.
	listed := tree.err == nil && r.state.tree.scan.listed
	r.readEvents(&g, r.concludeDelivery(&g, modeErrs, listed))

	return g, nil
}

// newLayoutRead returns a reading of the layout alone. Changes that were reported of the GPU stay
// reported, for the next reading of everything.
func newLayoutRead(s *Source, g *gpuState) *gpuRead {
	g.meter.beginReading(false, true)
	return &gpuRead{source: s, state: g, dev: g.dev, now: s.opts.Now(), layoutOnly: true}
}

// readLayout reads the MIG mode and the tree. known is false if that is not enough, because the
// mode has changed or the facts of the GPU were never read.
func (r *gpuRead) readLayout() (layout gpu.GPU, known bool, err error) {
	before := r.state.mode.enabled
	mode, errs := r.readMode()

	if r.lost != nil {
		return gpu.GPU{}, false, r.lost
	}

	if mode.enabled != before || !r.state.static.complete {
		return gpu.GPU{}, false, nil
	}

	tree, treeErrs := r.readTree()
	if r.lost != nil {
		return gpu.GPU{}, false, r.lost
	}

	t := &r.state.tree
	instances := t.unreadableInstances(tree.err)

	if tree.err == nil {
		instances = t.cloneInstances()
	}

	// Of the facts, only the profiles belong to the layout.
	factErrs := slices.DeleteFunc(slices.Clone(r.state.static.errs),
		func(e gpu.ReadError) bool { return e.Reading != gpu.ReadingMIG })
	errs = slices.Concat(errs, treeErrs, factErrs, t.errs.report())

	return gpu.GPU{
		Facts:  gpu.Facts{UUID: r.state.uuid},
		Device: gpu.Device{Errors: errs}, MIG: r.migState(mode), Instances: instances,
	}, true, nil
}

// migState returns what the reading has found of MIG, besides the instances.
func (r *gpuRead) migState(mode modeState) gpu.MIGState {
	return gpu.MIGState{
		Enabled:       mode.enabled,
		Pending:       mode.pending,
		DevicesHidden: r.state.tree.hidden,
	}
}

// forgetAnswers clears the cache of unsupported calls and makes the slow tier due, after a change
// of what the GPU can answer. Denied calls are tried again, too; those that are still denied are
// not new errors.
func (r *gpuRead) forgetAnswers() {
	clear(r.state.answers.unsupported)
	r.state.slowAt = time.Time{}
	r.slow = true
	r.state.meter.tier = tierOnce
	r.retryDenied = true
}

// readMode reads the MIG mode. A change makes everything else new: profiles are immutable only
// within a mode, and the minor number may change (nvml.h). Since all else depends on the mode,
// every reading asks for it, even if the driver has answered that it is not supported. A GPU that
// had a mode keeps it after such an answer.
func (r *gpuRead) readMode() (modeState, []gpu.ReadError) {
	const call = "nvmlDeviceGetMigMode"
	q := r.newQuerier(r.state.answers)
	mode := r.state.mode // kept if it cannot be read

	if q.checkRefused(call, gpu.ReadingMIG) != nil {
		return mode, q.errs
	}

	current, pending, ret := r.dev.GetMigMode()
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		// The handle is the only argument: the driver does not know the GPU any more.
		r.lost = checkReturn(call, ret)
		return mode, nil
	}

	if q.recordReturn(call, gpu.ReadingMIG, ret) == nil {
		mode.enabled = gpu.Some(current == nvml.DEVICE_MIG_ENABLE)
		mode.pending = gpu.Some(pending == nvml.DEVICE_MIG_ENABLE)
	} else if q.unsupported[call] {
		delete(q.unsupported, call)

		if mode.enabled.Present() {
			q.errs = append(
				q.errs,
				gpu.ReadError{Reading: gpu.ReadingMIG, Err: driverError(call, ret)},
			)
		}
	}

	if mode.enabled != r.state.mode.enabled {
		r.forgetAnswers()
		r.state.gpm.support = gpmUnknown
		r.state.gpm.restart = true
		r.state.static = newStatic()
		r.state.facts = gpu.Facts{}
		r.state.processes = processLists{}
		r.dropTree()
	}

	r.state.mode = mode

	return mode, q.errs
}
