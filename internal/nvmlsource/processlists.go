package nvmlsource

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// processLists is what the driver's lists of a GPU's processes said when they were read last, or
// that they failed. Each list takes the driver's exclusive lock (gpu.CallExclusive), so that they
// are read with the slow tier, and in between only if what runs on the GPU may have changed.
type processLists struct {
	known   bool          // they were read, in the layout that the GPU has now
	list    []gpu.Process // never modified
	failure gpu.ReadError // why the list is incomplete; zero if it is complete
	errs    keptErrors    // of lists that failed, and whose last answer is used
	used    []gpu.Opt[uint64]

	graphics, mps keptList
}

// keptList is the last answer of one of the lists that a GPU need not have.
type keptList struct {
	infos  []nvml.ProcessInfo
	at     time.Time // when it was answered
	failed bool      // a later try has failed
}

// isRecent reports whether the answer is less old than a limit.
func (l *keptList) isRecent(now time.Time, limit time.Duration) bool {
	since := now.Sub(l.at)

	return !l.at.IsZero() && since >= 0 && since < limit
}

const (
	// mpsEvery is how often the clients of MPS are listed on a GPU that nothing shows to have any.
	mpsEvery = time.Minute
	// leastValid is how long the last answer of a list that fails is used at least.
	leastValid = time.Minute
)

// listValid returns how long the last answer of a list that fails is used: lists are read with the
// slow tier, and one failure must not be the end of it.
func (r *gpuRead) listValid() time.Duration { return max(leastValid, 2*r.slowEvery) }

// idleMemory is more than a GPU or an instance without processes has in use, and less than a
// process that computes needs: with idle MIG devices 55 MiB were seen of an H200 as a whole and 22
// MiB of the largest of them, and a context of CUDA takes hundreds.
const idleMemory = 64 << 20

// processesDue reports whether the lists are to be read, given the memory in use now. Lists that
// have failed are not read again because memory moves: they fail while the driver is ill, which
// more exclusive calls do not cure.
func (r *gpuRead) processesDue(used []gpu.Opt[uint64]) bool {
	lists := &r.state.processes
	if !lists.known || r.rescans > 0 || r.cues.Changed || r.mustReadAnew() ||
		len(used) != len(lists.used) {
		return true
	}

	if lists.failure.Err != nil {
		return false
	}

	if r.cues.FollowMemory && !showsProcesses(used) {
		return true
	}

	for i := range used {
		now, known := used[i].Get()
		before, knewBefore := lists.used[i].Get()

		moved := known != knewBefore || now != before
		if moved &&
			(r.cues.FollowMemory || known != knewBefore || now > idleMemory != (before > idleMemory)) {
			return true
		}
	}

	return false
}

// showsProcesses reports whether a process that starts or ends moves any of the memory in use that
// is known: that of the GPU, or without it that of all its instances.
func showsProcesses(used []gpu.Opt[uint64]) bool {
	isUnknown := func(bytes gpu.Opt[uint64]) bool { return !bytes.Present() }

	return used[0].Present() || len(used) > 1 && !slices.ContainsFunc(used[1:], isUnknown)
}

// memoryInUse returns the memory in use of the GPU, and of its instances in their order. Without a
// compute instance one has no reading of it, and nothing can run there.
func (r *gpuRead) memoryInUse(instances []gpu.GPUInstance) []gpu.Opt[uint64] {
	used := make([]gpu.Opt[uint64], 0, 1+len(instances))
	used = append(used, r.memory.Used)

	for i := range instances {
		bytes := instances[i].Memory.Used
		if instances[i].IsEmpty() {
			bytes = gpu.Some(uint64(0))
		}

		used = append(used, bytes)
	}

	return used
}

// readProcessLists reads the lists, and keeps what they say, also that they fail, until they are
// due again. If the list of the whole GPU cannot be read, the MIG devices' own lists are, unless
// the tree has no handles. It reports whether one of the devices had vanished.
func (r *gpuRead) readProcessLists(used []gpu.Opt[uint64], hasHandles bool) (vanished bool) {
	q := r.newQuerier(r.state.answers)
	list, err := r.queryProcesses(&q)

	for e := range r.state.tree.entities() {
		e.own = ownList{}
	}

	if err != nil && hasHandles && r.hasOwnLists() {
		own, gone, ownErr := r.queryOwnProcesses()
		vanished = gone

		if ownErr == nil {
			list = own
			err = nil
		}
	}

	lists := &r.state.processes
	lists.known = true
	lists.used = used
	lists.list = list
	lists.errs = q.errs
	lists.failure = gpu.ReadError{Reading: gpu.ReadingProcesses, Err: err}

	return vanished
}

// hasOwnLists reports whether the MIG devices' own lists have all processes of the GPU. MIG devices
// that are denied, or that the driver cannot count, may run others.
func (r *gpuRead) hasOwnLists() bool {
	t := &r.state.tree

	return r.source.opts.ProcessesHidden == nil && t.known && !t.hidden &&
		r.state.static.mostMIG.Present()
}

// queryMPS lists the clients of MPS if that is due: once a minute, after a failure, where devices
// are shared, and for callers that need what there is now.
func (r *gpuRead) queryMPS(q *querier) ([]nvml.ProcessInfo, error) {
	kept := &r.state.processes.mps
	if kept.isRecent(r.now, mpsEvery) && !kept.failed && !r.cues.MPS && !r.cues.Asked &&
		len(kept.infos) == 0 {
		return nil, nil
	}

	return r.queryKept(
		q,
		kept,
		"nvmlDeviceGetMPSComputeRunningProcesses",
		r.dev.GetMPSComputeRunningProcesses,
	)
}

// queryGraphics lists the processes that draw. Under MIG none can, except on models whose instances
// have graphics.
func (r *gpuRead) queryGraphics(q *querier) ([]nvml.ProcessInfo, error) {
	if r.state.mode.enabled.Or(false) &&
		!slices.ContainsFunc(r.state.static.profiles, func(p profileEntry) bool {
			return strings.Contains(p.Name, "+gfx")
		}) {
		return nil, nil
	}

	return r.queryKept(q, &r.state.processes.graphics, "nvmlDeviceGetGraphicsRunningProcesses",
		r.dev.GetGraphicsRunningProcesses)
}

// queryKept reads a list that not every GPU has; one that is not supported is empty. If it fails,
// its last answer is used as long as that is valid, with an error of the step. Then the processes
// are unknown, which the error says.
func (r *gpuRead) queryKept(q *querier, kept *keptList, call string,
	list func() ([]nvml.ProcessInfo, nvml.Return)) ([]nvml.ProcessInfo, error) {
	infos := []nvml.ProcessInfo(nil)

	err := q.refusalOf(call)
	if err == nil {
		var ret nvml.Return
		infos, ret = list()
		err = q.classify(call, gpu.ReadingProcesses, ret)
	}

	switch {
	case err == nil, errors.Is(err, gpu.ErrNotSupported):
		*kept = keptList{infos: infos, at: r.now}
		return infos, nil
	case kept.isRecent(r.now, r.listValid()):
		kept.failed = true
		q.recordError(gpu.ReadingProcesses, err)

		return kept.infos, nil
	}

	return nil, err
}
