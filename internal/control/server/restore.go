package server

import (
	"net/http"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func (c *call) restoreLayout() error {
	var request api.RestoreRequest

	if c.body != nil {
		err := c.decodeBody(map[string]field{"takeOver": {into: &request.TakeOver}})
		if err != nil {
			return err
		}
	}

	if err := c.requireForceAndTakeOver(nil, request.TakeOver); err != nil {
		return err
	}

	id, err := c.findRestorable()
	if err != nil {
		return err
	}

	return c.answerWithOperation(func() (*api.Operation, error) {
		ctx, cancel := c.changeContext()
		defer cancel()

		return c.s.backend.Restore(ctx, c.actor(), id, request)
	})
}

func (c *call) forgetLayout() error {
	if c.body != nil {
		if err := c.decodeBody(nil); err != nil {
			return err
		}
	}

	id, err := c.findRestorable()
	if err != nil {
		return err
	}

	if err := c.logChange(); err != nil {
		return err
	}

	ctx, cancel := c.changeContext()
	defer cancel()

	forgotten, err := c.s.backend.ForgetLayout(ctx, c.actor(), id)
	if err != nil {
		return err
	}

	return c.respond(http.StatusOK, forgotten)
}

// findRestorable returns the UUID of the GPU in the path. If findGPU does not find it, since it is
// lost, it may still be a GPU whose layout is not restored: then its UUID is enough.
func (c *call) findRestorable() (gpu.UUID, error) {
	selector := c.r.PathValue("gpu")

	id, err := c.findGPU(selector)
	if err != nil {
		list := c.s.backend.Operations().Unrestored
		at := slices.IndexFunc(
			list,
			func(u api.Unrestored) bool { return strings.EqualFold(selector, string(u.GPU)) },
		)

		if at >= 0 {
			id = list[at].GPU
			err = nil
		}
	}

	c.entry.GPU = truncateID(string(id))

	return id, err
}
