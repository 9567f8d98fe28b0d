// Package kube makes the requests of a run over many nodes to the API server: it cordons nodes,
// evicts pods by kubectl drain's rules, and keeps the state of the run in a ConfigMap. A Lease says
// which client owns the run.
//
// The operator needs a ClusterRole with these rights:
//
//	""               nodes           get, list with label selectors, and patch
//	resource.k8s.io  resourceslices  list, for nodes without a device plugin's resources
//	""               pods            get, and delete with --disable-eviction, to evict
//	""               pods/eviction   create, to evict
//	apps             daemonsets      get, to evict
//
// and a Role in the exporter's namespace with these:
//
//	""                   configmaps  get, list, create, update
//	coordination.k8s.io  leases      get, create, update
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
)

const (
	// runMark is the annotation of a node that a run has cordoned. Its value is the run's name.
	runMark = "mig-exporter.io/cordoned-by-run"
	// exporterMark is the annotation of a node that its exporter has cordoned for an operation.
	exporterMark = "mig-exporter.io/cordoned-by"
	// manager is this program's name among the managers of an object's fields.
	manager = "kubectl-mig"

	// maxTries is how often we try to change a node if other clients change it at the same time.
	maxTries = 5
)

// Cluster is a client of the API server. It is safe for concurrent use.
type Cluster struct {
	set       kubernetes.Interface
	namespace string     // the exporter's
	newDrain  drainMaker // newDrain, except in tests
}

var _ rollout.Cluster = (*Cluster)(nil)
var _ rollout.Nodes = (*Cluster)(nil)
var _ rollout.Evictions = (*Cluster)(nil)

// New returns a client of the API server that keeps runs in a namespace. It sends no requests.
func New(set kubernetes.Interface, namespace string) *Cluster {
	return &Cluster{set: set, namespace: namespace, newDrain: newDrain}
}

// Exists reports whether there is a node of this name.
func (c *Cluster) Exists(ctx context.Context, name string) (bool, error) {
	_, err := c.node(ctx, name)
	if errors.Is(err, errNoNode) {
		return false, nil
	}

	return err == nil, err
}

// Select returns the names of the nodes with the labels.
func (c *Cluster) Select(ctx context.Context, selector string) ([]string, error) {
	list, err := c.set.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, explain(err, "list", "nodes")
	}

	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}

	return names, nil
}

var errNoNode = errors.New("there is no such node")

func (c *Cluster) node(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := c.set.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, rollout.Refused(fmt.Errorf("node %s: %w", name, errNoNode))
	}

	if err != nil {
		return nil, explain(err, "get", "nodes")
	}

	return node, nil
}

// Cordon cordons a node for a run. It returns false if another client has cordoned it. If the node's
// exporter keeps it cordoned for an operation, or another run does, Cordon returns an error: they
// would lift their cordon before this run is done.
func (c *Cluster) Cordon(ctx context.Context, name, run string) (bool, error) {
	own := false

	err := c.patchNode(ctx, name, func(node *corev1.Node) (map[string]any, error) {
		mark := node.Annotations[runMark]
		own = true

		switch {
		case !node.Spec.Unschedulable:
			return newPatch(node, run, map[string]any{"unschedulable": true}), nil
		case mark == run: // unless another client has cordoned it again since
			own = isManagedByUs(node)
		case mark != "" && isManagedByUs(node):
			return nil, fmt.Errorf("run %s keeps node %s cordoned", mark, name)
		case node.Annotations[exporterMark] != "":
			return nil, fmt.Errorf("the exporter of node %s keeps it cordoned for an operation", name)
		case mark == "" && isKnownAsOurs(node):
			return nil, errNoMark(name)
		default:
			own = false
		}

		return nil, nil //nolint:nilnil // there is nothing to patch
	})

	return own && err == nil, err
}

// Uncordon lifts the cordon that a run has made. If another client has made the node schedulable
// since, and perhaps cordoned it again, Uncordon only removes the annotation. It is an error if another
// client has removed the annotation, and the node is cordoned by this program.
func (c *Cluster) Uncordon(ctx context.Context, name, run string) error {
	err := c.patchNode(ctx, name, func(node *corev1.Node) (map[string]any, error) {
		switch {
		case node.Annotations[runMark] == "" && node.Spec.Unschedulable && isKnownAsOurs(node):
			return nil, errNoMark(name)
		case node.Annotations[runMark] != run:
			return nil, nil //nolint:nilnil // there is nothing to patch
		case !isManagedByUs(node):
			return newPatch(node, nil, nil), nil
		}

		return newPatch(node, nil, map[string]any{"unschedulable": nil}), nil
	})
	if errors.Is(err, errNoNode) {
		return nil
	}

	return err
}

// errNoMark is the error of a node that a run keeps cordoned, if it is not known which.
func errNoMark(name string) error {
	return rollout.Refused(fmt.Errorf("another client has removed the annotation %s from node %s, and so it is "+
		"not known which run keeps it cordoned: kubectl uncordon %s", runMark, name, name))
}

// isManagedByUs reports whether this program made the node unschedulable. If the API server does
// not say which client did, it reports true: the annotation is enough.
func isManagedByUs(node *corev1.Node) bool {
	list := managersOf(node)
	return node.Spec.Unschedulable && (len(list) == 0 || slices.Contains(list, manager))
}

// isKnownAsOurs reports whether the API server says that this program made the node unschedulable.
func isKnownAsOurs(node *corev1.Node) bool { return slices.Contains(managersOf(node), manager) }

// managersOf returns the clients that have set spec.unschedulable of a node.
func managersOf(node *corev1.Node) []string {
	var list []string

	for _, m := range node.ManagedFields {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}

		if json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}

		if _, ok := fields.Spec["f:unschedulable"]; ok {
			list = append(list, m.Manager)
		}
	}

	return list
}

// newPatch returns a merge patch for the node that was read. A nil mark removes the annotation. With
// a nil spec, the patch does not change the node's spec.
func newPatch(node *corev1.Node, mark any, spec map[string]any) map[string]any {
	body := map[string]any{
		"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion, // refused if the node has changed
			"annotations":     map[string]any{runMark: mark},
		},
	}
	if spec != nil {
		body["spec"] = spec
	}

	return body
}

// patchNode reads the node and applies the patch that decide returns. If decide returns nil, it does
// nothing. If the node has changed meanwhile, it reads it and calls decide again.
func (c *Cluster) patchNode(
	ctx context.Context, name string, decide func(*corev1.Node) (map[string]any, error),
) error {
	for try := 1; ; try++ {
		node, err := c.node(ctx, name)
		if err != nil {
			return err
		}

		body, err := decide(node)
		if body == nil || err != nil {
			return err
		}

		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("write the patch: %w", err)
		}

		_, err = c.set.CoreV1().Nodes().Patch(
			ctx, name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: manager},
		)
		if err == nil {
			return nil
		}

		if !apierrors.IsConflict(err) || try == maxTries {
			return explain(err, "patch", "nodes")
		}
	}
}

// runsDocs has the rights that runs need.
const runsDocs = "docs/kubectl-mig-runs.md#rights"

func explain(err error, verb, what string) error { return Explain(err, verb, what, runsDocs) }

// APIError is the error of a request to the API server.
type APIError struct{ err error }

func (e *APIError) Error() string { return e.err.Error() }
func (e *APIError) Unwrap() error { return e.err }

// Explain returns an *APIError for the error of a request to the API server. If a right is missing,
// it names the right and where it is documented. An error that no further attempt can cure is marked
// with rollout.ErrRefused.
func Explain(err error, verb, what, docs string) error {
	text := fmt.Errorf("%s %s: %w", verb, what, err)

	switch {
	case apierrors.IsForbidden(err):
		text = fmt.Errorf("you may not %s %s (%s): %w", verb, what, docs, err)
	case apierrors.IsUnauthorized(err):
		text = fmt.Errorf("the API server does not accept the kubeconfig's credentials: %w", err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
	default:
		return &APIError{text}
	}

	return &APIError{rollout.Refused(text)}
}
