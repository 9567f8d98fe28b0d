package nvmlsource

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// layoutRead is what a reading found of a GPU's instances.
type layoutRead struct {
	instances  []gpu.GPUInstance      // copies, which belong to the result of the reading
	detailErrs keptErrors             // of the tree's details
	scanErr    error                  // why the last scan failed; the instances are then an earlier scan's
	vanished   bool                   // an instance has vanished: the layout has changed since the scan
	processes  gpu.Opt[[]gpu.Process] // of the whole GPU
	processErr gpu.ReadError          // why processes is absent; zero if it is not
}

// readInstances reads the instances of the tree, and the processes of the whole GPU. If an instance
// has vanished, the layout has changed since the scan, and it first reads the tree again. The
// errors that it returns include those of reading the tree.
func (r *gpuRead) readInstances(
	tree treeRead,
	treeErrs []gpu.ReadError,
) (layoutRead, []gpu.ReadError) {
	var denials []gpu.ReadError // of attempts that are repeated

	for {
		layout, errs := r.readInstancesOnce(tree.err)
		errs = slices.Concat(treeErrs, errs)

		if !layout.vanished || !r.mayRescan(tree) {
			errs = append(errs, r.recordProcessError(&layout)...)
			return layout, addNewDenials(errs, denials)
		}

		denials = addNewDenials(denials, errs)
		tree, treeErrs = r.readTree()
	}
}

// recordProcessError records why the list of the GPU's processes is incomplete, and returns that as
// an error of the GPU.
func (r *gpuRead) recordProcessError(layout *layoutRead) []gpu.ReadError {
	failure := layout.processErr
	if failure.Err == nil {
		return nil
	}

	q := r.newQuerier(r.state.answers)
	q.recordError(failure.Reading, failure.Err)

	if failure.Remembered {
		markRemembered(q.errs)
	}

	return q.errs
}

// readInstancesOnce reads the instances, unless the scan of the tree has failed, and the processes.
// The errors of an instance are in that instance.
func (r *gpuRead) readInstancesOnce(scanErr error) (layoutRead, []gpu.ReadError) {
	t := &r.state.tree
	q := r.newQuerier(r.state.answers)
	layout := layoutRead{scanErr: scanErr, detailErrs: t.errs}

	if scanErr != nil {
		layout.instances = t.unreadableInstances(scanErr)
	} else {
		layout.instances, layout.vanished = r.readMemories()
	}

	used := r.memoryInUse(layout.instances)
	if r.processesDue(used) {
		r.state.meter.countFor(r.slow)
		gone := r.readProcessLists(used, scanErr == nil)
		r.state.meter.countFor(false)
		layout.vanished = layout.vanished || gone
	}

	lists := &r.state.processes
	errs := lists.errs.report()
	layout.processErr = reportKept(&lists.failure)

	if scanErr == nil {
		t.addOwnLists(layout.instances)
	}

	if lists.failure.Err == nil {
		if scanErr == nil {
			countProcesses(layout.instances, lists.list)
		}

		layout.processes = gpu.Some(r.addProcessUse(&q, lists.list))
	}

	layout.vanished = layout.vanished || r.wasOvertaken()

	return layout, slices.Concat(errs, q.errs)
}

// unreadableInstances returns the instances of a tree, none of which can be read.
func (t *tree) unreadableInstances(err error) []gpu.GPUInstance {
	list := t.cloneInstances()
	for i := range list {
		gi := &list[i]
		gi.Up = false
		// Remembered: the error was counted once already, for the GPU.
		gi.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: err, Remembered: true}}

		for j := range gi.ComputeInstances {
			gi.ComputeInstances[j].Up = false
			gi.ComputeInstances[j].Errors = gi.Errors
		}
	}

	return list
}

// readMemories returns copies of the tree's instances, with the memory of each GPU instance, and
// reports whether one has vanished. Any MIG device of a GPU instance reports the memory of the
// whole GPU instance; we ask the first.
func (r *gpuRead) readMemories() (instances []gpu.GPUInstance, vanished bool) {
	t := &r.state.tree

	instances = t.cloneInstances()
	for i := range instances {
		gi := &instances[i]
		state := &t.states[i]

		if len(gi.ComputeInstances) == 0 {
			// Without a compute instance no handle reports the memory; we take its size from the
			// profile.
			if p, _ := r.profileOf(gi.ProfileID); p.MemoryBytes > 0 {
				gi.Memory.Total = gpu.Some(p.MemoryBytes)
			}

			continue
		}

		q := r.newQuerier(state.answers)

		m, err := query(
			&q,
			"nvmlDeviceGetMemoryInfo",
			gpu.ReadingMemory,
			t.handleOf(&state.computeStates[0]).GetMemoryInfo,
		)
		if err == nil {
			gi.Memory = memoryOf(m)
		}

		gi.Errors = q.errs
		gi.Up = !isUnreadable(q.errs)
		gone := r.readInstanceECC(gi, state)
		vanished = vanished || q.stale || gone
	}

	return instances, vanished
}

// queryOwnProcesses lists the processes of all compute instances, from the list of each MIG device,
// and reports whether a MIG device has vanished. The list is complete unless there is an error.
func (r *gpuRead) queryOwnProcesses() (list []gpu.Process, vanished bool, err error) {
	t := &r.state.tree
	list = []gpu.Process{}

	for i := range t.states {
		gi := &t.instances[i]
		for j := range t.states[i].computeStates {
			state := &t.states[i].computeStates[j]
			q := r.newQuerier(state.answers)
			infos, failed := query(&q, "nvmlDeviceGetComputeRunningProcesses", gpu.ReadingProcesses,
				t.handleOf(state).GetComputeRunningProcesses)
			state.own = ownList{asked: true, errs: q.errs}

			if failed != nil {
				err = failed
			} else {
				state.own.count = gpu.Some(len(infos))
			}

			for _, info := range infos {
				p := processOf(info)
				p.Instance = gpu.Some(gi.ID)
				p.Compute = gpu.Some(gi.ComputeInstances[j].ID)
				list = append(list, p)
			}

			vanished = vanished || q.stale
		}
	}

	sortProcesses(list)

	return list, vanished, err
}

// addOwnLists adds to the compute instances what their own lists of processes said, if those were
// read.
func (t *tree) addOwnLists(instances []gpu.GPUInstance) {
	for i := range instances {
		for j := range instances[i].ComputeInstances {
			ci := &instances[i].ComputeInstances[j]

			own := &t.states[i].computeStates[j].own
			if !own.asked {
				continue
			}

			ci.Processes = own.count
			ci.Up = !isUnreadable(own.errs)
			ci.Errors = own.errs.report()
		}
	}
}

// isUnreadable reports whether an entity could not be read for another reason than a lack of
// rights.
func isUnreadable(errs []gpu.ReadError) bool {
	return slices.ContainsFunc(
		errs,
		func(e gpu.ReadError) bool { return !errors.Is(e.Err, gpu.ErrNoPermission) },
	)
}
