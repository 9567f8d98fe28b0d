package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// What the audit log takes from a client: bytes of an id, and how many UUIDs to force.
const (
	maxID    = 128
	maxForce = 256
)

func (c *call) node() error {
	if c.s.o.Current() == nil {
		return c.unread()
	}
	c.s.o.Node.ServeHTTP(c.w, c.r)
	return nil
}

func (c *call) openAPI() error {
	c.w.Header().Set("Content-Type", "application/yaml")
	_, err := c.w.Write(api.OpenAPI())
	return c.logClientGone(err)
}

func (c *call) recommendations() error {
	return problem(api.NotBuilt, http.StatusNotImplemented, "This version gives no recommendations.")
}

func (c *call) layouts() error {
	ctx, cancel := c.reading()
	defer cancel()
	layouts, err := c.s.engine.Layouts(ctx)
	if err != nil {
		return err
	}
	return c.respond(http.StatusOK, layouts)
}

func (c *call) plan() error {
	var raw json.RawMessage
	var request api.PlanRequest
	if err := c.decode(map[string]field{
		"spec": {into: &raw, required: true}, "force": {into: &request.Force}, "takeOver": {into: &request.TakeOver},
	}); err != nil {
		return err
	}
	if len(request.Force) > maxForce || slices.ContainsFunc(request.Force, func(id string) bool { return len(id) > maxID }) {
		return problem(api.Malformed, http.StatusBadRequest, "Field %q: expected at most %d UUIDs of at most %d bytes.", "force", maxForce, maxID)
	}
	sum := sha256.Sum256(raw)
	c.entry.Spec, c.entry.Force = hex.EncodeToString(sum[:]), request.Force
	if err := c.needFor(request.Force, request.TakeOver); err != nil {
		return err
	}
	var err error
	if request.Spec, err = spec.Decode(raw); err != nil {
		if p := (*api.Problem)(nil); errors.As(err, &p) {
			return err
		}
		return problem(api.BadSpec, http.StatusUnprocessableEntity, "%s", err)
	}
	ctx, cancel := c.reading()
	defer cancel()
	if err := c.awaitTurn(ctx); err != nil {
		return err
	}
	plan, err := c.s.engine.Plan(ctx, c.actor(), request)
	if err != nil {
		return err
	}
	c.entry.Plan = plan.ID
	c.w.Header().Set("Location", "/api/v1/plans/"+plan.ID)
	return c.respond(http.StatusCreated, plan)
}

func (c *call) planByID() error {
	plan, err := c.s.engine.PlanByID(c.id(&c.entry.Plan))
	if err != nil {
		return err
	}
	return c.respond(http.StatusOK, plan)
}

// id is the id in the path; the audit log takes as much of it as an id may have.
func (c *call) id(entry *string) string {
	id := c.r.PathValue("id")
	*entry = short(id)
	return id
}

// short bounds what a client says in the audit log.
func short(s string) string { return s[:min(len(s), maxID)] }

func (c *call) operations() error {
	list := c.s.engine.Operations()
	if reason := c.s.audit.failure(); reason != "" && list.Reason == "" {
		list.State, list.Reason = "read-only", reason
	}
	return c.respond(http.StatusOK, list)
}

func (c *call) operation() error {
	operation, err := c.s.engine.Operation(c.id(&c.entry.Op))
	if err != nil {
		return err
	}
	return c.respond(http.StatusOK, operation)
}

func (c *call) start() error {
	var request api.OperationRequest
	if err := c.decode(map[string]field{
		"plan": {into: &request.Plan, required: true}, "hash": {into: &request.Hash, required: true},
	}); err != nil {
		return err
	}
	c.entry.Plan = short(request.Plan)
	// What a plan forces or takes over is fixed. The engine refuses a plan that it does not have.
	if plan, err := c.s.engine.PlanByID(request.Plan); err == nil {
		c.entry.Force = plan.Forced
		if err := c.needFor(plan.Forced, plan.TakeOver); err != nil {
			return err
		}
	}
	return c.change(func() (*api.Operation, error) {
		ctx, cancel := c.changing()
		defer cancel()
		return c.s.engine.Start(ctx, c.actor(), request)
	})
}

func (c *call) rollback() error { return c.onOperation(c.s.engine.Rollback) }

func (c *call) accept() error { return c.onOperation(c.s.engine.Accept) }

func (c *call) endSettling() error { return c.onOperation(c.s.engine.EndSettling) }

// onOperation does something with an operation that needs no words.
func (c *call) onOperation(do func(context.Context, control.Actor, string) (*api.Operation, error)) error {
	id := c.id(&c.entry.Op)
	if c.body != nil {
		if err := c.decode(nil); err != nil {
			return err
		}
	}
	return c.change(func() (*api.Operation, error) {
		ctx, cancel := c.changing()
		defer cancel()
		return do(ctx, c.actor(), id)
	})
}

func (c *call) mode() error {
	var request api.ModeRequest
	if err := c.decode(map[string]field{
		"enabled": {into: &request.Enabled, required: true}, "takeOver": {into: &request.TakeOver},
	}); err != nil {
		return err
	}
	if err := c.needFor(nil, request.TakeOver); err != nil {
		return err
	}
	id, err := c.gpu(c.r.PathValue("gpu"))
	if err != nil {
		return err
	}
	c.entry.GPU, c.entry.Enabled = string(id), &request.Enabled
	return c.change(func() (*api.Operation, error) {
		ctx, cancel := c.changing()
		defer cancel()
		return c.s.engine.SetMode(ctx, c.actor(), id, request)
	})
}

func (c *call) confirmFree() error {
	device := c.r.PathValue("uuid")
	if c.body != nil {
		if err := c.decode(nil); err != nil {
			return err
		}
	}
	if err := c.beginChange(); err != nil {
		return err
	}
	ctx, cancel := c.changing()
	defer cancel()
	done, err := c.s.engine.ConfirmFree(ctx, c.actor(), device)
	if err != nil {
		return err
	}
	for _, h := range done.Confirmed {
		c.entry.Confirmed = append(c.entry.Confirmed, h.Namespace+"/"+h.Pod+"/"+h.Container)
	}
	return c.respond(http.StatusOK, done)
}

// change begins an operation.
func (c *call) change(do func() (*api.Operation, error)) error {
	if err := c.beginChange(); err != nil {
		return err
	}
	operation, err := do()
	if err != nil {
		return err
	}
	c.entry.Op = operation.ID
	c.w.Header().Set("Location", "/api/v1/operations/"+operation.ID)
	return c.respond(http.StatusAccepted, operation)
}

// beginChange writes to the audit log that a change is about to be made. Changes of one caller are limited, and with them
// their lines there.
func (c *call) beginChange() error {
	if wait, ok := c.s.changes.takeToken(c.caller()); !ok {
		return c.tooMany(wait, "Too many changes.")
	}
	return c.begin()
}

func (c *call) unread() error {
	c.w.Header().Set("Retry-After", "1")
	return problem(api.Unavailable, http.StatusServiceUnavailable, "The GPUs have not been read yet. Try again.")
}

// gpu finds a GPU by index, UUID or PCI bus id.
func (c *call) gpu(selector string) (gpu.UUID, error) {
	snap := c.s.o.Current()
	if snap == nil {
		return "", c.unread()
	}
	var have []string
	for i := range snap.GPUs {
		g := &snap.GPUs[i]
		if g.UUID == "" { // it cannot be read
			continue
		}
		if selector == strconv.Itoa(g.Index) || strings.EqualFold(selector, string(g.UUID)) || sameBus(selector, g.PCIBusID) {
			return g.UUID, nil
		}
		have = append(have, strconv.Itoa(g.Index)+" ("+string(g.UUID)+")")
	}
	return "", problem(api.NotFound, http.StatusNotFound, "No GPU %.64q: the node has %s.", selector, orNothing(have))
}

// sameBus compares PCI bus ids: NVML writes the domain with eight digits, sysfs with four.
func sameBus(a, b string) bool {
	return strings.Count(a, ":") == 2 && strings.EqualFold(strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0"))
}

func orNothing(have []string) string {
	if len(have) == 0 {
		return "none that can be read"
	}
	return strings.Join(have, ", ")
}
