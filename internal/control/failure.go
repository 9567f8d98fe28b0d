package control

import (
	"errors"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// failureText describes why a step failed, in words that we may show to a client.
func failureText(err error) string { return failureOf(err).Detail }

// failureProblem returns the problem of an operation that failed. It names the step, if one failed.
func failureProblem(err error) *api.Problem {
	p := *failureOf(err)

	var s *stepError
	if errors.As(err, &s) {
		p.Detail = stepText(s.step) + ": " + p.Detail
	}

	return &p
}

// failureOf is failureProblem without the step.
func failureOf(err error) *api.Problem {
	var p *api.Problem
	var saving storeError

	var foreign *foreignError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &foreign):
		return problemf(api.LayoutChanged, "%s", foreign)
	case errors.Is(err, errInterrupted):
		return problemf(api.DriverFailed, "%s", err)
	case errors.As(err, &saving):
		return problemf(
			api.ReadOnly,
			"the state folder could not be written, so nothing more was done: %s",
			stateText(saving.err),
		)
	case isTimeout(err):
		return problemf(api.StuckNode, "a driver call has not returned in time")
	case errors.Is(err, gpu.ErrInsufficientResources):
		return problemf(
			api.DriverFailed,
			"the driver has no room there: %s",
			gpu.ErrInsufficientResources,
		)
	default:
		return problemf(api.DriverFailed, "%s", reasonText(err))
	}
}
