package nvmlsource

import (
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// processLists is what the driver's lists of a GPU's processes said when they were read last. Each list takes the
// driver's exclusive lock (gpu.CallExclusive), so that they are read with the slow tier, and in between only if what
// runs on the GPU may have changed.
type processLists struct {
	known bool
	list  []gpu.Process   // never modified
	errs  []gpu.ReadError // of the lists of graphics and MPS, which a GPU need not have
	used  []uint64        // the memory in use of the GPU and its GPU instances then
	mps   []nvml.ProcessInfo
	mpsAt time.Time // when the list of MPS clients was read last
}

// mpsEvery is how often the clients of MPS are listed on a GPU that nothing shows to have any.
const mpsEvery = time.Minute

// idleMemory is more than a GPU or an instance without processes has in use, and less than a process that computes
// needs: with idle MIG devices 55 MiB were seen of an H200 as a whole and 22 MiB of the largest of them, and a context
// of CUDA takes hundreds.
const idleMemory = 64 << 20

// processesDue reports whether the lists are to be read, given the memory in use now.
func (r *gpuRead) processesDue(used []uint64) bool {
	lists := &r.state.processes
	if !lists.known || r.slow || r.cues.Asked || r.cues.Changed || len(used) != len(lists.used) {
		return true
	}

	for i := range used {
		moved := used[i] != lists.used[i]
		if moved && r.cues.NoHolders || used[i] > idleMemory != (lists.used[i] > idleMemory) {
			return true
		}
	}

	return false
}

// memoryInUse returns the memory in use of the GPU and of its instances; 0 where it is unknown.
func (r *gpuRead) memoryInUse(instances []gpu.GPUInstance) []uint64 {
	used := make([]uint64, 0, 1+len(instances))
	used = append(used, r.memory.Used.Or(0))
	for i := range instances {
		used = append(used, instances[i].Memory.Used.Or(0))
	}

	return used
}

// remember keeps a complete list until the next one is due.
func (l *processLists) remember(list []gpu.Process, used []uint64, errs []gpu.ReadError) {
	l.known = true
	l.list = slices.Clone(list)
	l.used = used
	l.errs = slices.Clone(errs)
	markRemembered(l.errs)
}

// queryMPS lists the clients of MPS if that is due: once a minute, and where MPS is in use.
func (r *gpuRead) queryMPS(q *querier) []nvml.ProcessInfo {
	lists := &r.state.processes
	since := r.now.Sub(lists.mpsAt)
	recent := !lists.mpsAt.IsZero() && since >= 0 && since < mpsEvery
	if recent && !r.cues.MPS && len(lists.mps) == 0 {
		return nil
	}

	mps, err := query(q, "nvmlDeviceGetMPSComputeRunningProcesses", gpu.ReadingProcesses,
		r.dev.GetMPSComputeRunningProcesses)
	lists.mps = mps
	if err == nil {
		lists.mpsAt = r.now
	}

	return mps
}

// queryGraphics lists the processes that draw. Under MIG none can, except on models whose instances have graphics.
func (r *gpuRead) queryGraphics(q *querier) []nvml.ProcessInfo {
	if r.state.mode.enabled.Or(false) && !slices.ContainsFunc(r.state.static.profiles, func(p profileEntry) bool {
		return strings.Contains(p.Name, "+gfx")
	}) {
		return nil
	}

	graphics, _ := query(q, "nvmlDeviceGetGraphicsRunningProcesses", gpu.ReadingProcesses,
		r.dev.GetGraphicsRunningProcesses)

	return graphics
}
