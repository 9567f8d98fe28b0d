package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// The mark of a cordon of this program's own, an annotation of the node.
const (
	markName  = "mig-exporter.io/cordoned-by"
	markValue = "partition-control"
	// manager is this program among those who write fields of the node.
	manager = "mig-exporter-partition-control"
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
		return patch(n, markValue, map[string]any{"unschedulable": true})
	})
	if err != nil {
		return false, fmt.Errorf("cordon: %w", err)
	}
	return done, nil
}

// Uncordon implements control.Cluster. If another client has made the node schedulable meanwhile, and perhaps cordoned it
// again, only the mark goes.
func (c *Cluster) Uncordon(ctx context.Context) error {
	err := c.change(ctx, func(n node) map[string]any {
		if n.Metadata.Annotations[markName] != markValue {
			return nil
		}
		if !n.cordonedBy(manager) {
			return patch(n, nil, nil)
		}
		return patch(n, nil, map[string]any{"unschedulable": nil})
	})
	if err != nil {
		return fmt.Errorf("uncordon: %w", err)
	}
	return nil
}

// cordonedBy reports whether it was this manager who made the node unschedulable. Where the API server does not tell, the
// mark's word is taken.
func (n *node) cordonedBy(manager string) bool {
	told := false
	for _, m := range n.Metadata.ManagedFields {
		if _, ok := m.Fields.Spec["f:unschedulable"]; ok {
			if m.Manager == manager {
				return true
			}
			told = true
		}
	}
	return n.Spec.Unschedulable && !told
}

// patch is a merge patch of the node as it was read. A mark of nil takes it away; a spec of nil stays as it is.
func patch(n node, mark any, spec map[string]any) map[string]any {
	body := map[string]any{
		"metadata": map[string]any{
			"resourceVersion": n.Metadata.ResourceVersion, // refused where the node has changed
			"annotations":     map[string]any{markName: mark},
		},
	}
	if spec != nil {
		body["spec"] = spec
	}
	return body
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
			Method: http.MethodPatch, Path: c.path(), Query: url.Values{"fieldManager": {manager}},
			Body: body, ContentType: "application/merge-patch+json",
		}, nil)
		if err == nil {
			return nil
		}
		if !errors.Is(err, kubeapi.ErrConflict) || try == tries {
			return fmt.Errorf("node %s: %w", c.opts.Node, err)
		}
	}
}
