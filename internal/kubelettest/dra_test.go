package kubelettest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// draDriverName is the name of NVIDIA's driver, by which mig-exporter recognizes its devices.
const draDriverName = "gpu.nvidia.com"

// draDriver prepares every claim, and publishes the devices that it was started with.
type draDriver struct {
	helper *kubeletplugin.Helper
	failed func(error)
}

// startDRADriver starts the driver and publishes devices, by name, with their attributes.
func startDRADriver(ctx context.Context, n *node, devices map[string]map[resourceapi.QualifiedName]string,
	failed func(error)) (*draDriver, error) {
	data := "/var/lib/kubelet/plugins/" + draDriverName
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}

	d := &draDriver{failed: failed}

	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(draDriverName),
		kubeletplugin.KubeClient(n.client), kubeletplugin.NodeName(nodeName),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join("/var/lib/kubelet", "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return nil, fmt.Errorf("DRA driver: %w", err)
	}

	d.helper = helper
	var list []resourceapi.Device

	for _, name := range slices.Sorted(maps.Keys(devices)) {
		device := resourceapi.Device{Name: name,
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
		for key, value := range devices[name] {
			device.Attributes[key] = resourceapi.DeviceAttribute{StringValue: &value}
		}

		list = append(list, device)
	}

	return d, helper.PublishResources(ctx, resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{nodeName: {Slices: []resourceslice.Slice{{Devices: list}}}},
	})
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *draDriver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}

	for _, claim := range claims {
		var prepared kubeletplugin.PrepareResult
		for _, result := range claim.Status.Allocation.Devices.Results {
			prepared.Devices = append(prepared.Devices, kubeletplugin.Device{
				Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
			})
		}

		out[claim.UID] = prepared
	}

	return out, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *draDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (
	map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, claim := range claims {
		out[claim.UID] = nil
	}

	return out, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *draDriver) HandleError(_ context.Context, err error, message string) {
	d.failed(fmt.Errorf("DRA driver: %s: %w", message, err))
}

// claim creates a claim that is allocated the devices and reserved for the pods, as a scheduler
// would.
func (n *node) claim(ctx context.Context, namespace, name string, admin bool, devices []string,
	pods ...*corev1.Pod) error {
	claims := n.client.ResourceV1().ResourceClaims(namespace)
	var requests []resourceapi.DeviceRequest
	allocation := &resourceapi.AllocationResult{}

	for i, device := range devices {
		request := fmt.Sprintf("r%d", i)
		exact := &resourceapi.ExactDeviceRequest{DeviceClassName: draDriverName}

		result := resourceapi.DeviceRequestAllocationResult{
			Request: request, Driver: draDriverName, Pool: nodeName, Device: device,
		}

		if admin {
			exact.AdminAccess = &admin
			result.AdminAccess = &admin
		}

		requests = append(requests, resourceapi.DeviceRequest{Name: request, Exactly: exact})
		allocation.Devices.Results = append(allocation.Devices.Results, result)
	}

	claim, err := claims.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	claim.Status.Allocation = allocation
	for _, pod := range pods {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: pod.Name, UID: pod.UID,
		})
	}

	_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})

	return err
}
