// Package nodestatus writes the state of this node to the cluster's API server: conditions of the
// Node, and Events on it. If the API server does not answer, the rest of the program does not
// notice: each writer has a goroutine of its own, and bounded memory.
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
	// stopTimeout bounds how long we still write when the program stops.
	stopTimeout = 2 * time.Second
	// After a failure we wait minRetry, then longer and longer, up to maxRetry.
	minRetry = 5 * time.Second
	maxRetry = time.Minute
)
