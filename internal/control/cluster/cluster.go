// Package cluster is the node in its Kubernetes cluster, for partition control: who may ask for what, who else manages
// the partitions of the node's GPUs, and whether new pods may come.
//
// The service account needs, by ClusterRole:
//
//	authentication.k8s.io  tokenreviews                    create, for Kubernetes tokens
//	authorization.k8s.io   subjectaccessreviews            create, for Kubernetes tokens
//	""                     nodes                           get, and patch to cordon
//	resource.k8s.io        resourceslices                  list, if the cluster has them
//	inference.redhat.com   instaslices, nodeaccelerators   list, if the cluster has them
//
// If a right is missing, errors name it: they are, or contain, a *kubeapi.RefusedError.
//
// Users of partition control in a cluster need verbs on partitions of the group mig-exporter.io, whose names
// are those of nodes: get reads; plan, apply, mode, force and take-over are as in docs/partition-control.md. There is no such
// resource in the API server; it only decides who may.
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

// timeout bounds one request to the API server.
const timeout = 5 * time.Second

// Options configures a Cluster.
type Options struct {
	API *kubeapi.Client
	// Node is the name of the node, as Kubernetes has it.
	Node string
	// Audiences are those of which a token must be for one; none is the API server's own.
	Audiences []string
	// Now is the clock by which a token is believed for a while.
	Now func() time.Time
}

// Cluster asks the API server. It may be used from several goroutines.
type Cluster struct {
	opts Options
	// reviews has a place for each token that may be asked for at once.
	reviews chan struct{}

	mu    sync.Mutex
	known map[tokenHash]identified
}

var _ control.Cluster = (*Cluster)(nil)

// New asks nothing yet.
func New(opts Options) (*Cluster, error) {
	if opts.Node == "" {
		return nil, fmt.Errorf("cluster: the name of the node is not known: %w", gpu.ErrInvalidArgument)
	}
	return &Cluster{opts: opts, reviews: make(chan struct{}, maxReviews), known: map[tokenHash]identified{}}, nil
}

// do asks within the timeout.
func (c *Cluster) do(ctx context.Context, r kubeapi.Request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.opts.API.Do(ctx, r, answer)
}

// object is what is read of any object's metadata.
type object struct {
	Name            string            `json:"name"`
	ResourceVersion string            `json:"resourceVersion"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	// ManagedFields tell who wrote which fields last.
	// https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
	ManagedFields []struct {
		Manager string `json:"manager"`
		Fields  struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		} `json:"fieldsV1"`
	} `json:"managedFields"`
}

// node is what is read of the node.
type node struct {
	Metadata object `json:"metadata"`
	Spec     struct {
		Unschedulable bool `json:"unschedulable"`
	} `json:"spec"`
}

func (c *Cluster) path() string { return "/api/v1/nodes/" + url.PathEscape(c.opts.Node) }

func (c *Cluster) node(ctx context.Context) (node, error) {
	var n node
	err := c.do(ctx, kubeapi.Request{Method: http.MethodGet, Path: c.path()}, &n)
	switch {
	case errors.Is(err, gpu.ErrNotFound):
		return node{}, fmt.Errorf("no node %q, is --kubernetes.node-name right?: %w", c.opts.Node, err)
	case err != nil:
		return node{}, fmt.Errorf("node %s: %w", c.opts.Node, err)
	}
	return n, nil
}
