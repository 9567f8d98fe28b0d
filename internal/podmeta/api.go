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
	client *kubeapi.Client
	list   kubeapi.Request // of pods, without a query
	node   string          // the field selector of the node's pods
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
			Accept: acceptMetadata,
			Limit:  maxBody,
		},
		node:   "spec.nodeName=" + opts.Node,
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

// podName identifies a pod at a time. A successor may have the same.
type podName struct{ namespace, name string }

// answer is the pods of the node in one answer of the API server. It is immutable.
type answer struct {
	started    time.Time // when the request was
	consistent bool      // it has what was written before; other answers come from a cache, which may lag behind
	pods       map[podName]gpu.PodMetadata
	uids       map[string]podName
	own        bool // it has the pod that this program runs in
	anonymous  bool // that pod's UID is not known
}

// has reports whether the answer has a pod of the UID, or one of the name.
func (a *answer) has(id podID) bool {
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

// pods lists the pods of the node that have not ended: from the API server's cache, or a consistent list, which is more work
// for it. An error wraps gpu.ErrNoPermission if the service account may not list pods, else gpu.ErrUnavailable.
func (a *api) pods(ctx context.Context, consistent bool) (*answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()
	request := a.list
	// A pod that has ended holds nothing.
	request.Query = url.Values{"fieldSelector": {a.node + ",status.phase!=Succeeded,status.phase!=Failed"}}
	if !consistent {
		request.Query.Set("resourceVersion", "0")
	}
	out := &answer{
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
			Workload:   workload(m.OwnerReferences, m.Labels, m.Created),
			Labels:     a.choose(m.Labels),
			MIGDevices: migDevices(m.Annotations.MIG),
		}
	})
	if err != nil {
		return nil, err
	}
	own := a.client.PodUID()
	_, out.own = out.uids[own]
	out.anonymous = own == ""
	return out, nil
}

// names lists the names of the pods of the node, those that have ended included.
func (a *api) names(ctx context.Context) (map[podName]bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()
	request := a.list
	request.Query = url.Values{"fieldSelector": {a.node}, "resourceVersion": {"0"}}
	out := map[podName]bool{}
	err := kubeapi.List(ctx, a.client, request, func(pod *podMetadata) {
		out[podName{pod.Metadata.Namespace, pod.Metadata.Name}] = true
	})
	return out, err
}

// choose returns the labels to tell, in the order in which they were configured.
func (a *api) choose(labels map[string]string) []gpu.Label {
	var out []gpu.Label
	for _, name := range a.labels {
		if value, ok := labels[name]; ok {
			out = append(out, gpu.Label{Name: name, Value: value})
		}
	}
	return out
}
