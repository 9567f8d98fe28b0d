package nvmlsource

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Processes lists what runs on a GPU: compute processes, graphics processes and clients of MPS. In
// MIG mode each has its instances; one without them may be on any. If one of the lists cannot be
// read, there is an error and no list; only those of graphics and MPS need not be offered.
//
// Outside of the host's PID namespace there is a list and an error, which wraps
// gpu.ErrPIDNamespace: what is listed runs on the GPU, and others may. Their ids are not the host's
// then, with drivers before 535.113.01 they are.
func (a *Actuator) Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error) {
	list, err := runQueued(
		ctx,
		a,
		queueKey{id: id},
		func() ([]gpu.Process, error) { return a.processes(id) },
	)
	if err == nil {
		err = a.source.opts.ProcessesHidden
	}

	if err != nil {
		return list, fmt.Errorf("list the processes of GPU %s: %w", id, err)
	}

	return list, nil
}

// processes asks for the MIG mode only if it matters: without MIG the instances of processes mean
// nothing.
func (a *Actuator) processes(id gpu.UUID) ([]gpu.Process, error) {
	g, err := a.stateOf(id)
	if err != nil {
		return nil, err
	}

	compute, ret := g.handle.GetComputeRunningProcesses()
	computeErr := a.source.checkReturn("nvmlDeviceGetComputeRunningProcesses", ret)
	graphics, ret := g.handle.GetGraphicsRunningProcesses()
	graphicsErr := a.source.checkReturn("nvmlDeviceGetGraphicsRunningProcesses", ret)
	mps, ret := g.handle.GetMPSComputeRunningProcesses()
	mpsErr := a.source.checkReturn("nvmlDeviceGetMPSComputeRunningProcesses", ret)

	err = errors.Join(computeErr, unlessNotOffered(graphicsErr), unlessNotOffered(mpsErr))
	if err != nil {
		return nil, err
	}

	list := mergeProcesses(compute, graphics, mps)
	inInstance := func(p gpu.Process) bool { return p.Instance.Present() || p.Compute.Present() }

	if slices.ContainsFunc(list, inInstance) {
		mode, err := a.readModeOf(g)
		if err != nil {
			return nil, err
		}

		if !mode.enabled.Or(false) {
			clearInstances(list)
		}
	}

	return list, nil
}

// unlessNotOffered returns the error unless it says that the driver does not offer a list of
// processes. A GPU on which no graphics can run has none to list, and drivers that do not list
// clients of MPS have its server among the compute processes.
func unlessNotOffered(err error) error {
	if errors.Is(err, gpu.ErrNotSupported) {
		return nil
	}

	return err
}
