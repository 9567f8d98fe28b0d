package main

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/cmd/internal/migctl"
	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// exporters makes requests to the nodes' exporters. It connects to an exporter at the first request.
type exporters struct {
	plugin  *plugin
	rights  []string      // that the requests need, see plugin.account
	timeout time.Duration // of a request
	reason  string        // the stated reason of the operations

	mu      sync.Mutex
	remotes map[string]*migctl.Remote
}

var _ rollout.Exporter = (*exporters)(nil)

// remote returns the connection to a node's exporter.
func (e *exporters) remote(ctx context.Context, node string) (*migctl.Remote, error) {
	e.mu.Lock()
	r := e.remotes[node]
	e.mu.Unlock()

	if r != nil {
		return r, nil
	}

	connection, err := e.plugin.connect(ctx, node, e.rights)
	if err != nil {
		return nil, finalConnectError(err)
	}

	r = migctl.NewRemote(node, connection, e.timeout)

	e.mu.Lock()
	defer e.mu.Unlock()

	e.remotes[node] = r

	return r, nil
}

// finalConnectError makes the error of a wrong certificate one that no further attempt can cure.
func finalConnectError(err error) error {
	if errors.As(err, new(*tls.CertificateVerificationError)) {
		return rollout.Refused(err)
	}

	return err
}

func (e *exporters) close() {
	e.mu.Lock()
	defer e.mu.Unlock()

	for _, r := range e.remotes {
		r.Close()
	}
}

// Plan implements rollout.Exporter.
func (e *exporters) Plan(ctx context.Context, node string, q api.PlanRequest) (*api.Plan, error) {
	r, err := e.remote(ctx, node)
	if err != nil {
		return nil, err
	}

	return r.Plan(ctx, q)
}

// Start implements rollout.Exporter.
func (e *exporters) Start(
	ctx context.Context, node string, q api.OperationRequest, key string,
) (*api.Operation, error) {
	r, err := e.remote(ctx, node)
	if err != nil {
		return nil, err
	}

	q.StatedReason = e.reason

	return r.Start(ctx, q, key)
}

// Rollback implements rollout.Exporter.
func (e *exporters) Rollback(ctx context.Context, node, id, key string) (*api.Operation, error) {
	r, err := e.remote(ctx, node)
	if err != nil {
		return nil, err
	}

	return r.Rollback(ctx, id, e.reason, key)
}

// Operation implements rollout.Exporter.
func (e *exporters) Operation(ctx context.Context, node, id string) (*api.Operation, error) {
	r, err := e.remote(ctx, node)
	if err != nil {
		return nil, err
	}

	return r.Operation(ctx, id)
}

// Operations implements rollout.Exporter.
func (e *exporters) Operations(ctx context.Context, node string) (*api.Operations, error) {
	r, err := e.remote(ctx, node)
	if err != nil {
		return nil, err
	}

	return r.Operations(ctx)
}

// Inventory implements rollout.Exporter.
func (e *exporters) Inventory(ctx context.Context, node string) (*rollout.Inventory, error) {
	r, err := e.remote(ctx, node)
	if err != nil {
		return nil, err
	}

	v, err := r.Inventory(ctx)

	return (*rollout.Inventory)(v), err
}
