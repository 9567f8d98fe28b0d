package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

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
// it offers devices: by profile, all as nvidia.com/gpu (the strategy single of the device plugin), or
// as none of these resources, such as with DRA. If that is not known, the devices are missing.
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
	case len(a.resources) > 0:
		return a.missingOfGPUs(devices), nil
	case before.Resources != nil && len(before.Resources) == 0:
		return nil, nil // no device plugin has offered any
	}

	return listMissing(devices, "the node offers none of NVIDIA's resources any more"), nil
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
	then := &allocatable{resources: a.before.Resources, labels: a.labels, before: &rollout.Offer{}}

	return total > 0 && !hasMIG(a.before.Resources) && then.offers(gpuResource, total)
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
// name says that it is shared, as often as before. If only that name is known, any multiple will do.
func (a *allocatable) offers(resource string, devices int) bool {
	unshared := a.resources[resource]
	shared := a.resources[resource+sharedSuffix]
	replicas, isKnown := a.replicas(resource)

	if shared == 0 && isKnown {
		return unshared == devices*replicas
	}

	if shared == 0 {
		return unshared == devices
	}

	// The plugin may share some of the devices alone.
	if !isKnown {
		then := a.before.Resources[resource+sharedSuffix]
		n := a.before.Devices[resource] - a.before.Resources[resource]
		isKnown = n > 0 && then > 0 && then%n == 0

		if isKnown {
			replicas = then / n
		}
	}

	left := devices - unshared
	if isKnown {
		return shared == left*replicas
	}

	return left > 0 && shared%left == 0
}

// replicas returns how often each device is offered as a resource, by feature discovery. It reports
// false if that is not known, or once.
func (a *allocatable) replicas(resource string) (int, bool) {
	n, err := strconv.Atoi(a.labels[resource+replicasSuffix])
	return n, err == nil && n > 1
}

func (a *allocatable) describe(resource string, devices int) string {
	have := a.count(resource)
	text := fmt.Sprintf("%s: %d, of %d devices", resource, have, devices)

	if replicas, isKnown := a.replicas(resource); isKnown {
		return fmt.Sprintf("%s, each offered %d times", text, replicas)
	}

	if devices > 0 && have > devices && have%devices == 0 && a.resources[resource+sharedSuffix] == 0 {
		text += fmt.Sprintf(" (if each is shared by %d, the label %s%s would say so)", have/devices, resource,
			replicasSuffix)
	}

	return text
}
