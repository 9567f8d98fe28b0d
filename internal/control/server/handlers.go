package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Bounds on what the audit log records of a request.
const (
	maxID    = 128 // bytes of an id
	maxForce = 256 // UUIDs to force
)

func (c *call) getNode() error    { return c.answerNode(c.s.o.Node) }
func (c *call) getHistory() error { return c.answerNode(c.s.o.NodeHistory) }

func (c *call) getHealth() error {
	c.s.o.Health.ServeHTTP(c.w, c.r)
	return nil
}

func (c *call) streamNode() error {
	// Streams of the node have slots of their own, so that a client that watches the node does not
	// keep others from following an operation.
	if !c.s.nodeStreams.tryOpen(c.identity.name) {
		return c.refuseForNow(5, "too many streams of the node are open")
	}

	defer c.s.nodeStreams.closeOne(c.identity.name)

	if conn, ok := c.r.Context().Value(connKey{}).(*pooledConn); ok {
		conn.limitWriteBuffer()
	}

	return c.answerNode(c.s.o.NodeStream)
}

// answerNode answers with one of the handlers of the node's state.
func (c *call) answerNode(h http.Handler) error {
	if c.s.o.Current() == nil {
		return c.refuseUnread()
	}

	h.ServeHTTP(c.w, c.r)

	return nil
}

func (c *call) getOpenAPI() error {
	c.w.Header().Set("Content-Type", "application/yaml")
	_, err := c.w.Write(api.OpenAPI())

	return c.logClientGone(err)
}

func (c *call) getRecommendations() error {
	if c.s.o.Recommendations == nil {
		return problem(api.NotBuilt, http.StatusNotImplemented,
			"right-sizing is off: this node runs with --no-advise.enabled")
	}

	id := gpu.UUID("")
	query, err := url.ParseQuery(c.r.URL.RawQuery)

	selectors := query["gpu"]
	if delete(query, "gpu"); err != nil || len(query) > 0 || len(selectors) > 1 {
		return problem(
			api.Malformed,
			http.StatusBadRequest,
			"the query %.64q: expected nothing, or gpu once",
			c.r.URL.RawQuery,
		)
	}

	if selector := strings.Join(selectors, ""); selector != "" {
		if id, err = c.findGPU(selector); err != nil {
			return err
		}
	}

	report := c.s.o.Recommendations(id)
	if report == nil {
		return c.refuseUnread()
	}

	return c.respond(http.StatusOK, report)
}

func (c *call) getLayouts() error {
	ctx, cancel := c.readContext()
	defer cancel()

	layouts, err := c.s.backend.Layouts(ctx)
	if err != nil {
		return err
	}

	return c.respond(http.StatusOK, layouts)
}

func (c *call) createPlan() error {
	var raw json.RawMessage

	var request api.PlanRequest
	if err := c.decodeBody(map[string]field{
		"spec": {
			into:     &raw,
			required: true,
		},
		"force":    {into: &request.Force},
		"takeOver": {into: &request.TakeOver},
	}); err != nil {
		return err
	}

	if len(request.Force) > maxForce ||
		slices.ContainsFunc(request.Force, func(id string) bool { return len(id) > maxID }) {
		return problem(
			api.Malformed,
			http.StatusBadRequest,
			"field %q: expected at most %d UUIDs of at most %d bytes",
			"force",
			maxForce,
			maxID,
		)
	}

	sum := sha256.Sum256(raw)

	c.entry.Spec = hex.EncodeToString(sum[:])

	c.entry.Force = request.Force
	if err := c.requireForceAndTakeOver(request.Force, request.TakeOver); err != nil {
		return err
	}

	var err error
	if request.Spec, err = spec.Decode(raw); err != nil {
		if p := (*api.Problem)(nil); errors.As(err, &p) {
			return err
		}

		return problem(api.BadSpec, http.StatusUnprocessableEntity, "%s", err)
	}

	ctx, cancel := c.readContext()
	defer cancel()

	if err := c.awaitTurn(ctx); err != nil {
		return err
	}

	plan, err := c.s.backend.Plan(ctx, c.actor(), request)
	if err != nil {
		return err
	}

	c.entry.Plan = plan.ID
	c.w.Header().Set("Location", "/api/v1/plans/"+plan.ID)

	return c.respond(http.StatusCreated, plan)
}

func (c *call) getPlan() error {
	plan, err := c.s.backend.PlanByID(c.pathID(&c.entry.Plan))
	if err != nil {
		return err
	}

	return c.respond(http.StatusOK, plan)
}

// pathID returns the id in the path. It stores the id, truncated, in a field of the audit entry.
func (c *call) pathID(entryField *string) string {
	id := c.r.PathValue("id")
	*entryField = truncateID(id)

	return id
}

// truncateID returns as much of a client's text as the audit log records.
func truncateID(s string) string { return s[:min(len(s), maxID)] }

func (c *call) listOperations() error {
	list := c.s.backend.Operations()
	if reason := c.s.audit.failure(); reason != "" && list.Reason == "" {
		list.State = "read-only"
		list.Reason = reason
	}

	return c.respond(http.StatusOK, list)
}

func (c *call) getOperation() error {
	operation, err := c.s.backend.Operation(c.pathID(&c.entry.Op))
	if err != nil {
		return err
	}

	return c.respond(http.StatusOK, operation)
}

func (c *call) startOperation() error {
	var request api.OperationRequest
	if err := c.decodeBody(map[string]field{
		"plan": {
			into:     &request.Plan,
			required: true,
		},
		"hash":         {into: &request.Hash, required: true},
		"statedReason": {into: &c.entry.StatedReason},
	}); err != nil {
		return err
	}

	c.entry.Plan = truncateID(request.Plan)

	// Force and take-over were requested with the plan, maybe by another caller. If the backend
	// doesn't have the plan, Start refuses it.
	if plan, err := c.s.backend.PlanByID(request.Plan); err == nil {
		c.entry.Force = plan.Forced
		if err := c.requireForceAndTakeOver(plan.Forced, plan.TakeOver); err != nil {
			return err
		}
	}

	return c.answerWithOperation(func() (*api.Operation, error) {
		ctx, cancel := c.changeContext()
		defer cancel()

		return c.s.backend.Start(ctx, c.actor(), request)
	})
}

func (c *call) rollBackOperation() error {
	return c.changeOperation(c.s.backend.Rollback, map[string]field{
		"statedReason": {into: &c.entry.StatedReason},
	})
}

func (c *call) acceptOperation() error { return c.changeOperation(c.s.backend.Accept, nil) }

func (c *call) endSettling() error { return c.changeOperation(c.s.backend.EndSettling, nil) }

// changeOperation answers a call that changes an operation. The body is optional, and so are its
// fields.
func (c *call) changeOperation(
	do func(context.Context, control.Actor, string) (*api.Operation, error),
	fields map[string]field,
) error {
	id := c.pathID(&c.entry.Op)
	if c.body != nil {
		if err := c.decodeBody(fields); err != nil {
			return err
		}
	}

	return c.answerWithOperation(func() (*api.Operation, error) {
		ctx, cancel := c.changeContext()
		defer cancel()

		return do(ctx, c.actor(), id)
	})
}

func (c *call) setMIGMode() error {
	var request api.ModeRequest
	if err := c.decodeBody(map[string]field{
		"enabled": {into: &request.Enabled, required: true}, "takeOver": {into: &request.TakeOver},
	}); err != nil {
		return err
	}

	if err := c.requireForceAndTakeOver(nil, request.TakeOver); err != nil {
		return err
	}

	id, err := c.findGPU(c.r.PathValue("gpu"))
	if err != nil {
		return err
	}

	c.entry.GPU = string(id)
	c.entry.Enabled = &request.Enabled

	return c.answerWithOperation(func() (*api.Operation, error) {
		ctx, cancel := c.changeContext()
		defer cancel()

		return c.s.backend.SetMode(ctx, c.actor(), id, request)
	})
}

func (c *call) confirmFree() error {
	device := c.r.PathValue("uuid")
	if c.body != nil {
		if err := c.decodeBody(nil); err != nil {
			return err
		}
	}

	if err := c.logChange(); err != nil {
		return err
	}

	ctx, cancel := c.changeContext()
	defer cancel()

	done, err := c.s.backend.ConfirmFree(ctx, c.actor(), device)
	if err != nil {
		return err
	}

	for _, h := range done.Confirmed {
		c.entry.Confirmed = append(c.entry.Confirmed, h.Namespace+"/"+h.Pod+"/"+h.Container)
	}

	return c.respond(http.StatusOK, done)
}

// answerWithOperation logs the change, calls do to start it, and answers with the operation.
func (c *call) answerWithOperation(do func() (*api.Operation, error)) error {
	if err := c.logChange(); err != nil {
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

// refuseUnread refuses a call that needs a Snapshot before there is one.
func (c *call) refuseUnread() error {
	c.w.Header().Set("Retry-After", "1")

	return problem(
		api.Unavailable,
		http.StatusServiceUnavailable,
		"the GPUs have not been read yet; try again",
	)
}

// findGPU returns the UUID of the GPU that an index, UUID or PCI bus id means. The beginning of a
// UUID will do, if no other GPU has the same: "GPU-5f65f8d5".
func (c *call) findGPU(selector string) (gpu.UUID, error) {
	snap := c.s.o.Current()
	if snap == nil {
		return "", c.refuseUnread()
	}

	var indexes []string
	var prefixed []gpu.UUID // the UUIDs that begin with the selector

	for i := range snap.GPUs {
		g := &snap.GPUs[i]
		if g.UUID == "" { // it cannot be read
			continue
		}

		if selector == strconv.Itoa(g.Index) || strings.EqualFold(selector, string(g.UUID)) ||
			sameBus(selector, g.PCIBusID) {
			return g.UUID, nil
		}

		if isPrefix(selector, string(g.UUID)) {
			prefixed = append(prefixed, g.UUID)
		}

		indexes = append(indexes, strconv.Itoa(g.Index))
	}

	if len(prefixed) == 1 {
		return prefixed[0], nil
	}

	if len(prefixed) > 1 {
		return "", problem(api.NotFound, http.StatusNotFound,
			"%.64q is the beginning of the UUIDs of %d GPUs: give more of it",
			selector, len(prefixed))
	}

	return "", problem(
		api.NotFound,
		http.StatusNotFound,
		"no GPU %.64q: the indexes of the node's GPUs are %s",
		selector,
		joinOrNone(indexes),
	)
}

// isPrefix reports whether a UUID begins with a selector that is longer than "GPU-".
func isPrefix(selector, uuid string) bool {
	return len(selector) > len("GPU-") && len(selector) < len(uuid) &&
		strings.EqualFold(selector, uuid[:len(selector)])
}

// sameBus reports whether a selector is a PCI bus id, and the same as another one: NVML writes the
// domain with eight digits, sysfs with four.
func sameBus(selector, busID string) bool {
	return strings.Count(selector, ":") == 2 &&
		strings.EqualFold(strings.TrimLeft(selector, "0"), strings.TrimLeft(busID, "0"))
}

func joinOrNone(indexes []string) string {
	if len(indexes) == 0 {
		return "unknown, none can be read"
	}

	return strings.Join(indexes, ", ")
}
