package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// What shows that another controller manages the node's partitions.
const (
	// The GPU operator's mig-manager applies the layout that the first names, and tells in the second how far it is.
	// https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html
	migManagerConfig = "nvidia.com/mig.config"
	migManagerState  = "nvidia.com/mig.config.state"
	// GKE cuts all GPUs of a node pool into partitions of one size.
	// https://cloud.google.com/kubernetes-engine/docs/how-to/gpus-multi
	gkePartitionSize = "cloud.google.com/gke-gpu-partition-size"
	// nos partitions nodes by mig, mps or both; mps does not touch MIG.
	// https://github.com/nebuly-ai/nos, docs on dynamic GPU partitioning, and issue 28
	nosPartitioning = "nos.nebuly.com/gpu-partitioning"
	// HAMi's device plugin lists the node's GPUs here, and how each is shared.
	// https://github.com/Project-HAMi/HAMi, pkg/device/devices.go
	hamiRegister = "hami.io/node-nvidia-register"
	hamiMIG      = "mig"
	// NVIDIA's driver for dynamic resource allocation offers MIG devices, and may make them when they are claimed.
	// https://github.com/NVIDIA/k8s-dra-driver-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go
	draGroup  = "resource.k8s.io"
	draDriver = "gpu.nvidia.com"
	// InstaSlice has an object for each node, named after it: instaslices, later nodeaccelerators.
	// https://github.com/openshift/instaslice-operator, api/v1alpha1 and manifests
	instaSliceGroup = "inference.redhat.com"
)

// maxList bounds a list's answer, in bytes.
const maxList = 32 << 20

// found collects owners by GPU.
type found map[gpu.UUID][]string

func (f found) add(id gpu.UUID, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for _, known := range f[id] {
		if known == text {
			return
		}
	}
	f[id] = append(f[id], text)
}

// Owners implements control.Cluster. If one of several requests failed, there is an error, and the owners are those that are
// known nevertheless. The error's Refusal names all rights that are missing.
func (c *Cluster) Owners(ctx context.Context) (map[gpu.UUID][]string, error) {
	out := found{}
	var errs []error
	n, err := c.node(ctx)
	if err != nil {
		errs = append(errs, err)
	}
	out.marks(n.Metadata)
	groups, err := c.groups(ctx)
	if err != nil {
		errs = append(errs, err)
	}
	if version, ok := groups[draGroup]; ok {
		errs = append(errs, c.slices(ctx, version, out))
	}
	if version, ok := groups[instaSliceGroup]; ok {
		errs = append(errs, c.instaSlice(ctx, version, "instaslices", out), c.instaSlice(ctx, version, "nodeaccelerators", out))
	}
	if err := errors.Join(errs...); err != nil {
		return out, joinRefusals(fmt.Errorf("owners of GPUs: %w", err), errs)
	}
	return out, nil
}

// refusals is an error of several requests, of which the API server has refused some.
type refusals struct {
	error
	text string
}

func (e *refusals) Unwrap() error   { return e.error }
func (e *refusals) Refusal() string { return e.text }

// joinRefusals adds to the error of several requests what is missing for those that were refused.
func joinRefusals(err error, errs []error) error {
	var list []string
	for _, e := range errs {
		var refused *kubeapi.RefusedError
		if errors.As(e, &refused) && !slices.Contains(list, refused.Refusal()) {
			list = append(list, refused.Refusal())
		}
	}
	if len(list) == 0 {
		return err
	}
	return &refusals{err, strings.Join(list, "; ")}
}

// marks reads labels and annotations of the node.
func (f found) marks(n object) {
	config, state := n.Labels[migManagerConfig], n.Labels[migManagerState]
	if config != "" || state != "" {
		f.add("", "mig-manager (label %s=%s, state %s)", migManagerConfig, config, cmp.Or(state, "unknown"))
	}
	if size := n.Labels[gkePartitionSize]; size != "" {
		f.add("", "GKE (label %s=%s)", gkePartitionSize, size)
	}
	if kind := n.Labels[nosPartitioning]; kind != "" && kind != "mps" {
		f.add("", "nos (label %s=%s)", nosPartitioning, kind)
	}
	if register := n.Annotations[hamiRegister]; register != "" {
		f.hami(register)
	}
}

// hami reads HAMi's register: a JSON list, or in releases before it devices that end in a colon, of fields between commas
// of which the first is the UUID and the ninth the mode.
func (f found) hami(register string) {
	type device struct {
		ID   string `json:"id"`
		Mode string `json:"mode"`
	}
	var list []device
	if json.Unmarshal([]byte(register), &list) != nil {
		for part := range strings.SplitSeq(register, ":") {
			if fields := strings.Split(part, ","); len(fields) >= 9 {
				list = append(list, device{fields[0], fields[8]})
			}
		}
	}
	for _, d := range list {
		if d.Mode == hamiMIG {
			f.add(gpuOf(d.ID), "HAMi (annotation %s, mode %s)", hamiRegister, hamiMIG)
		}
	}
}

// gpuOf names the GPU; "", hence all, for what names none.
func gpuOf(name string) gpu.UUID {
	id, err := gpu.ParseUUID(name)
	if err != nil {
		return ""
	}
	return id
}

// groups lists the API's groups, with the version that the API server prefers of each. Every account may ask that.
func (c *Cluster) groups(ctx context.Context) (map[string]string, error) {
	var list struct {
		Groups []struct {
			Name      string `json:"name"`
			Preferred struct {
				Version string `json:"version"`
			} `json:"preferredVersion"`
		} `json:"groups"`
	}
	if err := c.do(ctx, kubeapi.Request{Method: http.MethodGet, Path: "/apis"}, &list); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, g := range list.Groups {
		out[g.Name] = g.Preferred.Version
	}
	return out, nil
}

// list asks for the objects of a kind. A kind that the API server does not know has none.
func (c *Cluster) list(ctx context.Context, path, selector string, into any) error {
	err := c.do(ctx, kubeapi.Request{
		Method: http.MethodGet, Path: path, Query: url.Values{"fieldSelector": {selector}}, Limit: maxList,
	}, into)
	if errors.Is(err, gpu.ErrNotFound) {
		return nil
	}
	return err
}

// attributes are those of a device of a ResourceSlice.
type attributes map[string]struct {
	String string `json:"string"`
}

// slices looks for MIG devices that the DRA driver offers on the node, those that it would only make included.
func (c *Cluster) slices(ctx context.Context, version string, out found) error {
	var list struct {
		Items []struct {
			Spec struct {
				Driver   string `json:"driver"`
				NodeName string `json:"nodeName"`
				Devices  []struct {
					Name       string     `json:"name"`
					Attributes attributes `json:"attributes"`
					// Until v1beta1 they were one level below.
					Basic struct {
						Attributes attributes `json:"attributes"`
					} `json:"basic"`
				} `json:"devices"`
			} `json:"spec"`
		} `json:"items"`
	}
	selector := "spec.nodeName=" + c.opts.Node + ",spec.driver=" + draDriver
	if err := c.list(ctx, "/apis/"+draGroup+"/"+version+"/resourceslices", selector, &list); err != nil {
		return err
	}
	for i := range list.Items {
		spec := &list.Items[i].Spec
		if spec.Driver != draDriver || spec.NodeName != c.opts.Node {
			continue
		}
		for _, d := range spec.Devices {
			known := d.Attributes
			if known == nil {
				known = d.Basic.Attributes
			}
			if strings.Contains(d.Name, "-mig-") || known["type"].String == "mig" {
				out.add(gpuOf(known["parentUUID"].String), "DRA (ResourceSlice of %s with MIG devices)", draDriver)
			}
		}
	}
	return nil
}

// instaSlice looks for the node's object, which lists the GPUs that are InstaSlice's.
func (c *Cluster) instaSlice(ctx context.Context, version, kind string, out found) error {
	var list struct {
		Items []struct {
			Metadata object `json:"metadata"`
			Status   struct {
				NodeResources struct {
					NodeGPUs []struct {
						UUID string `json:"gpuUuid"`
					} `json:"nodeGpus"`
				} `json:"nodeResources"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := c.list(ctx, "/apis/"+instaSliceGroup+"/"+version+"/"+kind, "metadata.name="+c.opts.Node, &list); err != nil {
		return err
	}
	for i := range list.Items {
		item := &list.Items[i]
		if item.Metadata.Name != c.opts.Node {
			continue
		}
		gpus := item.Status.NodeResources.NodeGPUs
		for _, g := range gpus {
			out.add(gpuOf(g.UUID), "InstaSlice (%s.%s %s)", kind, instaSliceGroup, c.opts.Node)
		}
		if len(gpus) == 0 {
			out.add("", "InstaSlice (%s.%s %s)", kind, instaSliceGroup, c.opts.Node)
		}
	}
	return nil
}
