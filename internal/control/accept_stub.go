package control

import (
	"context"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// Accept stands in until the engine has a method of its own: it closes the operation as Abandon does.
func (e *Engine) Accept(ctx context.Context, by Actor, id string) (*api.Operation, error) {
	return e.Abandon(ctx, by, id)
}

// EndSettling stands in until the engine has a method of its own: it refuses.
func (e *Engine) EndSettling(context.Context, Actor, string) (*api.Operation, error) {
	return nil, &api.Problem{Type: api.NotBuilt, Title: "Not available", Status: 501, Detail: "The wait for the kubelet cannot be ended yet."}
}
