package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
)

// The resources of NVIDIA's device plugin. It appends the suffix to those that it shares, if it is
// configured to rename them.
const (
	migPrefix    = "nvidia.com/mig-"
	gpuResource  = "nvidia.com/gpu"
	sharedSuffix = ".shared"
)

// The labels of NVIDIA's GPU feature discovery.
const (
	strategyLabel  = "nvidia.com/mig.strategy"
	replicasSuffix = ".replicas" // after a resource: as how many each device is offered
)

// draDriver is NVIDIA's driver for dynamic resource allocation (DRA).
const draDriver = "gpu.nvidia.com"

// Offered implements rollout.Cluster.
func (c *Cluster) Offered(ctx context.Context, name string) (map[string]int, error) {
	node, err := c.node(ctx, name)
	if err != nil {
		return nil, err
	}

	return offeredDevices(node), nil
}

// Missing returns those of the devices, counts by resource, that the node's allocatable does not
// have, and those that it still has and are gone. What the node offered before its change says how
// it offers devices: by profile, or all as nvidia.com/gpu (the strategy single of the device plugin).
// With DRA, none are in allocatable, and none are missing. If it is not known how the node offers
// devices, they are missing.
func (c *Cluster) Missing(
	ctx context.Context, name string, devices map[string]int, before *rollout.Offer,
) ([]string, error) {
	node, err := c.node(ctx, name)
	if err != nil {
		return nil, err
	}

	if before == nil {
		before = &rollout.Offer{}
	}

	a := &allocatable{resources: offeredDevices(node), labels: node.Labels, before: before}

	switch {
	case hasMIG(a.resources):
		return a.missingByProfile(devices), nil
	case sum(a.resources) > 0:
		return a.missingOfGPUs(devices), nil
	case sum(before.Resources) > 0:
		return listMissing(devices, "the node offers none of NVIDIA's resources any more"), nil
	case sum(devices) == 0:
		return nil, nil
	}

	// A device plugin that was away at the cordon looks as if there were none.
	hasDRA, err := c.hasDRA(ctx, name)
	if err != nil || hasDRA {
		return nil, err
	}

	return listMissing(devices, "the node offers none of NVIDIA's resources, and "+draDriver+" has no "+
		"ResourceSlice of it: is the device plugin away?"), nil
}

// hasDRA reports whether NVIDIA's DRA driver offers devices of the node.
func (c *Cluster) hasDRA(ctx context.Context, name string) (bool, error) {
	for _, version := range []string{"v1", "v1beta2", "v1beta1"} { // the newest first
		// We read these fields alone: they are the same in all versions.
		var list struct {
			Items []struct {
				Spec struct {
					Driver   string `json:"driver"`
					NodeName string `json:"nodeName"`
				} `json:"spec"`
			} `json:"items"`
		}

		result := c.set.CoreV1().RESTClient().Get().
			AbsPath("/apis/resource.k8s.io/"+version+"/resourceslices").
			Param("fieldSelector", "spec.nodeName="+name+",spec.driver="+draDriver).
			SetHeader("Accept", "application/json").
			Do(ctx)

		err := result.Error() // unlike Raw's, it has the API server's message
		if apierrors.IsNotFound(err) {
			continue // the API server does not serve this version
		}

		if err == nil {
			data, _ := result.Raw() // its error is the same
			err = json.Unmarshal(data, &list)
		}

		if err != nil {
			return false, explain(err, "list", "resourceslices.resource.k8s.io")
		}

		for i := range list.Items {
			if s := &list.Items[i].Spec; s.Driver == draDriver && s.NodeName == name {
				return true, nil
			}
		}

		return false, nil
	}

	return false, nil
}

// offeredDevices returns the devices of a node's allocatable by resource.
func offeredDevices(node *corev1.Node) map[string]int {
	offered := map[string]int{}

	for name, quantity := range node.Status.Allocatable {
		resource := string(name)
		if strings.HasPrefix(resource, migPrefix) || strings.TrimSuffix(resource, sharedSuffix) == gpuResource {
			offered[resource] = int(quantity.Value())
		}
	}

	return offered
}

// hasMIG reports whether MIG devices have resources of their own. A resource that the device plugin
// offers no more can stay at 0, and says nothing.
func hasMIG(resources map[string]int) bool {
	for resource, n := range resources {
		if n > 0 && strings.HasPrefix(resource, migPrefix) {
			return true
		}
	}

	return false
}

// namesMIG reports whether MIG devices have had resources of their own, if none are left.
func namesMIG(resources map[string]int) bool {
	for resource := range resources {
		if strings.HasPrefix(resource, migPrefix) {
			return true
		}
	}

	return false
}

func listMissing(devices map[string]int, why string) []string {
	var missing []string

	for _, resource := range slices.Sorted(maps.Keys(devices)) {
		if n := devices[resource]; n > 0 {
			missing = append(missing, fmt.Sprintf("%s: none, of %d devices (%s)", resource, n, why))
		}
	}

	return missing
}

// allocatable is what a node offers to pods, and what is known of how it does.
type allocatable struct {
	resources map[string]int
	labels    map[string]string
	before    *rollout.Offer
}

// missingByProfile compares the resources of MIG profiles with the devices.
func (a *allocatable) missingByProfile(devices map[string]int) []string {
	var missing []string

	for _, resource := range slices.Sorted(maps.Keys(devices)) {
		if !a.offers(resource, devices[resource]) {
			missing = append(missing, a.describe(resource, devices[resource]))
		}
	}

	for _, resource := range slices.Sorted(maps.Keys(a.resources)) {
		n := a.resources[resource]
		isMIG := strings.HasPrefix(resource, migPrefix)

		if isMIG && n > 0 && devices[strings.TrimSuffix(resource, sharedSuffix)] == 0 {
			missing = append(missing, fmt.Sprintf("%s: still %d", resource, n))
		}
	}

	return missing
}

// missingOfGPUs compares nvidia.com/gpu with the devices. Unless the strategy is single, these are
// whole GPUs, and the device plugin has not offered the first MIG devices yet.
func (a *allocatable) missingOfGPUs(devices map[string]int) []string {
	total := sum(devices)

	if !a.isSingle() {
		return listMissing(devices, fmt.Sprintf("nvidia.com/gpu: %d; are these MIG devices? The label "+
			"%s=single would say so", a.count(gpuResource), strategyLabel))
	}

	hadNone := a.before.Devices != nil && sum(a.before.Devices) == 0
	if a.offers(gpuResource, total) || total == 0 && hadNone {
		return nil
	}

	return []string{a.describe(gpuResource, total)}
}

// isSingle reports whether all MIG devices are known to be offered as nvidia.com/gpu.
func (a *allocatable) isSingle() bool {
	if strategy := a.labels[strategyLabel]; strategy != "" {
		return strategy == "single"
	}

	total := sum(a.before.Devices)
	replicas, _ := a.labeledReplicas(gpuResource)

	// A resource of a profile at 0 shows that devices had resources of their own before.
	return total > 0 && !namesMIG(a.before.Resources) &&
		areOffered(a.before.Resources, gpuResource, total, replicas)
}

func sum(devices map[string]int) int {
	total := 0
	for _, n := range devices {
		total += n
	}

	return total
}

// count returns how many of a resource are offered, shared or not.
func (a *allocatable) count(resource string) int {
	return a.resources[resource] + a.resources[resource+sharedSuffix]
}

// offers reports whether a number of devices is what is offered as a resource. A device that is
// shared is offered several times: as often as feature discovery has it, or, if the resource's own
// name says that it is shared, as often as before. If it is the first one of the resource, any
// multiple will do.
func (a *allocatable) offers(resource string, devices int) bool {
	replicas, isKnown := a.replicas(resource)
	isShared := a.resources[resource+sharedSuffix] > 0

	if isShared && !isKnown && !a.isNew(resource) && !a.hasFollowed(resource, devices) {
		return false // any multiple can be what the node offered before
	}

	return areOffered(a.resources, resource, devices, replicas)
}

// areOffered reports whether a number of devices is offered as a resource, each of those that are
// shared as often as replicas says; if it is 0, any number of times.
func areOffered(resources map[string]int, resource string, devices, replicas int) bool {
	unshared := resources[resource]

	shared := resources[resource+sharedSuffix]
	if shared == 0 {
		return unshared == devices*max(replicas, 1)
	}

	left := devices - unshared // the plugin may share some of the devices alone
	if replicas > 0 {
		return shared == left*replicas
	}

	return left > 0 && shared%left == 0
}

// replicas returns how often each device is offered as a resource: by feature discovery, or, if the
// name of the resource says that it is shared, as before the change. It reports false if that is not
// known, or once.
func (a *allocatable) replicas(resource string) (int, bool) {
	if n, isKnown := a.labeledReplicas(resource); isKnown {
		return n, true
	}

	then := a.before.Resources[resource+sharedSuffix]
	n := a.devicesBefore(resource) - a.before.Resources[resource]

	if a.resources[resource+sharedSuffix] == 0 || n <= 0 || then == 0 || then%n != 0 {
		return 0, false
	}

	return then / n, true
}

// labeledReplicas returns how often each device is offered as a resource, by feature discovery. It
// reports false if that is not known, or once.
func (a *allocatable) labeledReplicas(resource string) (int, bool) {
	n, err := strconv.Atoi(a.labels[resource+replicasSuffix])
	if err != nil || n <= 1 {
		return 0, false
	}

	return n, true
}

// devicesBefore returns how many devices the node had before the change that can be offered as a
// resource: as nvidia.com/gpu, with the strategy single, all of them.
func (a *allocatable) devicesBefore(resource string) int {
	if resource == gpuResource {
		return sum(a.before.Devices)
	}

	return a.before.Devices[resource]
}

// isNew reports whether the node is known to have had no devices of a resource before the change, and
// to have offered none.
func (a *allocatable) isNew(resource string) bool {
	b := a.before

	return b.Devices != nil && b.Resources != nil && a.devicesBefore(resource) == 0 &&
		b.Resources[resource]+b.Resources[resource+sharedSuffix] == 0
}

// hasFollowed reports whether what is offered as a resource is known to differ from what was offered
// before the change, or not to have to: there are as many devices as before. A device plugin that was
// away had offered nothing.
func (a *allocatable) hasFollowed(resource string, devices int) bool {
	b := a.before
	if b.Devices == nil || b.Resources[resource]+b.Resources[resource+sharedSuffix] == 0 {
		return false
	}

	isSame := a.resources[resource] == b.Resources[resource] &&
		a.resources[resource+sharedSuffix] == b.Resources[resource+sharedSuffix]

	return !isSame || a.devicesBefore(resource) == devices
}

func (a *allocatable) describe(resource string, devices int) string {
	have := a.count(resource)
	text := fmt.Sprintf("%s: %d, of %d devices", resource, have, devices)

	if replicas, isKnown := a.replicas(resource); isKnown {
		return fmt.Sprintf("%s, each offered %d times", text, replicas)
	}

	// Those that are shared may be some of the devices alone.
	shared := have
	left := devices

	if n := a.resources[resource+sharedSuffix]; n > 0 {
		shared = n
		left -= a.resources[resource]
	}

	if left > 0 && shared >= left && have > devices && shared%left == 0 {
		text += fmt.Sprintf(" (if each is shared by %d, the label %s%s would say so)", shared/left, resource,
			replicasSuffix)
	}

	return text
}
