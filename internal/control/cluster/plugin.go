package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// PluginSelector says which pods are the device plugin's: the pods of a namespace that have all of
// the labels.
//
// It has no other operators than equality, since the chart's admission policy, which limits the
// service account to these pods on its own node, has to express the same.
type PluginSelector struct {
	Namespace string
	Labels    []string // "key=value"
}

// The forms of a namespace, and of the key and the value of a label.
//
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
const (
	dnsLabel   = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	labelName  = `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
	labelKey   = `(` + dnsLabel + `(\.` + dnsLabel + `)*/)?` + labelName
	labelValue = `(` + labelName + `)?`
)

// ParsePluginSelector reads NAMESPACE/KEY=VALUE[,KEY=VALUE], such as
// gpu-operator/app=nvidia-device-plugin-daemonset. An error wraps gpu.ErrInvalidArgument.
func ParsePluginSelector(text string) (PluginSelector, error) {
	namespace, labels, _ := strings.Cut(text, "/")
	s := PluginSelector{Namespace: namespace, Labels: strings.Split(labels, ",")}

	if !regexp.MustCompile(`^` + dnsLabel + `$`).MatchString(namespace) {
		return PluginSelector{}, fmt.Errorf(
			"%s: %q is no namespace: expected NAMESPACE/KEY=VALUE[,KEY=VALUE]: %w",
			text,
			namespace,
			gpu.ErrInvalidArgument,
		)
	}

	form := regexp.MustCompile(`^` + labelKey + `=` + labelValue + `$`)
	for _, label := range s.Labels {
		if !form.MatchString(label) {
			return PluginSelector{}, fmt.Errorf("%s: %q is no KEY=VALUE of a label: expected "+
				"NAMESPACE/KEY=VALUE[,KEY=VALUE]: %w", text, label, gpu.ErrInvalidArgument)
		}
	}

	return s, nil
}

// DevicePlugin restarts the device plugin of a node. It is safe for concurrent use.
//
// The service account needs a Role in the plugin's namespace with list and delete of pods. RBAC
// cannot limit these rights to one node; the chart's ValidatingAdmissionPolicy does.
type DevicePlugin struct {
	cluster  *Cluster
	selector PluginSelector
}

var _ control.DevicePlugin = (*DevicePlugin)(nil)

// NewDevicePlugin returns the device plugin of the cluster's node. It sends no requests.
func NewDevicePlugin(c *Cluster, s PluginSelector) *DevicePlugin {
	return &DevicePlugin{cluster: c, selector: s}
}

// pod has the fields of a pod that we read.
type pod struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
		Owners    []struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
}

// isReplaced reports whether a DaemonSet owns the pod, and so creates another one for the node when
// it ends.
func (p *pod) isReplaced() bool {
	for _, o := range p.Metadata.Owners {
		if o.Controller && o.Kind == "DaemonSet" && strings.HasPrefix(o.APIVersion, "apps/") {
			return true
		}
	}

	return false
}

// pluginError is an error whose text we may show to a client: control finds it by its method Refusal.
type pluginError struct{ text string }

func (e *pluginError) Error() string   { return e.text }
func (e *pluginError) Refusal() string { return e.text }

// Restart implements control.DevicePlugin. It never ends pods without a DaemonSet, since nothing
// would replace them.
func (d *DevicePlugin) Restart(ctx context.Context) ([]string, error) {
	var ended []string
	for try := 1; ; try++ {
		again, err := d.endPods(ctx, &ended)
		if err != nil || !again {
			return ended, err
		}

		if try == maxTries {
			return ended, fmt.Errorf(
				"restart the device plugin: its pods change all the time: %w",
				kubeapi.ErrConflict,
			)
		}
	}
}

// endPods ends all pods of the plugin on the node, and adds their UIDs to ended. again is true if a
// pod was replaced by another one of the same name before we could delete it.
func (d *DevicePlugin) endPods(ctx context.Context, ended *[]string) (again bool, err error) {
	list, err := d.listPods(ctx)
	if err != nil {
		return false, fmt.Errorf("restart the device plugin: %w", err)
	}

	if len(list) == 0 {
		return false, &pluginError{
			fmt.Sprintf("no pod of %s with %s runs on this node", d.selector.Namespace,
				strings.Join(d.selector.Labels, ",")),
		}
	}

	for _, p := range list {
		if !p.isReplaced() {
			return false, &pluginError{
				fmt.Sprintf("no DaemonSet owns the pod %s/%s, so that nothing would replace it",
					p.Metadata.Namespace, p.Metadata.Name),
			}
		}
	}

	for _, p := range list {
		if slices.Contains(*ended, p.Metadata.UID) {
			continue
		}

		err := d.deletePod(ctx, p)
		if errors.Is(err, kubeapi.ErrConflict) {
			again = true
			continue
		}

		if err != nil && !errors.Is(err, gpu.ErrNotFound) {
			return false, fmt.Errorf("restart the device plugin: %w", err)
		}

		*ended = append(*ended, p.Metadata.UID)
	}

	return again, nil
}

// Gone implements control.DevicePlugin.
func (d *DevicePlugin) Gone(ctx context.Context, pods []string) (bool, error) {
	list, err := d.listPods(ctx)
	if err != nil {
		return false, fmt.Errorf("the device plugin's pods: %w", err)
	}

	return !slices.ContainsFunc(
		list,
		func(p pod) bool { return slices.Contains(pods, p.Metadata.UID) },
	), nil
}

// listPods lists the plugin's pods on the node, also those that are ending.
func (d *DevicePlugin) listPods(ctx context.Context) ([]pod, error) {
	var list struct {
		Items []pod `json:"items"`
	}

	err := d.cluster.request(ctx, kubeapi.Request{
		Method: http.MethodGet, Path: d.podsPath(), Limit: maxList,
		Query: url.Values{
			"labelSelector": {strings.Join(d.selector.Labels, ",")},
			"fieldSelector": {"spec.nodeName=" + d.cluster.opts.Node},
		},
	}, &list)
	if err != nil {
		return nil, err
	}

	return slices.DeleteFunc(
		list.Items,
		func(p pod) bool { return p.Spec.NodeName != d.cluster.opts.Node },
	), nil
}

func (d *DevicePlugin) podsPath() string {
	return "/api/v1/namespaces/" + url.PathEscape(d.selector.Namespace) + "/pods"
}

// deletePod deletes exactly this pod. If another one of the same name was created meanwhile, it
// returns kubeapi.ErrConflict.
func (d *DevicePlugin) deletePod(ctx context.Context, p pod) error {
	return d.cluster.request(ctx, kubeapi.Request{
		Method: http.MethodDelete, Path: d.podsPath() + "/" + url.PathEscape(p.Metadata.Name),
		Body: map[string]any{
			"apiVersion":    "v1",
			"kind":          "DeleteOptions",
			"preconditions": map[string]string{"uid": p.Metadata.UID},
		},
		ContentType: "application/json",
	}, nil)
}
