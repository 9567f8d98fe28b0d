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

// namedDevice is a device that an operator names: a GPU, a GPU instance or a compute instance. at
// has its indices in g.
type namedDevice struct {
	g  mig.GPULayout
	at gpu.DeviceIndex
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

	t, ok := u.findDevice(device)
	if !ok {
		return nil, problemf(
			api.NotFound,
			"no GPU, GPU instance or MIG device %.128q can be read on this node",
			device,
		)
	}

	unconfirmed, p := u.unconfirmedAssignments(t)
	if p != nil {
		return nil, p
	}

	done := &api.Confirmation{
		APIVersion: api.Version,
		Device:     t.name(),
		Confirmed:  []api.UnconfirmedHolder{},
		Note:       "there was nothing to confirm: everything that holds a device is known",
	}
	if len(unconfirmed) == 0 && u.pods.Incomplete == "" {
		return done, nil
	}

	var free []gpu.DeviceRef
	if u.pods.Incomplete != "" {
		free = t.refs(u.pods.Free)
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
		if !slices.Contains(done.Confirmed, h) {
			done.Confirmed = append(done.Confirmed, h)
		}
	}

	pods := make([]string, 0, len(done.Confirmed))
	for _, h := range done.Confirmed {
		pods = append(
			pods,
			containerName(gpu.Container{Namespace: h.Namespace, Pod: h.Pod, Name: h.Container}),
		)
	}

	level.Info(e.o.Logger).Log(
		"msg", "operator confirmed that a device is free",
		"device", done.Device,
		"operator", by.Name,
		"pods", strings.Join(pods, ", "),
	)
	done.Note = "this counts for 10 minutes, and no longer than until the kubelet or mig-exporter restarts"

	return done, nil
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

		for m, i := range g.Instances {
			if device == bareName(g.UUID, i.ID) {
				return namedDevice{g, gpu.DeviceIndex{Instance: m, Compute: gpu.Whole}}, true
			}
		}

		if at, match := devicesOf(g).Resolve(ref); match == gpu.MatchDevice {
			return namedDevice{g, at}, true
		}
	}

	return namedDevice{}, false
}

// unconfirmedAssignments returns the assignments that may hold a device or a part of it. It returns
// a problem if something certainly uses the device, or if an assignment may hold more than the
// device.
func (u *usage) unconfirmedAssignments(t namedDevice) ([]gpu.Assignment, *api.Problem) {
	if users := u.holdsOn(t); len(users) > 0 {
		return nil, t.refusal(users, "it is in use")
	}

	var within []gpu.Assignment

	for _, a := range u.pods.List {
		if a.Holder.Unconfirmed == "" {
			continue
		}

		d, match := resolve(t.g, a.Device)
		switch {
		case match == gpu.MatchNothing || !t.overlaps(d):
		case a.Device.Minor.Present() && !t.g.Minor.Present():
			return nil, t.refusal([]api.Hold{podHold(a.Holder)},
				"it may hold another GPU as well, since the minor number of this one is not known")
		case !t.contains(d):
			return nil, t.refusal(
				[]api.Hold{podHold(a.Holder)},
				"it may hold more than that: confirm "+namedDevice{t.g, d}.name(),
			)
		default:
			within = append(within, a)
		}
	}

	return within, nil
}

// refusal returns the problem that says why an operator cannot confirm that a device is free.
func (t namedDevice) refusal(holders []api.Hold, why string) *api.Problem {
	p := problemf(
		api.Busy,
		"%s cannot be confirmed to be free: %s: %s",
		t.name(),
		holdsText(holders),
		why,
	)

	b := api.Blocker{GPU: t.g.UUID, Instance: t.name(), Holders: holders}
	if t.at.Instance != gpu.Whole {
		i := t.g.Instances[t.at.Instance]
		b.Profile = i.Profile
		b.Placement = i.Placement
	}

	p.Blocking = []api.Blocker{b}

	return p
}

// holdsOn returns the containers that the kubelet lists for a device, and the processes that run on
// it or have it open, except monitoring programs.
func (u *usage) holdsOn(t namedDevice) []api.Hold {
	var all []api.Hold
	if t.at.Instance == gpu.Whole {
		all = slices.Clone(u.whole[t.g.UUID])
	}

	for m, i := range t.g.Instances {
		if !t.overlaps(gpu.DeviceIndex{Instance: m, Compute: gpu.Whole}) {
			continue
		}

		all = append(all, u.holds[unit{gpu: t.g.UUID, instance: i.ID}]...)
		for k, ci := range i.ComputeInstances {
			if t.overlaps(gpu.DeviceIndex{Instance: m, Compute: k}) {
				all = append(all, u.holds[unit{t.g.UUID, i.ID, gpu.Some(ci.ID)}]...)
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

// overlaps reports whether a device of the GPU shares anything with t.
func (t namedDevice) overlaps(d gpu.DeviceIndex) bool {
	same := func(a, b int) bool { return a == gpu.Whole || b == gpu.Whole || a == b }
	return same(t.at.Instance, d.Instance) && same(t.at.Compute, d.Compute)
}

// contains reports whether a device of the GPU is t or a part of it. If a GPU instance has only one
// compute instance, both count as the same device.
func (t namedDevice) contains(d gpu.DeviceIndex) bool {
	switch {
	case t.at.Instance == gpu.Whole:
		return true
	case t.at.Instance != d.Instance:
		return false
	default:
		return t.at.Compute == gpu.Whole || t.at.Compute == d.Compute ||
			len(t.g.Instances[d.Instance].ComputeInstances) == 1
	}
}

// refs returns the devices that a confirmation of t is about: the GPU, or each compute instance in
// t. If all compute instances of the GPU instance are in t or in free, it adds the GPU instance by
// its placement: that confirmation still counts after the compute instances were destroyed.
func (t namedDevice) refs(free []gpu.DeviceRef) []gpu.DeviceRef {
	if t.at.Instance == gpu.Whole {
		return []gpu.DeviceRef{{GPU: t.g.UUID}}
	}

	i := t.g.Instances[t.at.Instance]
	covered := coveredBy(t.g, free)
	var refs []gpu.DeviceRef
	all := true

	for k, ci := range i.ComputeInstances {
		switch d := (gpu.DeviceIndex{Instance: t.at.Instance, Compute: k}); {
		case !t.overlaps(d):
			all = all && covered[d]
		case ci.UUID != "":
			refs = append(refs, gpu.DeviceRef{MIG: ci.UUID})
		default:
			refs = append(
				refs,
				gpu.DeviceRef{GPU: t.g.UUID, Instance: gpu.Some(i.ID), Compute: gpu.Some(ci.ID)},
			)
		}
	}

	if all {
		refs = append(
			refs,
			gpu.DeviceRef{GPU: t.g.UUID, PlacementStart: gpu.Some(i.Placement.Start),
				ProfileID: gpu.Some(i.ProfileID)},
		)
	}

	return refs
}

func (t namedDevice) name() string {
	switch {
	case t.at.Instance == gpu.Whole:
		return string(t.g.UUID)
	case t.at.Compute == gpu.Whole:
		return bareName(t.g.UUID, t.g.Instances[t.at.Instance].ID)
	default:
		return string(t.g.Instances[t.at.Instance].ComputeInstances[t.at.Compute].UUID)
	}
}
