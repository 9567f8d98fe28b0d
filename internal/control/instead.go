package control

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// checkView returns a problem unless the GPUs of a finished operation have the instances that it
// left, and no other client can have rebuilt them since. The problem has the layouts before the
// operation, to be planned instead.
func (u *usage) checkView(r *record) *api.Problem {
	var problem *api.Problem
	var instead []api.Spec

	for _, c := range r.Changes {
		g, err := u.gpu(c.GPU)
		if err != nil {
			return problemf(api.Unavailable, "%s cannot be read", c.GPU)
		}

		instead = append(instead, specOf(g, c.Before))
		why := c.View.broken(u.marks[c.GPU])

		if !mig.SameInstances(g.Instances, c.Expected) {
			why = "its layout is not the one that the operation left"
		}

		if why != "" && problem == nil {
			problem = problemf(
				api.StalePlan,
				"operation %s cannot be rolled back, because of GPU %d (%s): %s",
				r.Operation.ID,
				g.Index,
				g.UUID,
				why,
			)
			problem.Operation = r.Operation.ID
		}
	}

	if problem != nil {
		problem.Instead = instead
	}

	return problem
}

// specOf returns the spec of one GPU that asks for instances, which it has or has had.
func specOf(g mig.GPULayout, instances []mig.Instance) api.Spec {
	devices := map[string]api.DeviceRequest{}
	for _, i := range instances {
		list := append(devices[i.Profile].Each, requestFor(g.Profiles, i))
		devices[i.Profile] = api.DeviceRequest{Each: list}
	}

	for profile, d := range devices {
		split := slices.ContainsFunc(
			d.Each,
			func(r api.DeviceRequest) bool { return r.Compute != nil },
		)
		if !split {
			devices[profile] = api.DeviceRequest{Count: len(d.Each)}
		}
	}

	return api.Spec{GPUs: []api.Selector{api.Selector(g.UUID)}, Devices: devices}
}

// requestFor returns the request for one instance; without its compute instances if it has one of
// all its slices.
func requestFor(profiles []gpu.Profile, i mig.Instance) api.DeviceRequest {
	r := api.DeviceRequest{Count: 1}

	at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.ID == i.ProfileID })
	if at >= 0 && len(i.ComputeInstances) == 1 &&
		i.ComputeInstances[0].Slices == profiles[at].ComputeSlices {
		return r
	}

	r.Compute = []string{}
	for _, c := range i.ComputeInstances {
		r.Compute = append(r.Compute, fmt.Sprintf("%dc", c.Slices))
	}

	return r
}
