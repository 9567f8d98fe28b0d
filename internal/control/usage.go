package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// holdKey names the GPU instance, or the compute instance in it, that a hold is on, by the driver's
// current ids. It is no gpu.DeviceID: we read usage anew from the driver, which knows no
// generations, and must find a hold whatever generation the last Snapshot has.
type holdKey struct {
	gpu      gpu.UUID
	instance gpu.InstanceID
	compute  gpu.Opt[gpu.ComputeID] // absent: the GPU instance
}

// usage is the current layout of the node and the holds on its GPUs and instances. A hold on a GPU
// instance as a whole is not repeated at its compute instances.
type usage struct {
	gpus       []mig.GPULayout
	unreadable map[gpu.UUID]error // GPUs that could not be read, and why
	holds      map[holdKey][]api.Hold
	whole      map[gpu.UUID][]api.Hold // on GPUs as a whole: these block a change of the MIG mode
	pods       gpu.Assignments         // the known assignments of devices to containers
	marks      map[gpu.UUID]mark       // from before the reading, or newer; nil from readUsage
	warnings   []string
}

// readLayouts reads the layouts of all GPUs, or only of those named.
func (e *Engine) readLayouts(
	ctx context.Context,
	only ...gpu.UUID,
) ([]mig.GPULayout, map[gpu.UUID]error, error) {
	ctx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	gpus, unreadable, err := e.o.Actuator.Layouts(ctx, only...)
	for n := range gpus {
		fillPlacements(gpus[n].Instances)
	}

	return gpus, unreadable, err
}

// readGPU reads the layout of one GPU.
func (e *Engine) readGPU(ctx context.Context, id gpu.UUID) (mig.GPULayout, error) {
	gpus, unreadable, err := e.readLayouts(ctx, id)
	if err != nil {
		return mig.GPULayout{}, err
	}

	return findGPU(gpus, unreadable, id)
}

// fillPlacements gives each compute instance whose placement the driver does not report the one
// that we assume, so that all code compares the same placements.
func fillPlacements(instances []mig.Instance) {
	for n := range instances {
		instances[n].FillComputePlacements()
	}
}

// readUsage reads the layouts of all GPUs, or only of those named, and collects what holds their
// instances.
func (e *Engine) readUsage(ctx context.Context, only ...gpu.UUID) (*usage, error) {
	gpus, unreadable, err := e.readLayouts(ctx, only...)
	if err != nil {
		return nil, err
	}

	u := e.collectHolders(ctx, gpus)
	u.unreadable = unreadable

	return u, nil
}

// collectHolders reads which processes, open files and pods hold the instances of GPUs. A check
// that fails counts as a hold.
func (e *Engine) collectHolders(ctx context.Context, gpus []mig.GPULayout) *usage {
	u := &usage{gpus: gpus, holds: map[holdKey][]api.Hold{}, whole: map[gpu.UUID][]api.Hold{}}
	for _, g := range gpus {
		filesKnown := e.addHandles(ctx, u, g)
		e.addProcesses(ctx, u, g, filesKnown)
	}

	e.addPods(ctx, u, gpus)

	return u
}

// collectUsage reads the layouts of GPUs, as readNode does, and collects what holds their
// instances, including the activity and batch jobs of the last poll.
func (e *Engine) collectUsage(
	ctx context.Context,
	needed func(gpu.Facts) bool,
	only ...gpu.UUID,
) (*usage, error) {
	marks := e.marks()

	gpus, unreadable, err := e.readNode(ctx, needed, only...)
	if err != nil {
		return nil, err
	}

	u := e.collectHolders(ctx, gpus)
	u.unreadable = unreadable
	u.marks = marks
	e.pollSkipped(ctx, gpus)
	e.addLastPolls(u)

	for id, err := range u.unreadable {
		u.warnings = append(
			u.warnings,
			fmt.Sprintf("%s cannot be read and is left out: %v", id, err),
		)
	}

	slices.Sort(u.warnings)

	return u, nil
}

// addToGPU adds a hold to every instance of a GPU, and to the GPU.
func (u *usage) addToGPU(g mig.GPULayout, h api.Hold) {
	u.whole[g.UUID] = append(u.whole[g.UUID], h)
	for _, i := range g.Instances {
		u.addHold(holdKey{gpu: g.UUID, instance: i.ID}, h)
	}
}

func (u *usage) addHold(key holdKey, h api.Hold) {
	if !slices.Contains(u.holds[key], h) {
		u.holds[key] = append(u.holds[key], h)
	}
}

// addToDevice adds a hold to the device of g that ref means. If ref names a compute instance that
// does not exist (any more), its GPU instance gets the hold; if that does not exist either, the
// whole GPU.
func (u *usage) addToDevice(g mig.GPULayout, ref gpu.DeviceRef, h api.Hold) {
	d, match := resolve(g, ref)
	switch {
	case match == gpu.MatchNothing:
	case d.Instance == gpu.Whole:
		u.addToGPU(g, h)
	case d.Compute == gpu.Whole:
		u.addHold(holdKey{gpu: g.UUID, instance: g.Instances[d.Instance].ID}, h)
	default:
		i := g.Instances[d.Instance]
		u.addHold(holdKey{g.UUID, i.ID, gpu.Some(i.ComputeInstances[d.Compute].ID)}, h)
	}
}

// resolve returns the device of g that ref means. If we don't know the minor number of g, any minor
// number may be its own.
func resolve(g mig.GPULayout, ref gpu.DeviceRef) (gpu.DeviceIndex, gpu.Match) {
	if ref.Minor.Present() && !g.Minor.Present() {
		ref.Minor = gpu.None[int]()
		ref.GPU = g.UUID
	}

	return devicesOf(g).Resolve(ref)
}

// processCheck names the check for processes in a hold that says that the check has failed.
const processCheck = "processes"

// addProcesses adds the processes that the driver lists on a GPU. If we don't run in the host's PID
// namespace, the driver may leave out others. Then we rely on the open files: a process that uses
// the GPU has one of its files open, and the driver itself destroys nothing that a process runs on.
// If the files are unknown, the GPU counts as held.
func (e *Engine) addProcesses(ctx context.Context, u *usage, g mig.GPULayout, filesKnown bool) {
	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	list, err := e.o.Actuator.Processes(callCtx, g.UUID)
	hidden := errors.Is(err, gpu.ErrPIDNamespace)

	switch {
	case hidden && filesKnown && len(g.Instances) > 0:
		u.warnings = append(
			u.warnings,
			fmt.Sprintf(
				"the driver does not list all processes on GPU %d: %s; its open files "+
					"were checked instead, and the driver destroys nothing that a process runs on",
				g.Index,
				gpu.ErrPIDNamespace,
			),
		)
	case err != nil && !(hidden && filesKnown):
		u.addToGPU(g, unknownHold(processCheck, err))
	}

	for _, p := range list {
		u.addToDevice(g, gpu.DeviceRef{GPU: g.UUID, Instance: p.Instance, Compute: p.Compute},
			api.Hold{Kind: api.HoldProcess, PID: p.PID, What: fmt.Sprint(p.PID)})
	}
}

// addHandles adds the processes that have files of a GPU open, and reports whether all of them are
// known.
func (e *Engine) addHandles(ctx context.Context, u *usage, g mig.GPULayout) (known bool) {
	if e.o.Handles == nil {
		return false
	}

	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	list, err := e.o.Handles.Open(callCtx, g)
	if err != nil {
		u.addToGPU(g, unknownHold("open files", err))
		return false
	}

	for _, h := range list {
		hold := api.Hold{Kind: api.HoldHandle, PID: h.PID, What: h.Command}
		wholeOfMIG := !h.Instance.Present() && g.MIG.Or(false)

		switch {
		case wholeOfMIG && isMonitor(h.Command):
			u.whole[g.UUID] = append(u.whole[g.UUID], hold)
			u.warnings = append(
				u.warnings,
				fmt.Sprintf(
					"GPU %d is open in %s (process %d), a monitoring program, which holds no instance",
					g.Index,
					h.Command,
					h.PID,
				),
			)
		case wholeOfMIG && hasInstance(list, h.PID):
			u.whole[g.UUID] = append(u.whole[g.UUID], hold)
		default:
			u.addToDevice(
				g,
				gpu.DeviceRef{GPU: g.UUID, Instance: h.Instance, Compute: h.Compute},
				hold,
			)
		}
	}

	return true
}

// hasInstance reports whether a process has files of instances open: then it uses those, not the
// whole GPU.
func hasInstance(list []Handle, pid uint32) bool {
	return slices.ContainsFunc(
		list,
		func(h Handle) bool { return h.PID == pid && h.Instance.Present() },
	)
}

// isMonitor reports whether a program is known to keep every GPU of a node open without computing on
// it. If such programs were holders, no GPU of a cluster could be repartitioned. The kernel cuts the
// names of commands to 15 characters.
func isMonitor(command string) bool {
	for _, name := range []string{
		"nvidia-persistenced",
		"nv-hostengine",
		"dcgm-exporter",
		"nvidia-device-plugin",
		"nvidia-smi",
		"nvidia-fabricmanager",
		"nv-fabricmanager",
		"gpu-feature-discovery",
		"nvidia-mig-manager",
		"nvidia-dra-plugin",
		"gpu-kubelet-plugin",
		"config-manager",
		"mig-exporter",
		"nvtop",
	} {
		if command == name[:min(len(name), 15)] || command == name {
			return true
		}
	}

	return false
}

func unknownHold(check string, err error) api.Hold {
	return api.Hold{Kind: api.HoldUnknown, What: check + ": " + reasonText(err)}
}

// reasonText describes a failure for an answer of the API, without paths of the node.
func reasonText(err error) string {
	if text := refusalText(err); text != "" {
		return text
	}

	for _, known := range []error{gpu.ErrPIDNamespace,
		gpu.ErrNotSupported, gpu.ErrNoPermission, gpu.ErrNotFound, gpu.ErrLost,
		gpu.ErrResetRequired,
		gpu.ErrTimeout, gpu.ErrInUse, gpu.ErrInsufficientResources, gpu.ErrInvalidArgument, gpu.ErrNoDriver,
		gpu.ErrVersionMismatch, gpu.ErrUnavailable} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}

	if errors.Is(err, context.DeadlineExceeded) {
		return gpu.ErrTimeout.Error()
	}

	// The text before ErrDriver is the call, the text after it the driver's answer.
	_, said, ok := strings.Cut(err.Error(), gpu.ErrDriver.Error())
	if ok && errors.Is(err, gpu.ErrDriver) {
		return gpu.ErrDriver.Error() + said
	}

	return "it failed"
}
