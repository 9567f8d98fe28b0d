package control

import (
	"context"
	"slices"
	"strings"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// namedDevice is a device that an operator names: a GPU, a GPU instance or a compute instance.
type namedDevice struct {
	g  mig.GPULayout   // its GPU
	at gpu.DeviceIndex // its indices in g
}

// ConfirmFree records that an operator confirmed that no container holds a device: a GPU
// ("GPU-<uuid>"), a GPU instance ("GPU-<uuid>/<GPU instance>") or a MIG device ("MIG-<uuid>"). It
// changes no GPU, and so is allowed in plan mode. It refuses if the kubelet lists a container for
// the device, or if a process uses it.
func (e *Engine) ConfirmFree(
	ctx context.Context,
	by Actor,
	device string,
) (*api.Confirmation, error) {
	if !by.Rights.Force {
		return nil, problemf(
			api.Forbidden,
			"%s may not confirm that a device is free (right force)",
			by.Name,
		)
	}

	u, err := e.readUsage(ctx)
	if err != nil {
		return nil, driverProblem(err)
	}

	d, ok := u.findDevice(device)
	if !ok {
		return nil, problemf(
			api.NotFound,
			"no GPU, GPU instance or MIG device %.128q can be read on this node",
			device,
		)
	}

	unconfirmed, p := u.listUnconfirmed(d)
	if p != nil {
		return nil, p
	}

	answer := &api.Confirmation{
		APIVersion: api.Version,
		Device:     d.name(),
		Confirmed:  []api.UnconfirmedHolder{},
		Note:       "there was nothing to confirm: everything that holds a device is known",
	}
	if len(unconfirmed) == 0 && u.pods.Incomplete == "" {
		return answer, nil
	}

	var free []gpu.DeviceRef
	if u.pods.Incomplete != "" {
		free = d.refs(u.pods.Free)
	}

	if !e.o.Assignments.ConfirmFree(u.pods.Epoch, free, unconfirmed) {
		return nil, problemf(
			api.Unavailable,
			"the kubelet has restarted meanwhile: look again, and confirm again",
		)
	}

	for _, a := range unconfirmed {
		h := api.UnconfirmedHolder{
			Namespace: a.Holder.Namespace,
			Pod:       a.Holder.Pod,
			Container: a.Holder.Name,
			Reason:    a.Holder.Unconfirmed,
		}
		if !slices.Contains(answer.Confirmed, h) {
			answer.Confirmed = append(answer.Confirmed, h)
		}
	}

	pods := make([]string, 0, len(answer.Confirmed))
	for _, h := range answer.Confirmed {
		pods = append(
			pods,
			containerName(gpu.Container{Namespace: h.Namespace, Pod: h.Pod, Name: h.Container}),
		)
	}

	level.Info(e.o.Logger).Log(
		"msg", "operator confirmed that a device is free",
		"device", answer.Device,
		"operator", by.Name,
		"pods", strings.Join(pods, ", "),
	)
	// 10 minutes: see freeFor in podresources.
	answer.Note = "this counts for 10 minutes, and no longer than until the kubelet or mig-exporter restarts"

	return answer, nil
}

// findDevice finds a device by its name.
func (u *usage) findDevice(device string) (namedDevice, bool) {
	ref, err := gpu.ParseMIGRef(device)
	if err != nil {
		ref = gpu.DeviceRef{MIG: gpu.MIGUUID(device)}
	}

	for _, g := range u.gpus {
		if device == string(g.UUID) {
			return namedDevice{g, gpu.DeviceIndex{Instance: gpu.Whole, Compute: gpu.Whole}}, true
		}

		for n, i := range g.Instances {
			if device == gpuInstanceName(g.UUID, i.ID) {
				return namedDevice{g, gpu.DeviceIndex{Instance: n, Compute: gpu.Whole}}, true
			}
		}

		if at, match := devicesOf(g).Resolve(ref); match == gpu.MatchDevice {
			return namedDevice{g, at}, true
		}
	}

	return namedDevice{}, false
}

// listUnconfirmed returns the unconfirmed assignments that may hold a device or a part of it. It
// returns a problem if something certainly uses the device, or if such an assignment may hold more
// than the device.
func (u *usage) listUnconfirmed(d namedDevice) ([]gpu.Assignment, *api.Problem) {
	if users := u.holdsOn(d); len(users) > 0 {
		return nil, d.refusal(users, "it is in use")
	}

	var within []gpu.Assignment

	for _, a := range u.pods.List {
		if a.Holder.Unconfirmed == "" {
			continue
		}

		at, match := resolve(d.g, a.Device)
		switch {
		case match == gpu.MatchNothing || !d.overlaps(at): // it is for another device
		case a.Device.Minor.Present() && !d.g.Minor.Present():
			return nil, d.refusal([]api.Hold{podHold(a.Holder)},
				"it may hold another GPU as well, since the minor number of this one is not known")
		case !d.contains(at):
			return nil, d.refusal(
				[]api.Hold{podHold(a.Holder)},
				"it may hold more than that: confirm "+namedDevice{d.g, at}.name(),
			)
		default:
			within = append(within, a)
		}
	}

	return within, nil
}

// refusal returns the problem that says why an operator cannot confirm that a device is free.
func (d namedDevice) refusal(holders []api.Hold, why string) *api.Problem {
	p := problemf(
		api.Busy,
		"%s cannot be confirmed to be free: %s: %s",
		d.name(),
		holdsText(holders),
		why,
	)

	b := api.Blocker{GPU: d.g.UUID, Instance: d.name(), Holders: holders}
	if d.at.Instance != gpu.Whole {
		i := d.g.Instances[d.at.Instance]
		b.Profile = i.Profile
		b.Placement = i.Placement
	}

	p.Blocking = []api.Blocker{b}

	return p
}

// holdsOn returns who certainly uses a device: the containers that the kubelet lists for it, and the
// processes that run on it or have it open, except monitoring programs.
func (u *usage) holdsOn(d namedDevice) []api.Hold {
	var all []api.Hold
	if d.at.Instance == gpu.Whole {
		all = slices.Clone(u.whole[d.g.UUID])
	}

	for n, i := range d.g.Instances {
		if !d.overlaps(gpu.DeviceIndex{Instance: n, Compute: gpu.Whole}) {
			continue
		}

		all = append(all, u.holds[holdKey{gpu: d.g.UUID, instance: i.ID}]...)
		for k, ci := range i.ComputeInstances {
			if d.overlaps(gpu.DeviceIndex{Instance: n, Compute: k}) {
				all = append(all, u.holds[holdKey{d.g.UUID, i.ID, gpu.Some(ci.ID)}]...)
			}
		}
	}

	var users []api.Hold

	for _, h := range all {
		uses := h.Kind == api.HoldPod || h.Kind == api.HoldProcess ||
			h.Kind == api.HoldHandle && !isMonitor(h.What)
		if uses && !slices.Contains(users, h) {
			users = append(users, h)
		}
	}

	return users
}

// overlaps reports whether a device of the GPU shares anything with d.
func (d namedDevice) overlaps(at gpu.DeviceIndex) bool {
	same := func(a, b int) bool { return a == gpu.Whole || b == gpu.Whole || a == b }
	return same(d.at.Instance, at.Instance) && same(d.at.Compute, at.Compute)
}

// contains reports whether a device of the GPU is d or a part of it. If a GPU instance has only one
// compute instance, both count as the same device.
func (d namedDevice) contains(at gpu.DeviceIndex) bool {
	switch {
	case d.at.Instance == gpu.Whole:
		return true
	case d.at.Instance != at.Instance:
		return false
	default:
		return d.at.Compute == gpu.Whole || d.at.Compute == at.Compute ||
			len(d.g.Instances[at.Instance].ComputeInstances) == 1
	}
}

// refs returns references to what a confirmation of d confirms to be free: the GPU, or each compute
// instance in d. free are the devices confirmed before. If d and free together cover all compute
// instances of the GPU instance, refs adds the GPU instance by its placement: that confirmation
// still counts after the compute instances were destroyed.
func (d namedDevice) refs(free []gpu.DeviceRef) []gpu.DeviceRef {
	if d.at.Instance == gpu.Whole {
		return []gpu.DeviceRef{{GPU: d.g.UUID}}
	}

	i := d.g.Instances[d.at.Instance]
	covered := coveredBy(d.g, free)
	var refs []gpu.DeviceRef
	allFree := true

	for k, ci := range i.ComputeInstances {
		switch at := (gpu.DeviceIndex{Instance: d.at.Instance, Compute: k}); {
		case !d.overlaps(at):
			allFree = allFree && covered[at]
		case ci.UUID != "":
			refs = append(refs, gpu.DeviceRef{MIG: ci.UUID})
		default:
			refs = append(
				refs,
				gpu.DeviceRef{GPU: d.g.UUID, Instance: gpu.Some(i.ID), Compute: gpu.Some(ci.ID)},
			)
		}
	}

	if allFree {
		refs = append(
			refs,
			gpu.DeviceRef{GPU: d.g.UUID, PlacementStart: gpu.Some(i.Placement.Start),
				ProfileID: gpu.Some(i.ProfileID)},
		)
	}

	return refs
}

// name returns the device's name in requests, as ConfirmFree takes it.
func (d namedDevice) name() string {
	switch {
	case d.at.Instance == gpu.Whole:
		return string(d.g.UUID)
	case d.at.Compute == gpu.Whole:
		return gpuInstanceName(d.g.UUID, d.g.Instances[d.at.Instance].ID)
	default:
		return string(d.g.Instances[d.at.Instance].ComputeInstances[d.at.Compute].UUID)
	}
}
