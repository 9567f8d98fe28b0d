package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// problemf returns a problem with a formatted detail.
func problemf(t api.ProblemType, format string, args ...any) *api.Problem {
	title, status := titleAndStatus(t)
	return &api.Problem{Type: t, Title: title, Status: status, Detail: fmt.Sprintf(format, args...)}
}

// titleAndStatus returns the title and the HTTP status of a type of problem.
func titleAndStatus(t api.ProblemType) (title string, status int) {
	switch t {
	case api.Forbidden:
		return "Not allowed", http.StatusForbidden
	case api.PlanOnly:
		return "This node only plans", http.StatusForbidden
	case api.NotFound:
		return "Not found", http.StatusNotFound

	case api.StalePlan:
		return "The node has changed since, or may have", http.StatusConflict
	case api.Busy:
		return "In use", http.StatusConflict
	case api.InProgress:
		return "Another operation is in progress", http.StatusConflict
	case api.ForeignOwner:
		return "Another controller manages this GPU", http.StatusConflict
	case api.LayoutChanged:
		return "The layout was changed meanwhile", http.StatusConflict
	case api.NotResumed:
		return "The operation could not be resumed", http.StatusConflict
	case api.DegradedNode:
		return "A rollback has to be retried or accepted first", http.StatusConflict

	case api.UnknownProfile:
		return "Unknown profile", http.StatusUnprocessableEntity
	case api.Infeasible:
		return "It does not fit", http.StatusUnprocessableEntity
	case api.ModeDiffers:
		return "The GPU is in another MIG mode", http.StatusUnprocessableEntity
	case api.BadSpec:
		return "The request cannot be met", http.StatusUnprocessableEntity

	case api.ReadOnly:
		return "Partition control is read-only", http.StatusServiceUnavailable
	case api.StuckNode:
		return "A driver call has not returned", http.StatusServiceUnavailable
	case api.Unavailable:
		return "The driver does not answer", http.StatusServiceUnavailable
	case api.DriverFailed:
		return "A driver call failed", http.StatusBadGateway
	default:
		return "Internal error", http.StatusInternalServerError
	}
}

// isTimeout reports whether an error says that a driver call has not returned in time.
func isTimeout(err error) bool {
	return errors.Is(err, gpu.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}

// driverProblem returns the problem for an error of reading the GPUs.
func driverProblem(err error) *api.Problem {
	if isTimeout(err) {
		return problemf(
			api.StuckNode,
			"the driver has not answered in time; metrics continue, and control resumes when it answers",
		)
	}

	return problemf(api.Unavailable, "the GPUs cannot be read: %s", reasonText(err))
}

// planProblem returns the problem for an error of the planner.
func (u *usage) planProblem(err error) *api.Problem {
	var (
		profile    *mig.ProfileError
		infeasible *mig.InfeasibleError
		mode       *mig.ModeError
		selector   *mig.SelectorError
	)
	switch {
	case errors.As(err, &profile):
		p := problemf(api.UnknownProfile, "%s", profile)
		p.Profiles = slices.Clone(profile.Offers)

		return p
	case errors.As(err, &infeasible):
		p := problemf(api.Infeasible, "%s", infeasible)
		for _, b := range infeasible.Blocking {
			p.Blocking = append(p.Blocking, u.describeBlocking(b))
		}

		return withHint(p)
	case errors.As(err, &mode):
		return problemf(api.ModeDiffers, "%s", mode)
	case errors.As(err, &selector) && len(u.unreadable) > 0: // the selector may mean an unreadable GPU
		return problemf(api.Unavailable, "%s; %s", selector, strings.Join(u.warnings, "; "))
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		// The client has disconnected, or shutdown began.
		return problemf(api.Unavailable, "%s", err)
	default:
		return problemf(api.BadSpec, "%s", err)
	}
}

// blocker describes an instance with its holders.
func (u *usage) blocker(g mig.GPULayout, i mig.Instance) api.Blocker {
	return api.Blocker{
		GPU:       g.UUID,
		Instance:  instanceName(g, i),
		Profile:   i.Profile,
		Placement: i.Placement,
		Holders:   u.holders(g, i),
	}
}

// describeBlocking describes an instance or compute instance that is in a plan's way.
func (u *usage) describeBlocking(b mig.Blocking) api.Blocker {
	g := u.gpus[b.GPU]
	i := g.Instances[b.Instance]
	d := u.blocker(g, i)

	if ci, ok := b.Compute.Get(); ok {
		d.Instance = string(i.ComputeInstances[ci].UUID)
		d.Holders = slices.Concat(u.holds[holdKey{gpu: g.UUID, instance: i.ID}],
			u.holds[holdKey{g.UUID, i.ID, gpu.Some(i.ComputeInstances[ci].ID)}])
	}

	return d
}

// holders returns the holds on an instance and on all its compute instances.
func (u *usage) holders(g mig.GPULayout, i mig.Instance) []api.Hold {
	list := slices.Clone(u.holds[holdKey{gpu: g.UUID, instance: i.ID}])
	for _, ci := range i.ComputeInstances {
		for _, h := range u.holds[holdKey{g.UUID, i.ID, gpu.Some(ci.ID)}] {
			if !slices.Contains(list, h) {
				list = append(list, h)
			}
		}
	}

	return list
}

// instanceName returns the name of an instance in requests: its MIG UUID if it has exactly one
// compute instance.
func instanceName(g mig.GPULayout, i mig.Instance) string {
	if len(i.ComputeInstances) == 1 && i.ComputeInstances[0].UUID != "" {
		return string(i.ComputeInstances[0].UUID)
	}

	return gpuInstanceName(g.UUID, i.ID)
}

// withHint adds to a refusal how to confirm or clear the unconfirmed holders among the blockers.
// Some are unconfirmed since the kubelet does not list their pods, others since we cannot read the
// claims by which they hold a device.
func withHint(p *api.Problem) *api.Problem {
	var unlisted, claims bool

	for _, b := range p.Blocking {
		for _, h := range b.Holders {
			unlisted = unlisted || h.Unconfirmed() && !h.ByClaim()
			claims = claims || h.ByClaim()
		}
	}

	var ways []string
	if unlisted {
		ways = append(ways, "wait until the kubelet lists its pods again")
	}

	if claims {
		ways = append(
			ways,
			"let mig-exporter read claims (--kubernetes.node-name and the right get resourceclaims.resource.k8s.io)",
		)
	}

	if len(ways) > 0 {
		p.Detail += "; for unconfirmed holders " + strings.Join(ways, ", ") +
			", or look whether anything uses the device (crictl ps, nvidia-smi) " +
			"and confirm that it is free (migctl confirm-free)"
	}

	return p
}

func holdsText(list []api.Hold) string {
	parts := make([]string, 0, len(list))
	for _, h := range list {
		parts = append(parts, fmt.Sprintf("%s %s", h.Kind, h.What))
	}

	return strings.Join(parts, ", ")
}

func stepText(s mig.Step) string {
	text := fmt.Sprintf("%s %s at %s of %s", s.Op, s.Profile, s.Placement, s.GPU)
	if at, ok := s.Compute.Get(); ok {
		text = fmt.Sprintf(
			"%s compute %s in %s at %s of %s",
			s.Op,
			at,
			s.Profile,
			s.Placement,
			s.GPU,
		)
	}

	return text
}
