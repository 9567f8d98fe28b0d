package nvmlsource

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Processes lists what runs on a GPU: compute processes, graphics processes and clients of MPS.
// Under MIG a process names the instances that it runs on; one without instances may run on any. If
// one of the driver's lists cannot be read, it returns an error and no list; but a driver need not
// offer the lists of graphics and MPS.
//
// Outside of the host's PID namespace it returns both a list and an error that wraps
// gpu.ErrPIDNamespace: the listed processes run on the GPU, and others may, too. Their ids are then
// those of our namespace, but the host's with drivers before 535.113.01.
func (a *Actuator) Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error) {
	list, err := runQueued(
		ctx,
		a,
		queueKey{id: id},
		func() ([]gpu.Process, error) { return a.listProcesses(id) },
	)
	if err == nil {
		err = a.source.opts.ProcessesHidden
	}

	if err != nil {
		return list, fmt.Errorf("list the processes of GPU %s: %w", id, err)
	}

	return list, nil
}

// listProcesses asks for the MIG mode only if it matters: without MIG the instances of processes
// mean nothing.
func (a *Actuator) listProcesses(id gpu.UUID) ([]gpu.Process, error) {
	g, err := a.findGPU(id)
	if err != nil {
		return nil, err
	}

	compute, ret := g.handle.GetComputeRunningProcesses()
	computeErr := checkReturn("nvmlDeviceGetComputeRunningProcesses", ret)
	graphics, ret := g.handle.GetGraphicsRunningProcesses()
	graphicsErr := checkReturn("nvmlDeviceGetGraphicsRunningProcesses", ret)
	mps, ret := g.handle.GetMPSComputeRunningProcesses()
	mpsErr := checkReturn("nvmlDeviceGetMPSComputeRunningProcesses", ret)

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
