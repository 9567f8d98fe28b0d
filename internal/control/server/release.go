package server

import (
	"context"
	"net/http"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Releaser lets go of GPUs, so that they can be reset, unbound from the driver or passed to a
// virtual machine. Errors that are meant for the caller are *api.Problem.
type Releaser interface {
	Release(ctx context.Context, id gpu.UUID) (*api.Release, error)
	// Reacquire opens a released GPU again.
	Reacquire(ctx context.Context, id gpu.UUID) (*api.Release, error)
}

func (c *call) releaseGPU() error {
	return c.answerRelease(func(ctx context.Context, id gpu.UUID) (*api.Release, error) {
		return c.s.o.Releaser.Release(ctx, id)
	})
}

func (c *call) reacquireGPU() error {
	return c.answerRelease(func(ctx context.Context, id gpu.UUID) (*api.Release, error) {
		return c.s.o.Releaser.Reacquire(ctx, id)
	})
}

// answerRelease logs the change, makes it, and answers with its result.
func (c *call) answerRelease(change func(context.Context, gpu.UUID) (*api.Release, error)) error {
	if c.s.o.Releaser == nil {
		return problem(
			api.NotBuilt,
			http.StatusNotImplemented,
			"GPUs of this node cannot be released",
		)
	}

	if c.body != nil {
		if err := c.decodeBody(nil); err != nil {
			return err
		}
	}

	id, err := c.findGPU(c.r.PathValue("gpu"))
	if err != nil {
		return err
	}

	c.entry.GPU = truncateID(string(id))
	if err := c.logChange(); err != nil {
		return err
	}

	ctx, cancel := c.changeContext()
	defer cancel()

	result, err := change(ctx, id)
	if err != nil {
		return err
	}

	return c.respond(http.StatusOK, result)
}
