package nvmlsource

import (
	"cmp"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// queryProcesses queries the lists of the whole GPU. With MIG that needs privilege; without it each
// MIG device has its own list. An error says why the list is incomplete. It is not added to the
// step's errors.
//
// Outside of the host's PID namespace we do not ask. The driver silently leaves out the processes
// of other namespaces, so neither an empty list nor a count would mean anything, and each list
// takes the driver's exclusive lock. We could not resolve the ids either: they are our namespace's,
// or the host's with drivers before 535.113.01; samples of utilization have the host's ids beside
// the namespace's.
func (r *gpuRead) queryProcesses(q *querier) ([]gpu.Process, error) {
	const call = "nvmlDeviceGetComputeRunningProcesses"

	if err := r.source.opts.ProcessesHidden; err != nil {
		return nil, err
	}

	if err := q.refusalOf(call); err != nil {
		return nil, err
	}

	compute, ret := r.dev.GetComputeRunningProcesses()
	if err := q.classify(call, gpu.ReadingProcesses, ret); err != nil {
		return nil, err
	}

	graphics, err := r.queryGraphics(q)
	if err != nil {
		return nil, err
	}

	mps, err := r.queryMPS(q)
	if err != nil {
		return nil, err
	}

	list := mergeProcesses(compute, graphics, mps)
	if !r.state.mode.enabled.Or(false) {
		clearInstances(list)
	} else if lacksInstances(list) {
		return nil, gpu.ErrNotSupported
	}

	return list, nil
}

// clearInstances removes the instances of processes on a GPU without MIG.
func clearInstances(list []gpu.Process) {
	for i := range list {
		list[i].Instance = gpu.None[gpu.InstanceID]()
		list[i].Compute = gpu.None[gpu.ComputeID]()
	}
}

// lacksInstances reports whether a list has no instances of its processes, as with the first version
// of the call (nvmlProcessInfo_v1_t): then only the MIG devices' own lists have them.
func lacksInstances(list []gpu.Process) bool {
	return len(list) > 0 &&
		!slices.ContainsFunc(list, func(p gpu.Process) bool { return p.Instance.Present() })
}

// mergeProcesses merges lists by process and instance. The lists overlap: a process may both
// compute and draw, and drivers list MPS clients among the compute processes or apart; each list
// has the whole memory of the process.
func mergeProcesses(compute, graphics, mps []nvml.ProcessInfo) []gpu.Process {
	list := make([]gpu.Process, 0, len(compute)+len(graphics)+len(mps))
	for _, info := range compute {
		list = append(list, processOf(info))
	}

	add := func(p gpu.Process) {
		for i := range list {
			if known := &list[i]; known.PID == p.PID && known.Instance == p.Instance && known.Compute == p.Compute {
				known.MPS = known.MPS || p.MPS
				return
			}
		}

		list = append(list, p)
	}
	for _, info := range mps {
		p := processOf(info)
		p.MPS = true
		add(p)
	}

	for _, info := range graphics {
		p := processOf(info)
		p.Graphics = true
		add(p)
	}

	sortProcesses(list)

	return list
}

func sortProcesses(list []gpu.Process) {
	slices.SortStableFunc(list, func(a, b gpu.Process) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Instance.Or(0), b.Instance.Or(0)),
			cmp.Compare(a.Compute.Or(0), b.Compute.Or(0)))
	})
}

// processOf converts one entry. Its memory may not be available (NVML_VALUE_NOT_AVAILABLE).
func processOf(info nvml.ProcessInfo) gpu.Process {
	p := gpu.Process{PID: info.Pid}
	if info.UsedGpuMemory != math.MaxUint64 {
		p.MemoryBytes = gpu.Some(info.UsedGpuMemory)
	}

	if info.GpuInstanceId != NoInstance {
		p.Instance = gpu.Some(gpu.InstanceID(info.GpuInstanceId))
	}

	if info.ComputeInstanceId != NoInstance {
		p.Compute = gpu.Some(gpu.ComputeID(info.ComputeInstanceId))
	}

	return p
}

// countProcesses counts the processes of each instance, as far as the list tells. A process without
// a GPU instance may run on any, so nothing is counted then; one without a compute instance may run
// on any compute instance of its GPU instance.
func countProcesses(instances []gpu.GPUInstance, list []gpu.Process) {
	if slices.ContainsFunc(list, func(p gpu.Process) bool { return !p.Instance.Present() }) {
		return
	}

	for i := range instances {
		gi := &instances[i]
		count := 0
		located := true // each process names its compute instance
		counts := make([]int, len(gi.ComputeInstances))

		for _, p := range list {
			if p.Instance != gpu.Some(gi.ID) {
				continue
			}

			count++

			located = located && p.Compute.Present()
			for c := range gi.ComputeInstances {
				if p.Compute == gpu.Some(gi.ComputeInstances[c].ID) {
					counts[c]++
				}
			}
		}

		gi.Processes = gpu.Some(count)
		if !located && len(counts) == 1 { // they can only run there
			counts[0] = count
			located = true
		}

		for c := range gi.ComputeInstances {
			if located {
				gi.ComputeInstances[c].Processes = gpu.Some(counts[c])
			}
		}
	}
}
