// Package nodelabels applies the layout that a label of the node names, in the place of the GPU
// operator's mig-manager, and reports whether the node has that layout: whether it stands. It is a
// client of the engine, as the HTTP server is, and never forces or takes over.
//
// It does what mig-manager does (https://github.com/NVIDIA/mig-parted, cmd/nvidia-mig-manager and
// pkg/mig/reconfigure). mig-manager follows the label nvidia.com/mig.config and reports pending,
// rebooting, success or failed in nvidia.com/mig.config.state. Before a change it pauses the
// operator's other clients of the GPUs: it sets their labels nvidia.com/gpu.deploy.*, unless they
// are false, to paused-for-mig-change, and waits up to five minutes for their pods to end.
// Afterwards it sets the labels to true. If the node has the layout already, it reports success and
// does nothing else.
package nodelabels

import (
	"context"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The labels of mig-manager.
const (
	configLabel = "nvidia.com/mig.config"
	stateLabel  = "nvidia.com/mig.config.state"
)

// The annotations of this program.
const (
	// reasonAnnotation says why the state is failed, or what is left to do after a success. It is
	// no label, since the value of a label cannot be a sentence.
	reasonAnnotation = "mig-exporter.io/mig-config-reason"
	// attemptAnnotation has the record of the attempt that the state is about.
	attemptAnnotation = "mig-exporter.io/mig-config-attempt"
	// pausedAnnotation has the former values of the labels that we have paused, in JSON, see
	// pauseClients.
	pausedAnnotation = "mig-exporter.io/paused-clients"
)

// State is a value of nvidia.com/mig.config.state.
type State string

// The states of mig-manager.
const (
	Pending   State = "pending"
	Rebooting State = "rebooting"
	Success   State = "success"
	Failed    State = "failed"
)

// Node is what we read of the node. Do not modify it.
type Node struct {
	Labels      map[string]string
	Annotations map[string]string
	Managers    map[string]string // the field manager that wrote each label last
}

// Change is what we change of the node. An empty value removes its key.
type Change struct {
	Labels      map[string]string
	Annotations map[string]string
}

// Pod is a pod of the node that has not ended.
type Pod struct {
	Name      string   // NAMESPACE/NAME
	NodeKeys  []string // the keys of the node labels that it requires
	DaemonSet bool     // a DaemonSet owns it, and so ends it when the node's labels do not match
	Own       bool     // this process runs in it
}

// Cluster is the API server, for this node.
type Cluster interface {
	// Node reads the node: from the API server's cache, which may be a moment old, or exactly.
	Node(ctx context.Context, exact bool) (Node, error)
	// ChangeNode reads the node and makes the change that decide returns. If the node has changed
	// meanwhile, it reads it and calls decide again. For an empty change it sends no request.
	ChangeNode(ctx context.Context, decide func(Node) Change) error
	// ConfigMap returns the data of a ConfigMap.
	ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error)
	// Pods lists the pods of the node.
	Pods(ctx context.Context) ([]Pod, error)
	// MIGManager returns the pods of mig-manager on the node.
	MIGManager(ctx context.Context) (pods []string, err error)
}

// Engine is partition control; *control.Engine implements it.
type Engine interface {
	Plan(ctx context.Context, by control.Actor, r api.PlanRequest) (*api.Plan, error)
	Start(ctx context.Context, by control.Actor, r api.OperationRequest) (*api.Operation, error)
	SetMode(
		ctx context.Context, by control.Actor, id gpu.UUID, r api.ModeRequest,
	) (*api.Operation, error)
	Operation(id string) (*api.Operation, error)
	Operations() *api.Operations
}

var _ Engine = (*control.Engine)(nil)

// clientLabels returns the labels that mig-manager pauses. Each decides whether one client of the
// GPUs runs on the node. The last one is for clients that are not the operator's; mig-manager pauses
// it since release 0.15.
func clientLabels() []string {
	return []string{
		devicePluginLabel,
		"nvidia.com/gpu.deploy.gpu-feature-discovery",
		"nvidia.com/gpu.deploy.dcgm-exporter",
		"nvidia.com/gpu.deploy.dcgm",
		"nvidia.com/gpu.deploy.nvsm",
		"nvidia.com/gpu.deploy.client",
	}
}

const devicePluginLabel = "nvidia.com/gpu.deploy.device-plugin"

// The values of clientLabels. The client runs only while its label has the value deployed.
const (
	deployed = "true"
	paused   = "paused-for-mig-change"
)

// ownKeys returns the keys of the node labels that the pod of this process requires.
func ownKeys(pods []Pod) []string {
	i := slices.IndexFunc(pods, func(p Pod) bool { return p.Own })
	if i < 0 {
		return nil
	}

	return pods[i].NodeKeys
}
