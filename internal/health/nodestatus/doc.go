// Package nodestatus writes to the cluster's API server how this node is: conditions of the Node, and
// Events on it. It is of no consequence to the rest of the program whether the API server answers:
// each writer has a goroutine of its own, and bounded memory.
//
// The service account needs, by ClusterRole:
//
//	""  nodes/status  patch   for the conditions
//	""  events        create  for the Events, in the namespace default
//
// If a right is missing, the log names it.
package nodestatus

import (
	"context"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// API sends requests to the API server. It is a *kubeapi.Client.
type API interface {
	Do(ctx context.Context, r kubeapi.Request, answer any) error
}

// manager is this program's name among the managers of the node's fields.
const manager = "mig-exporter-health"

const (
	requestTimeout = 5 * time.Second
	// stopTimeout bounds what is still written when the program stops.
	stopTimeout = 2 * time.Second
	// After a failure we wait longer and longer.
	minRetry = 5 * time.Second
	maxRetry = time.Minute
)
