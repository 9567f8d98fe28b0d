package podmeta

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

const (
	// maxBody bounds an answer in bytes. The metadata of a pod takes some kilobytes, and a node has hundreds of pods.
	maxBody = 32 << 20
	// timeout bounds one request.
	timeout = 10 * time.Second
)

// errNoAnswer is the cause of a request that took too long.
var errNoAnswer = errors.New("the API server did not answer in time")

// acceptMetadata asks for the pods' metadata without their specs and states.
const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// api reads pods and claims from the API server.
type api struct {
	client       *kubeapi.Client
	listRequest  kubeapi.Request // of pods, without a query
	nodeSelector string          // the field selector of the node's pods
	labels       []string
}

func newAPI(opts Options, client *kubeapi.Client) (*api, error) {
	if opts.Node == "" {
		return nil, fmt.Errorf("the name of the node is not known: %w", gpu.ErrInvalidArgument)
	}
	return &api{
		client: client,
		listRequest: kubeapi.Request{
			Method: http.MethodGet,
			Path:   "/api/v1/pods",
			Accept: acceptMetadata,
			Limit:  maxBody,
		},
		nodeSelector: "spec.nodeName=" + opts.Node,
		labels:       removeDuplicates(opts.Labels),
	}, nil
}

// removeDuplicates keeps the first of each: a label that is told twice would make a series that is not valid.
func removeDuplicates(names []string) []string {
	var out []string
	for _, name := range names {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func (a *api) closeConnections() { a.client.Close() }

// podName identifies a pod at a time. A successor may have the same.
type podName struct{ namespace, name string }

// podList is the pods of the node in one answer of the API server. It is immutable.
type podList struct {
	started       time.Time // when the request was
	consistent    bool      // it has what was written before; other answers come from a cache, which may lag behind
	pods          map[podName]gpu.PodMetadata
	uids          map[string]podName
	hasOwnPod     bool // it has the pod that this program runs in
	ownUIDUnknown bool // that pod's UID is not known
}

// hasPod reports whether the answer has a pod of the UID, or one of the name.
func (a *podList) hasPod(id podID) bool {
	_, byUID := a.uids[id.uid]
	_, byName := a.pods[id.podName]
	return id.uid != "" && byUID || id.name != "" && byName
}

// podMetadata is what is read of a pod. What it has no field for, such as managedFields, is skipped.
type podMetadata struct {
	Metadata struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		UID             string            `json:"uid"`
		Created         time.Time         `json:"creationTimestamp"`
		Labels          map[string]string `json:"labels"`
		OwnerReferences []ownerReference  `json:"ownerReferences"`
		Annotations     struct {
			MIG string `json:"hami.io/vgpu-mig-allocations"`
			// The UID that the kubelet knows a static pod by. The UID of its object in the API server is another.
			StaticUID string `json:"kubernetes.io/config.mirror"`
		} `json:"annotations"`
	} `json:"metadata"`
}

// listPods lists the pods of the node that have not ended: from the API server's cache, or a consistent list, which is more work
// for it. An error wraps gpu.ErrNoPermission if the service account may not list pods, else gpu.ErrUnavailable.
func (a *api) listPods(ctx context.Context, consistent bool) (*podList, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()
	request := a.listRequest
	// A pod that has ended holds nothing.
	request.Query = url.Values{"fieldSelector": {a.nodeSelector + ",status.phase!=Succeeded,status.phase!=Failed"}}
	if !consistent {
		request.Query.Set("resourceVersion", "0")
	}
	out := &podList{
		started: time.Now(), consistent: consistent,
		pods: map[podName]gpu.PodMetadata{}, uids: map[string]podName{},
	}
	err := kubeapi.List(ctx, a.client, request, func(pod *podMetadata) {
		m := &pod.Metadata
		name, uid := podName{m.Namespace, m.Name}, m.UID
		if uid != "" {
			out.uids[uid] = name
		}
		if m.Annotations.StaticUID != "" {
			uid = m.Annotations.StaticUID
			out.uids[uid] = name
		}
		out.pods[name] = gpu.PodMetadata{
			UID:        uid,
			Workload:   workloadOf(m.OwnerReferences, m.Labels, m.Created),
			Labels:     a.selectLabels(m.Labels),
			MIGDevices: migDevices(m.Annotations.MIG),
		}
	})
	if err != nil {
		return nil, err
	}
	own := a.client.PodUID()
	_, out.hasOwnPod = out.uids[own]
	out.ownUIDUnknown = own == ""
	return out, nil
}

// listPodNames lists the names of the pods of the node, those that have ended included.
func (a *api) listPodNames(ctx context.Context) (map[podName]bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()
	request := a.listRequest
	request.Query = url.Values{"fieldSelector": {a.nodeSelector}, "resourceVersion": {"0"}}
	out := map[podName]bool{}
	err := kubeapi.List(ctx, a.client, request, func(pod *podMetadata) {
		out[podName{pod.Metadata.Namespace, pod.Metadata.Name}] = true
	})
	return out, err
}

// selectLabels returns the labels to tell, in the order in which they were configured.
func (a *api) selectLabels(labels map[string]string) []gpu.Label {
	var out []gpu.Label
	for _, name := range a.labels {
		if value, ok := labels[name]; ok {
			out = append(out, gpu.Label{Name: name, Value: value})
		}
	}
	return out
}
