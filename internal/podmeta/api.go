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
	// maxBody bounds a response in bytes. The metadata of a pod takes some kilobytes, and a node
	// has hundreds of pods.
	maxBody = 32 << 20
	// timeout bounds one request.
	timeout = 10 * time.Second
)

// errNoAnswer is the cancellation cause of a request that timed out.
var errNoAnswer = errors.New("the API server did not answer in time")

// acceptMetadata requests the metadata of pods without their specs and states.
const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// api reads pods and claims from the API server.
type api struct {
	client       *kubeapi.Client
	listRequest  kubeapi.Request // of pods, without a query
	nodeSelector string          // the field selector of the node's pods
	labels       []string        // the labels to return, each once
	workload     string          // see Options.WorkloadLabel
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
		workload:     opts.WorkloadLabel,
	}, nil
}

// removeDuplicates keeps the first of equal names: a label that is listed twice would make an
// invalid series.
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

// podName names a pod at one time. A later pod may have the same name.
type podName struct{ namespace, name string }

// podList is the pods of the node that have not ended, by one response of the API server. It is
// immutable.
type podList struct {
	started       time.Time // when the request was started
	consistent    bool      // it does not come from the API server's cache, which may lag behind
	pods          map[podName]gpu.PodMetadata
	uids          map[string]podName // the same pods by UID; a static pod has two
	hasOwnPod     bool               // it has this program's own pod
	ownUIDUnknown bool               // we do not know the UID of this program's own pod
	invalid       map[invalidAnnotation]bool
	former        []podAnnotations // annotations under the former domain
}

// hasPod reports whether the list has a pod with the UID, or one with the name.
func (l *podList) hasPod(id podID) bool {
	_, byUID := l.uids[id.uid]
	_, byName := l.pods[id.podName]

	return id.uid != "" && byUID || id.name != "" && byName
}

// podMetadata has the fields of a pod that listPods decodes. It skips all others, such as
// managedFields.
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
			// StaticUID is the UID that the kubelet has for a static pod. The pod's object in the
			// API server has another UID.
			StaticUID string `json:"kubernetes.io/config.mirror"`
			rightsizingAnnotations
			groupAnnotations
		} `json:"annotations"`
	} `json:"metadata"`
}

// listPods lists the pods of the node that have not ended. They come from the API server's cache
// or, if consistent is set, from its storage, which costs it more. An error wraps
// gpu.ErrNoPermission if the service account may not list pods, otherwise gpu.ErrUnavailable.
func (a *api) listPods(ctx context.Context, consistent bool) (*podList, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()

	request := a.listRequest

	request.Query = url.Values{
		"fieldSelector": {a.nodeSelector + ",status.phase!=Succeeded,status.phase!=Failed"},
	}
	if !consistent {
		request.Query.Set("resourceVersion", "0")
	}

	out := &podList{
		started:    time.Now(),
		consistent: consistent,
		pods:       map[podName]gpu.PodMetadata{},
		uids:       map[string]podName{},
		invalid:    map[invalidAnnotation]bool{},
	}

	err := kubeapi.List(ctx, a.client, request, func(pod *podMetadata) {
		m := &pod.Metadata
		name := podName{m.Namespace, m.Name}

		uid := m.UID
		if uid != "" {
			out.uids[uid] = name
		}

		if m.Annotations.StaticUID != "" {
			uid = m.Annotations.StaticUID
			out.uids[uid] = name
		}

		hints, invalid, former := m.Annotations.parse()
		if len(former) > 0 {
			out.former = append(out.former, podAnnotations{name, former})
		}

		for _, text := range invalid {
			out.invalid[invalidAnnotation{name, text}] = true
		}

		hints.Workload = m.Labels[a.workload]
		out.pods[name] = gpu.PodMetadata{
			UID:         uid,
			Workload:    workloadOf(m.OwnerReferences, m.Labels, m.Created),
			Template:    TemplateOf(m.Labels),
			Labels:      a.selectLabels(m.Labels),
			Rightsizing: hints,
			Group:       m.Annotations.groupOf(m.Labels),
			MIGDevices:  migDevices(m.Annotations.MIG),
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

// listPodNames lists the names of all pods of the node, including those that have ended.
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

// selectLabels returns the configured labels that the pod has, in the order of the configuration.
func (a *api) selectLabels(labels map[string]string) []gpu.Label {
	var out []gpu.Label

	for _, name := range a.labels {
		if value, ok := labels[name]; ok {
			out = append(out, gpu.Label{Name: name, Value: value})
		}
	}

	return out
}
