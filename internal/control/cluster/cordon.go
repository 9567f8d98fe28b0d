package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// The mark of a cordon of this program's own, an annotation of the node.
const (
	markName  = "mig-exporter.io/cordoned-by"
	markValue = "partition-control"
)

// tries is how often a change of the node is tried again that met another's.
const tries = 5

// Cordon implements control.Cluster.
func (c *Cluster) Cordon(ctx context.Context) (bool, error) {
	var done bool
	err := c.change(ctx, func(n node) map[string]any {
		done = !n.Spec.Unschedulable
		if !done {
			return nil
		}
		return patch(n, markValue, true)
	})
	if err != nil {
		return false, fmt.Errorf("cordon: %w", err)
	}
	return done, nil
}

// Uncordon implements control.Cluster. Where somebody else has made the node schedulable meanwhile, only the mark goes.
func (c *Cluster) Uncordon(ctx context.Context) error {
	err := c.change(ctx, func(n node) map[string]any {
		if n.Metadata.Annotations[markName] != markValue {
			return nil
		}
		return patch(n, nil, nil)
	})
	if err != nil {
		return fmt.Errorf("uncordon: %w", err)
	}
	return nil
}

// patch is a merge patch of the node as it was read; nil takes away.
func patch(n node, mark, unschedulable any) map[string]any {
	return map[string]any{
		"metadata": map[string]any{
			"resourceVersion": n.Metadata.ResourceVersion, // refused where the node has changed
			"annotations":     map[string]any{markName: mark},
		},
		"spec": map[string]any{"unschedulable": unschedulable},
	}
}

// change reads the node and patches it as decided; nil leaves it as it is.
func (c *Cluster) change(ctx context.Context, decide func(node) map[string]any) error {
	for try := 1; ; try++ {
		n, err := c.node(ctx)
		if err != nil {
			return err
		}
		body := decide(n)
		if body == nil {
			return nil
		}
		err = c.do(ctx, kubeapi.Request{
			Method: http.MethodPatch, Path: c.path(), Body: body, ContentType: "application/merge-patch+json",
		}, nil)
		if err == nil {
			return nil
		}
		if !errors.Is(err, kubeapi.ErrConflict) || try == tries {
			return fmt.Errorf("node %s: %w", c.opts.Node, err)
		}
	}
}
