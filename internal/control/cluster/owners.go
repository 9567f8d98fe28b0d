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

// Labels, annotations and API groups of other controllers that manage the node's partitions.
const (
	// The GPU operator's mig-manager applies the layout that the first label names, and reports its
	// progress in the second.
	// https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html
	migManagerConfig = "nvidia.com/mig.config"
	migManagerState  = "nvidia.com/mig.config.state"
	// GKE partitions all GPUs of a node pool into instances of one size.
	// https://cloud.google.com/kubernetes-engine/docs/how-to/gpus-multi
	gkePartitionSize = "cloud.google.com/gke-gpu-partition-size"
	// nos partitions nodes by mig, mps or both; mps does not touch MIG.
	// https://github.com/nebuly-ai/nos, docs on dynamic GPU partitioning, and issue 28
	nosPartitioning = "nos.nebuly.com/gpu-partitioning"
	// HAMi's device plugin lists the node's GPUs here, and how each is shared.
	// https://github.com/Project-HAMi/HAMi, pkg/device/devices.go
	hamiRegister = "hami.io/node-nvidia-register"
	hamiMIG      = "mig"
	// NVIDIA's driver for dynamic resource allocation offers MIG devices, and may create them when
	// they are claimed. https://github.com/NVIDIA/k8s-dra-driver-gpu,
	// cmd/gpu-kubelet-plugin/deviceinfo.go
	draGroup  = "resource.k8s.io"
	draDriver = "gpu.nvidia.com"
	// InstaSlice has an object for each node, named after it: instaslices, later nodeaccelerators.
	// https://github.com/openshift/instaslice-operator, api/v1alpha1 and manifests
	instaSliceGroup = "inference.redhat.com"
)

// maxList is the maximum size of a list in bytes.
const maxList = 32 << 20

// ownersByGPU collects owners by GPU.
type ownersByGPU map[gpu.UUID][]string

// add adds an owner of a GPU, or of all GPUs if id is empty, unless it is there already.
func (o ownersByGPU) add(id gpu.UUID, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(o[id], text) {
		o[id] = append(o[id], text)
	}
}

// Owners implements control.Cluster. If some of its requests fail, it returns an error and the
// owners that the others found. The error's Refusal names all missing rights.
func (c *Cluster) Owners(ctx context.Context) (map[gpu.UUID][]string, error) {
	out := ownersByGPU{}
	var errs []error

	n, err := c.getNode(ctx)
	if err != nil {
		errs = append(errs, err)
	}

	out.addMarks(n.Metadata, c.opts.FollowsLabels)

	if c.opts.FollowsLabels {
		errs = append(errs, c.addMIGManager(ctx, out))
	}

	groups, err := c.listGroups(ctx)
	if err != nil {
		errs = append(errs, err)
	}

	if version, ok := groups[draGroup]; ok {
		errs = append(errs, c.addDRA(ctx, version, out))
	}

	if version, ok := groups[instaSliceGroup]; ok {
		errs = append(errs, c.addInstaSlice(ctx, version, "instaslices", out),
			c.addInstaSlice(ctx, version, "nodeaccelerators", out))
	}

	if err := errors.Join(errs...); err != nil {
		return out, joinRefusals(fmt.Errorf("owners of GPUs: %w", err), errs)
	}

	return out, nil
}

// refusals is the error of several requests, some of which the API server has refused.
type refusals struct {
	error
	text string // names the missing rights
}

func (e *refusals) Unwrap() error   { return e.error }
func (e *refusals) Refusal() string { return e.text }

// joinRefusals returns err with a method Refusal that names the rights missing in all of errs. If
// none of them is a refusal, it returns err.
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

// addMarks adds the owners that labels and annotations of the node show. mig-manager's labels show
// none if this program itself follows them.
func (o ownersByGPU) addMarks(n object, followsLabels bool) {
	config := n.Labels[migManagerConfig]

	state := n.Labels[migManagerState]
	if !followsLabels && (config != "" || state != "") {
		o.add(
			"",
			"mig-manager (label %s=%s, state %s)",
			migManagerConfig,
			config,
			cmp.Or(state, "unknown"),
		)
	}

	if size := n.Labels[gkePartitionSize]; size != "" {
		o.add("", "GKE (label %s=%s)", gkePartitionSize, size)
	}

	if kind := n.Labels[nosPartitioning]; kind != "" && kind != "mps" {
		o.add("", "nos (label %s=%s)", nosPartitioning, kind)
	}

	if register := n.Annotations[hamiRegister]; register != "" {
		o.addHAMi(register)
	}
}

// addHAMi adds the GPUs in HAMi's register. The register is a JSON list. In older releases it is a
// text in which each device ends with a colon; its fields are separated by commas, the first is the
// UUID, the ninth the mode.
func (o ownersByGPU) addHAMi(register string) {
	type hamiDevice struct {
		ID   string `json:"id"`
		Mode string `json:"mode"`
	}

	var list []hamiDevice
	if json.Unmarshal([]byte(register), &list) != nil {
		for part := range strings.SplitSeq(register, ":") {
			if fields := strings.Split(part, ","); len(fields) >= 9 {
				list = append(list, hamiDevice{fields[0], fields[8]})
			}
		}
	}

	for _, d := range list {
		if d.Mode == hamiMIG {
			o.add(gpuOf(d.ID), "HAMi (annotation %s, mode %s)", hamiRegister, hamiMIG)
		}
	}
}

// gpuOf returns the UUID that a name is, or "", which stands for all GPUs, if it is none.
func gpuOf(name string) gpu.UUID {
	id, err := gpu.ParseUUID(name)
	if err != nil {
		return ""
	}

	return id
}

// listGroups returns the preferred version of each API group. Every account has the right to list
// them.
func (c *Cluster) listGroups(ctx context.Context) (map[string]string, error) {
	var list struct {
		Groups []struct {
			Name      string `json:"name"`
			Preferred struct {
				Version string `json:"version"`
			} `json:"preferredVersion"`
		} `json:"groups"`
	}

	err := c.request(ctx, kubeapi.Request{Method: http.MethodGet, Path: "/apis"}, &list)
	if err != nil {
		return nil, err
	}

	out := map[string]string{}
	for _, g := range list.Groups {
		out[g.Name] = g.Preferred.Version
	}

	return out, nil
}

// listObjects lists the objects at a path. If the API server does not know their kind, there are
// none.
func (c *Cluster) listObjects(ctx context.Context, path, selector string, into any) error {
	err := c.request(ctx, kubeapi.Request{
		Method: http.MethodGet,
		Path:   path,
		Query:  url.Values{"fieldSelector": {selector}},
		Limit:  maxList,
	}, into)
	if errors.Is(err, gpu.ErrNotFound) {
		return nil
	}

	return err
}

// attributes are the attributes of a ResourceSlice's device.
type attributes map[string]struct {
	String string `json:"string"`
}

// addDRA adds the GPUs with MIG devices that the DRA driver offers on the node, including devices
// that do not exist yet.
func (c *Cluster) addDRA(ctx context.Context, version string, out ownersByGPU) error {
	var list struct {
		Items []struct {
			Spec struct {
				Driver   string `json:"driver"`
				NodeName string `json:"nodeName"`
				Devices  []struct {
					Name       string     `json:"name"`
					Attributes attributes `json:"attributes"`
					// Until v1beta1 the attributes were one level below.
					Basic struct {
						Attributes attributes `json:"attributes"`
					} `json:"basic"`
				} `json:"devices"`
			} `json:"spec"`
		} `json:"items"`
	}

	selector := "spec.nodeName=" + c.opts.Node + ",spec.driver=" + draDriver

	err := c.listObjects(ctx, "/apis/"+draGroup+"/"+version+"/resourceslices", selector, &list)
	if err != nil {
		return err
	}

	for i := range list.Items {
		spec := &list.Items[i].Spec
		if spec.Driver != draDriver || spec.NodeName != c.opts.Node {
			continue
		}

		for _, d := range spec.Devices {
			deviceAttributes := d.Attributes
			if deviceAttributes == nil {
				deviceAttributes = d.Basic.Attributes
			}

			if strings.Contains(d.Name, "-mig-") || deviceAttributes["type"].String == "mig" {
				out.add(
					gpuOf(deviceAttributes["parentUUID"].String),
					"DRA (ResourceSlice of %s with MIG devices)",
					draDriver,
				)
			}
		}
	}

	return nil
}

// addInstaSlice adds the GPUs that InstaSlice's object for the node lists, or all GPUs if it lists
// none.
func (c *Cluster) addInstaSlice(ctx context.Context, version, kind string, out ownersByGPU) error {
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

	err := c.listObjects(
		ctx,
		"/apis/"+instaSliceGroup+"/"+version+"/"+kind,
		"metadata.name="+c.opts.Node,
		&list,
	)
	if err != nil {
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
