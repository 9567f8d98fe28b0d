package podmeta

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// maxBody bounds an answer in bytes. The metadata of a pod takes some kilobytes, and a node has hundreds of pods.
const maxBody = 32 << 20

// acceptMetadata asks for the pods' metadata without their specs and states.
const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// api reads pods from the API server.
type api struct {
	client *kubeapi.Client
	list   kubeapi.Request
	labels []string
}

func newAPI(opts Options, client *kubeapi.Client) (*api, error) {
	if opts.Node == "" {
		return nil, fmt.Errorf("the name of the node is not known: %w", gpu.ErrInvalidArgument)
	}
	return &api{
		client: client,
		list: kubeapi.Request{
			Method: http.MethodGet,
			Path:   "/api/v1/pods",
			Query: url.Values{
				"fieldSelector": {"spec.nodeName=" + opts.Node},
				// From the API server's cache, not from etcd.
				"resourceVersion": {"0"},
			},
			Accept: acceptMetadata,
			Limit:  maxBody,
		},
		labels: distinct(opts.Labels),
	}, nil
}

// distinct keeps the first of each: a label that is told twice would make a series that is not valid.
func distinct(names []string) []string {
	var out []string
	for _, name := range names {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func (a *api) close() { a.client.Close() }

// podList is the part of a PartialObjectMetadataList (or a PodList) that is read.
type podList struct {
	Items []struct {
		Metadata struct {
			Name            string            `json:"name"`
			Namespace       string            `json:"namespace"`
			Labels          map[string]string `json:"labels"`
			Annotations     map[string]string `json:"annotations"`
			OwnerReferences []ownerReference  `json:"ownerReferences"`
		} `json:"metadata"`
	} `json:"items"`
}

type ownerReference struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Controller bool   `json:"controller"`
}

// pods reads the metadata of all pods of the node. An error wraps gpu.ErrNoPermission where the service account may not
// list pods, else gpu.ErrUnavailable.
func (a *api) pods(ctx context.Context) (map[podName]gpu.PodMetadata, error) {
	var list podList
	if err := a.client.Do(ctx, a.list, &list); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	out := make(map[podName]gpu.PodMetadata, len(list.Items))
	for i := range list.Items {
		m := &list.Items[i].Metadata
		out[podName{m.Namespace, m.Name}] = gpu.PodMetadata{
			Workload:   workload(m.OwnerReferences, m.Labels),
			Labels:     a.choose(m.Labels),
			MIGDevices: migDevices(m.Annotations[migAnnotation]),
		}
	}
	return out, nil
}

// choose picks the labels to tell, in the order in which they were configured.
func (a *api) choose(labels map[string]string) []gpu.Label {
	var out []gpu.Label
	for _, name := range a.labels {
		if value, ok := labels[name]; ok {
			out = append(out, gpu.Label{Name: name, Value: value})
		}
	}
	return out
}

// workload names what controls a pod. Between a Deployment and its pods stands a ReplicaSet named after both the
// Deployment and the pods' template, whose hash is a label of the pods.
func workload(owners []ownerReference, labels map[string]string) string {
	at := slices.IndexFunc(owners, func(o ownerReference) bool { return o.Controller })
	if at < 0 {
		return ""
	}
	owner := owners[at]
	if hash := labels["pod-template-hash"]; owner.Kind == "ReplicaSet" && hash != "" {
		if deployment, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && deployment != "" {
			return "Deployment/" + deployment
		}
	}
	return owner.Kind + "/" + owner.Name
}
