package migctl

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// Remote is the control API of one node, for programs that ask for plans and operations themselves.
// Its errors are *api.Problem if the exporter refuses.
type Remote struct{ client *client }

// NewRemote returns the control API of a node over a connection. A request must be answered within
// the timeout.
func NewRemote(node string, c *Connection, timeout time.Duration) *Remote {
	return &Remote{newConnectedClient(node, c, timeout)}
}

func newConnectedClient(node string, c *Connection, timeout time.Duration) *client {
	return &client{
		base:    "https://control",
		address: "node " + node,
		foreign: errForeign,
		timeout: timeout,
		onClose: c.Close,
		http: &http.Client{
			Transport:     c.Transport,
			CheckRedirect: refuseRedirect,
		},
	}
}

// Close closes the connection.
func (r *Remote) Close() { r.client.close() }

// Plan makes a plan.
func (r *Remote) Plan(ctx context.Context, request api.PlanRequest) (*api.Plan, error) {
	var plan api.Plan
	return &plan, r.client.sendDocument(ctx, http.MethodPost, "/plans", request, "", &plan)
}

// Start starts an operation; key is its Idempotency-Key.
func (r *Remote) Start(
	ctx context.Context, request api.OperationRequest, key string,
) (*api.Operation, error) {
	var op api.Operation
	return &op, r.client.sendDocument(ctx, http.MethodPost, "/operations", request, key, &op)
}

// Rollback starts the rollback of an operation; key is its Idempotency-Key. The reason may be
// empty.
func (r *Remote) Rollback(ctx context.Context, id, reason, key string) (*api.Operation, error) {
	var op api.Operation

	path := operationPath(id) + "/rollback"

	return &op, r.client.sendDocument(ctx, http.MethodPost, path, rollbackRequest(reason), key, &op)
}

// rollbackRequest returns the body of the request for a rollback. Without a reason there is no body:
// older exporters take none.
func rollbackRequest(reason string) any {
	if reason == "" {
		return nil
	}

	return api.ReasonRequest{StatedReason: reason}
}

// Operation returns an operation.
func (r *Remote) Operation(ctx context.Context, id string) (*api.Operation, error) {
	var op api.Operation
	return &op, r.client.fetch(ctx, operationPath(id), &op)
}

// Operations returns all operations, the latest first.
func (r *Remote) Operations(ctx context.Context) (*api.Operations, error) {
	var list api.Operations
	return &list, r.client.fetch(ctx, "/operations", &list)
}

// Inventory is what a node has.
type Inventory struct {
	// Devices counts the MIG devices by the resource that the device plugin offers them as.
	Devices map[string]int
	// Indexes has the indexes of the GPUs by UUID. A GPU that does not answer is left out.
	Indexes map[string]int
}

// Inventory returns what the node has. It is an error if not all MIG devices are known.
func (r *Remote) Inventory(ctx context.Context) (*Inventory, error) {
	var node nodedoc.Document
	if err := r.client.fetch(ctx, "/node", &node); err != nil {
		return nil, err
	}

	if why := unreadText(&node); why != "" {
		return nil, fmt.Errorf("the exporter of %s does not know all MIG devices: %s", r.client.address, why)
	}

	v := &Inventory{Devices: map[string]int{}, Indexes: map[string]int{}}

	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.UUID != "" {
			v.Indexes[string(g.UUID)] = g.Index
		}

		for j := range g.GPUInstances {
			instance := &g.GPUInstances[j]
			if instance.ComputeInstancesHidden {
				return nil, fmt.Errorf("the exporter of %s does not see all MIG devices", r.client.address)
			}

			for k := range instance.ComputeInstances {
				v.Devices[resourceOf(instance.ComputeInstances[k].Profile)]++
			}
		}
	}

	return v, nil
}

// WritePlan draws a plan as migctl plan does, without colors.
func WritePlan(w io.Writer, plan *api.Plan) error {
	p := newPage(w, false, usesUTF8(os.LookupEnv))
	writePlan(p, plan)

	return p.flush()
}
