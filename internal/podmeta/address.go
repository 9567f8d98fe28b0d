package podmeta

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// addressedPod has the fields of a pod that PodAddress needs.
type addressedPod struct {
	Metadata struct {
		UID         string `json:"uid"`
		Deletion    string `json:"deletionTimestamp"`
		Annotations struct {
			StaticUID string `json:"kubernetes.io/config.mirror"`
		} `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		HostNetwork bool `json:"hostNetwork"`
	} `json:"spec"`
	Status struct {
		Phase   string `json:"phase"`
		PodIP   string `json:"podIP"`
		HostIP  string `json:"hostIP"`
		HostIPs []struct {
			IP string `json:"ip"`
		} `json:"hostIPs"`
	} `json:"status"`
}

// PodAddress returns the address of a pod of this node, and the addresses of the node itself. An
// error wraps gpu.ErrNotFound if no pod of the name has the UID or it does not run,
// gpu.ErrInvalidArgument if it has no address of its own, and gpu.ErrUnavailable or
// gpu.ErrNoPermission if the API server does not answer.
func (p *Poller) PodAddress(
	ctx context.Context,
	namespace, name, uid string,
) (pod netip.Addr, node []netip.Addr, err error) {
	list, err := p.api.listByName(ctx, namespace, name)
	if err != nil {
		return netip.Addr{}, nil, err
	}

	for i := range list {
		if uid != "" &&
			(list[i].Metadata.UID == uid || list[i].Metadata.Annotations.StaticUID == uid) {
			return list[i].addresses()
		}
	}

	return netip.Addr{}, nil, fmt.Errorf(
		"pod %s/%s with UID %s: %w",
		namespace,
		name,
		uid,
		gpu.ErrNotFound,
	)
}

// listByName returns the node's pod of a name, or none. It lists pods instead of getting the one,
// so that it needs no other permission than listPods.
func (a *api) listByName(ctx context.Context, namespace, name string) ([]addressedPod, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()
	request := kubeapi.Request{
		Method: http.MethodGet,
		Path:   "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods",
		Query: url.Values{"fieldSelector": {a.nodeSelector + ",metadata.name=" + name},
			"resourceVersion": {"0"}},
	}

	var list []addressedPod
	err := kubeapi.List(
		ctx,
		a.client,
		request,
		func(pod *addressedPod) { list = append(list, *pod) },
	)

	return list, err
}

// addresses returns the address of a pod and the addresses of its node.
func (p *addressedPod) addresses() (pod netip.Addr, node []netip.Addr, err error) {
	// While a pod is being deleted, another pod may already have its address.
	if p.Status.Phase != "Running" || p.Metadata.Deletion != "" {
		return netip.Addr{}, nil, fmt.Errorf(
			"its phase is %.64q or it is being deleted; expected Running: %w",
			p.Status.Phase,
			gpu.ErrNotFound,
		)
	}

	if p.Spec.HostNetwork {
		return netip.Addr{}, nil, fmt.Errorf(
			"it is in the network of its node: %w",
			gpu.ErrInvalidArgument,
		)
	}

	pod, err = netip.ParseAddr(p.Status.PodIP)
	if err != nil {
		return netip.Addr{}, nil, fmt.Errorf(
			"its podIP is %.64q: %w",
			p.Status.PodIP,
			gpu.ErrInvalidArgument,
		)
	}

	texts := []string{p.Status.HostIP}
	for _, host := range p.Status.HostIPs {
		texts = append(texts, host.IP)
	}

	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			node = append(node, address)
		}
	}

	return pod, node, nil
}
