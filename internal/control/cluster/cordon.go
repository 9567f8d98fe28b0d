package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

const (
	// markName and markValue are the annotation of a node that this program has cordoned.
	markName  = "mig-exporter.io/cordoned-by"
	markValue = "partition-control"
	// cordonManager is this program's name among the managers of the node's fields.
	cordonManager = "mig-exporter-partition-control"
)

// maxTries is how often we try a change if other clients change the object at the same time.
const maxTries = 5

// Cordon implements control.Cluster.
func (c *Cluster) Cordon(ctx context.Context) (bool, error) {
	var done bool

	err := c.patchNode(ctx, cordonManager, func(n node) map[string]any {
		done = !n.Spec.Unschedulable
		if !done {
			return nil
		}

		return newPatch(n, markValue, map[string]any{"unschedulable": true})
	})
	if err != nil {
		return false, fmt.Errorf("cordon: %w", err)
	}

	return done, nil
}

// Uncordon implements control.Cluster. If another client has made the node schedulable since, and
// perhaps cordoned it again, Uncordon only removes the annotation.
func (c *Cluster) Uncordon(ctx context.Context) error {
	err := c.patchNode(ctx, cordonManager, func(n node) map[string]any {
		if n.Metadata.Annotations[markName] != markValue {
			return nil
		}

		if !n.cordonedBy(cordonManager) {
			return newPatch(n, nil, nil)
		}

		return newPatch(n, nil, map[string]any{"unschedulable": nil})
	})
	if err != nil {
		return fmt.Errorf("uncordon: %w", err)
	}

	return nil
}

// cordonedBy reports whether the manager made the node unschedulable. If the API server does not
// report who did, it returns true for an unschedulable node: our annotation is enough.
func (n *node) cordonedBy(manager string) bool {
	hasOther := false

	for _, m := range n.Metadata.ManagedFields {
		if _, ok := m.Fields.Spec["f:unschedulable"]; ok {
			if m.Manager == manager {
				return true
			}

			hasOther = true
		}
	}

	return n.Spec.Unschedulable && !hasOther
}

// newPatch returns a merge patch for the node that was read. A nil mark removes the annotation. With
// a nil spec, the patch does not change the node's spec.
func newPatch(n node, mark any, spec map[string]any) map[string]any {
	body := map[string]any{
		"metadata": map[string]any{
			"resourceVersion": n.Metadata.ResourceVersion, // refused if the node has changed
			"annotations":     map[string]any{markName: mark},
		},
	}
	if spec != nil {
		body["spec"] = spec
	}

	return body
}

// patchNode reads the node and applies the patch that decide returns, in the name of a manager. If
// decide returns nil, it does nothing. If the node has changed meanwhile, it reads it and calls
// decide again.
func (c *Cluster) patchNode(
	ctx context.Context, manager string, decide func(node) map[string]any,
) error {
	for try := 1; ; try++ {
		n, err := c.getNode(ctx)
		if err != nil {
			return err
		}

		body := decide(n)
		if body == nil {
			return nil
		}

		err = c.request(ctx, kubeapi.Request{
			Method:      http.MethodPatch,
			Path:        c.nodePath(),
			Query:       url.Values{"fieldManager": {manager}},
			Body:        body,
			ContentType: "application/merge-patch+json",
		}, nil)
		if err == nil {
			return nil
		}

		if !errors.Is(err, kubeapi.ErrConflict) || try == maxTries {
			return fmt.Errorf("node %s: %w", c.opts.Node, err)
		}
	}
}
