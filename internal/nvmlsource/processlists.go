package nvmlsource

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// processLists is what the driver's lists of a GPU's processes said when we read them last. Each
// list takes the driver's exclusive lock (gpu.CallExclusive), so we read them with the slow tier,
// and in between only if what runs on the GPU may have changed.
type processLists struct {
	known   bool              // they were read, in the present layout
	list    []gpu.Process     // never modified
	failure gpu.ReadError     // why the list is incomplete; zero if it is complete
	errs    keptErrors        // of lists that failed and whose last answer is used
	used    []gpu.Opt[uint64] // memoryInUse when they were read

	graphics, mps keptList
}

// keptList is the last answer of a list that a driver need not offer.
type keptList struct {
	infos  []nvml.ProcessInfo
	at     time.Time // when it was answered
	failed bool      // a later try has failed
}

// isRecent reports whether the answer is younger than a limit.
func (l *keptList) isRecent(now time.Time, limit time.Duration) bool {
	since := now.Sub(l.at)

	return !l.at.IsZero() && since >= 0 && since < limit
}

const (
	// mpsEvery is how often we list clients of MPS on a GPU that shows no sign of any.
	mpsEvery = time.Minute
	// leastValid is for how long we use the last answer of a list that fails, at least.
	leastValid = time.Minute
)

// listValid returns for how long we use the last answer of a list that fails: long enough for one
// failure between two readings of the slow tier.
func (r *gpuRead) listValid() time.Duration { return max(leastValid, 2*r.slowEvery) }

// idleMemory is more than a GPU or an instance without processes has in use, and less than a
// process that computes needs. On an H200 with idle MIG devices we saw 55 MiB in use on the whole
// GPU, and 22 MiB on its largest instance; a CUDA context takes hundreds.
const idleMemory = 64 << 20

// processesDue reports whether the lists are to be read, given the memory in use now. Lists that
// have failed are not read again because memory changes: they fail while the driver is ill, which
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

		crossed := now > idleMemory != (before > idleMemory)
		if known != knewBefore || crossed || r.cues.FollowMemory && now != before {
			return true
		}
	}

	return false
}

// showsProcesses reports whether the known memory in use changes whenever a process starts or ends:
// the GPU's is known, or else that of all instances.
func showsProcesses(used []gpu.Opt[uint64]) bool {
	isUnknown := func(bytes gpu.Opt[uint64]) bool { return !bytes.Present() }

	return used[0].Present() || len(used) > 1 && !slices.ContainsFunc(used[1:], isUnknown)
}

// memoryInUse returns the memory in use of the GPU, then of its instances in their order. An
// instance without compute instances has no such reading, but nothing can run there.
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

// readProcessLists reads the lists, and keeps what they say, or why they failed, until they are due
// again. If the list of the whole GPU cannot be read, it reads the MIG devices' own lists, unless
// hasHandles says that the tree has no handles. It reports whether one of the devices has vanished.
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
		r.state.static.maxDevices.Present()
}

// queryMPS lists the clients of MPS if that is due: once a minute, after a failure, while there are
// any, if the GPU's devices are shared, and for callers that need what there is now.
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

// queryKept reads a list that a driver need not offer; if it does not, the list is empty. If the
// call fails, it returns the last answer as long as that is valid, and adds the error to the step's
// errors; after that it returns the error, and the processes are unknown.
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
