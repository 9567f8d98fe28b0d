package podmeta

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// DefaultCredentialsDir is where a pod finds the credentials of its service account.
const DefaultCredentialsDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// maxBody bounds an answer in bytes. The metadata of a pod takes some kilobytes, and a node has hundreds of pods.
const maxBody = 32 << 20

// acceptMetadata asks for the pods' metadata without their specs and states.
const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// InClusterServer is the URL of the API server of the cluster that this process runs in, from its environment.
func InClusterServer(getenv func(string) string) (string, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return "", fmt.Errorf("not in a Kubernetes cluster: KUBERNETES_SERVICE_HOST and _PORT are not set: %w", gpu.ErrNotFound)
	}
	return "https://" + net.JoinHostPort(host, port), nil
}

// api reads pods from the API server.
type api struct {
	client *http.Client
	url    string
	token  string // path of the file
	labels []string
}

func newAPI(opts Options, transport http.RoundTripper) (*api, error) {
	server, err := url.Parse(opts.Server)
	switch {
	case err != nil:
		return nil, fmt.Errorf("API server: %w", err)
	case server.Scheme != "https" || server.Host == "":
		return nil, fmt.Errorf("API server %q: expected https://<host>:<port>: %w", opts.Server, gpu.ErrInvalidArgument)
	case opts.Node == "":
		return nil, fmt.Errorf("the name of the node is not known: %w", gpu.ErrInvalidArgument)
	}
	pods := server.JoinPath("/api/v1/pods")
	pods.RawQuery = url.Values{
		"fieldSelector": {"spec.nodeName=" + opts.Node},
		// From the API server's cache, not from etcd.
		"resourceVersion": {"0"},
	}.Encode()
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &api{
		client: &http.Client{Transport: transport, CheckRedirect: refuse},
		url:    pods.String(),
		token:  filepath.Join(opts.CredentialsDir, "token"),
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

func (a *api) close() { a.client.CloseIdleConnections() }

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
	body, err := a.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	defer body.Close()
	var list podList
	if err := json.NewDecoder(http.MaxBytesReader(nil, body, maxBody)).Decode(&list); err != nil {
		return nil, fmt.Errorf("list pods: %w: %w", err, gpu.ErrUnavailable)
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

func (a *api) get(ctx context.Context) (io.ReadCloser, error) {
	token, err := os.ReadFile(a.token)
	if err != nil {
		return nil, fmt.Errorf("token: %w: %w", err, gpu.ErrUnavailable)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Accept", acceptMetadata+",application/json")
	response, err := a.client.Do(request)
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errNoAnswer) {
			err = cause
		}
		return nil, fmt.Errorf("%w: %w", err, gpu.ErrUnavailable)
	}
	switch response.StatusCode {
	case http.StatusOK:
		return response.Body, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		err = fmt.Errorf("the API server says %s: %w", response.Status, gpu.ErrNoPermission)
	default:
		err = fmt.Errorf("the API server says %s: %w", response.Status, gpu.ErrUnavailable)
	}
	return nil, errors.Join(err, response.Body.Close())
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
