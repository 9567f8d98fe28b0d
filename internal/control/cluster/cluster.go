// Package cluster connects partition control to the Kubernetes API server: it reviews tokens and
// rights, finds other controllers of the node's GPUs, and cordons the node.
//
// The service account needs a ClusterRole with these rights:
//
//	authentication.k8s.io  tokenreviews                    create, for Kubernetes tokens
//	authorization.k8s.io   subjectaccessreviews            create, for Kubernetes tokens
//	""                     nodes                           get, and patch to cordon or to follow labels
//	""                     pods                            list, to follow labels
//	resource.k8s.io        resourceslices                  list, if the cluster has them
//	inference.redhat.com   instaslices, nodeaccelerators   list, if the cluster has them
//
// To restart the device plugin, it needs a Role in the plugin's namespace with list and delete of
// pods. To read the layouts of mig-manager's ConfigMap, it needs get of configmaps in that namespace.
//
// If a right is missing, errors name it: they are, or contain, a *kubeapi.RefusedError.
//
// A user of partition control on node N needs verbs on the object N of the resource partitions in
// the group mig-exporter.io: get to read, and plan, apply, mode, force, take-over and release as
// docs/partition-control.md says. There is no such resource; the API server only answers whether a
// user has the right.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// requestTimeout bounds one request to the API server.
const requestTimeout = 5 * time.Second

// Options configures a Cluster.
type Options struct {
	API *kubeapi.Client
	// Node is the name of the node, as Kubernetes has it.
	Node string
	// Audiences are the accepted audiences of tokens; if there are none, the API server's own. The
	// node's audience, mig-exporter/NODE, is always accepted.
	Audiences []string
	// FollowsLabels is set if this program applies the layout that the label nvidia.com/mig.config
	// names. Then the label does not show that mig-manager owns the GPUs; a pod of mig-manager does.
	FollowsLabels bool
	// OwnPod is NAMESPACE/NAME of the pod that this process runs in; empty if it is unknown. We also
	// know the pod by its UID in the service account's token.
	OwnPod string
	// Now is the clock for the cache of reviewed tokens.
	Now func() time.Time
}

// Cluster is a client of the API server. It is safe for concurrent use.
type Cluster struct {
	opts    Options
	timeout time.Duration // of one request
	// reviews has an item for each token that is being reviewed, up to maxReviews.
	reviews chan struct{}

	mu    sync.Mutex
	known map[tokenHash]cachedActor // owners of tokens that were reviewed
}

var _ control.Cluster = (*Cluster)(nil)

// New returns a Cluster. It sends no requests.
func New(opts Options) (*Cluster, error) {
	if opts.Node == "" {
		return nil, fmt.Errorf(
			"cluster: the name of the node is not known: %w",
			gpu.ErrInvalidArgument,
		)
	}

	return &Cluster{
		opts:    opts,
		timeout: requestTimeout,
		reviews: make(chan struct{}, maxReviews),
		known:   map[tokenHash]cachedActor{},
	}, nil
}

// request sends a request and decodes its answer, within the timeout.
func (c *Cluster) request(ctx context.Context, r kubeapi.Request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	return c.opts.API.Do(ctx, r, answer)
}

// object is the metadata of an object.
type object struct {
	Name            string            `json:"name"`
	ResourceVersion string            `json:"resourceVersion"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	// ManagedFields are the fields that each manager wrote last.
	// https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
	ManagedFields []struct {
		Manager string    `json:"manager"`
		Time    time.Time `json:"time"`
		Fields  struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
			Spec map[string]json.RawMessage `json:"f:spec"`
		} `json:"fieldsV1"`
	} `json:"managedFields"`
}

// node is the node's object.
type node struct {
	Metadata object `json:"metadata"`
	Spec     struct {
		Unschedulable bool `json:"unschedulable"`
	} `json:"spec"`
}

func (c *Cluster) nodePath() string { return "/api/v1/nodes/" + url.PathEscape(c.opts.Node) }

func (c *Cluster) getNode(ctx context.Context) (node, error) {
	var n node

	err := c.request(ctx, kubeapi.Request{Method: http.MethodGet, Path: c.nodePath()}, &n)
	switch {
	case errors.Is(err, gpu.ErrNotFound):
		return node{}, fmt.Errorf(
			"no node %q, is --kubernetes.node-name right?: %w",
			c.opts.Node,
			err,
		)
	case err != nil:
		return node{}, fmt.Errorf("node %s: %w", c.opts.Node, err)
	}

	return n, nil
}
