package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/nodelabels"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// migManagerPods selects the pods of the GPU operator's mig-manager.
// https://github.com/NVIDIA/gpu-operator, assets/state-mig-manager/0600_daemonset.yaml
const migManagerPods = "app=nvidia-mig-manager"

// metadataOnly asks for an object without its spec and status, which are many times larger than the
// metadata of a node.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// labelsManager is this program's name among the managers of the labels that it writes.
const labelsManager = "mig-exporter-node-labels"

var _ nodelabels.Cluster = (*Cluster)(nil)

// Node implements nodelabels.Cluster. Unless exact is set, the API server answers from its cache.
func (c *Cluster) Node(ctx context.Context, exact bool) (nodelabels.Node, error) {
	query := url.Values{}
	if !exact {
		query.Set("resourceVersion", "0")
	}

	var n node

	err := c.request(ctx, kubeapi.Request{
		Method: http.MethodGet, Path: c.nodePath(), Query: query, Accept: metadataOnly,
	}, &n)
	if err != nil {
		return nodelabels.Node{}, fmt.Errorf("node %s: %w", c.opts.Node, err)
	}

	return n.forLabels(), nil
}

// forLabels returns the node for package nodelabels.
func (n *node) forLabels() nodelabels.Node {
	managers := map[string]string{}
	lastWritten := map[string]time.Time{} // by label

	// Several managers can have written the same value: the last one counts.
	for _, m := range n.Metadata.ManagedFields {
		for field := range m.Fields.Metadata.Labels {
			label, ok := strings.CutPrefix(field, "f:")
			if ok && !m.Time.Before(lastWritten[label]) {
				managers[label] = m.Manager
				lastWritten[label] = m.Time
			}
		}
	}

	return nodelabels.Node{
		Labels:      n.Metadata.Labels,
		Annotations: n.Metadata.Annotations,
		Managers:    managers,
	}
}

// ChangeNode implements nodelabels.Cluster.
func (c *Cluster) ChangeNode(
	ctx context.Context,
	decide func(nodelabels.Node) nodelabels.Change,
) error {
	return c.patchNode(ctx, labelsManager, func(n node) map[string]any {
		change := decide(n.forLabels())
		metadata := map[string]any{"resourceVersion": n.Metadata.ResourceVersion}

		addChanges(metadata, "labels", n.Metadata.Labels, change.Labels)
		addChanges(metadata, "annotations", n.Metadata.Annotations, change.Annotations)

		if len(metadata) == 1 {
			return nil
		}

		return map[string]any{"metadata": metadata}
	})
}

// addChanges adds the wanted values to a merge patch, as far as they differ from the current ones. An
// empty value removes its key.
func addChanges(metadata map[string]any, field string, current, wanted map[string]string) {
	changes := map[string]any{}

	for key, value := range wanted {
		switch now, ok := current[key]; {
		case value == now && (ok || value == ""):
		case value == "":
			changes[key] = nil // null removes a key
		default:
			changes[key] = value
		}
	}

	if len(changes) > 0 {
		metadata[field] = changes
	}
}

// ConfigMap implements nodelabels.Cluster.
func (c *Cluster) ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	var configMap struct {
		Data map[string]string `json:"data"`
	}

	err := c.request(ctx, kubeapi.Request{
		Method: http.MethodGet,
		Path: "/api/v1/namespaces/" + url.PathEscape(namespace) + "/configmaps/" +
			url.PathEscape(name),
	}, &configMap)
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: %w", namespace, name, err)
	}

	return configMap.Data, nil
}

// scheduledPod is a pod with the labels that it requires of its node.
type scheduledPod struct {
	pod
	Spec struct {
		NodeSelector map[string]string `json:"nodeSelector"`
		Affinity     struct {
			Node struct {
				Required struct {
					Terms []struct {
						Expressions []struct {
							Key string `json:"key"`
						} `json:"matchExpressions"`
					} `json:"nodeSelectorTerms"`
				} `json:"requiredDuringSchedulingIgnoredDuringExecution"`
			} `json:"nodeAffinity"`
		} `json:"affinity"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// Pods implements nodelabels.Cluster.
func (c *Cluster) Pods(ctx context.Context) ([]nodelabels.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	var list []nodelabels.Pod

	ownUID := c.opts.API.PodUID()

	err := kubeapi.List(ctx, c.opts.API, c.podsOfNode(""), func(p *scheduledPod) {
		if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			return
		}

		name := p.Metadata.Namespace + "/" + p.Metadata.Name
		list = append(list, nodelabels.Pod{
			Name:      name,
			NodeKeys:  p.nodeKeys(),
			DaemonSet: p.isReplaced(),
			Own:       name == c.opts.OwnPod || ownUID != "" && p.Metadata.UID == ownUID,
		})
	})
	if err != nil {
		return nil, fmt.Errorf("pods of the node: %w", err)
	}

	return list, nil
}

// nodeKeys returns the keys of the labels that the pod's node must have.
func (p *scheduledPod) nodeKeys() []string {
	var keys []string
	for key := range p.Spec.NodeSelector {
		keys = append(keys, key)
	}

	for _, term := range p.Spec.Affinity.Node.Required.Terms {
		for _, e := range term.Expressions {
			keys = append(keys, e.Key)
		}
	}

	slices.Sort(keys)

	return slices.Compact(keys)
}

// podsOfNode returns the request for the node's pods, or those with some labels unless that is empty.
func (c *Cluster) podsOfNode(labels string) kubeapi.Request {
	query := url.Values{"fieldSelector": {"spec.nodeName=" + c.opts.Node}}
	if labels != "" {
		query.Set("labelSelector", labels)
	}

	return kubeapi.Request{
		Method: http.MethodGet, Path: "/api/v1/pods", Query: query, Limit: maxList,
	}
}

// MIGManager implements nodelabels.Cluster. A pod counts until it is gone.
func (c *Cluster) MIGManager(ctx context.Context) (pods []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	err = kubeapi.List(ctx, c.opts.API, c.podsOfNode(migManagerPods), func(p *pod) {
		if p.Spec.NodeName == "" || p.Spec.NodeName == c.opts.Node {
			pods = append(pods, p.Metadata.Namespace+"/"+p.Metadata.Name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("pods of mig-manager: %w", err)
	}

	return pods, nil
}

// addMIGManager adds mig-manager as an owner if a pod of it is on the node.
func (c *Cluster) addMIGManager(ctx context.Context, out ownersByGPU) error {
	pods, err := c.MIGManager(ctx)
	if len(pods) > 0 {
		out.add("", "mig-manager (pod %s)", strings.Join(pods, ", "))
	}

	return err
}
