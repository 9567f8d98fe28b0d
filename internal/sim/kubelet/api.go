package kubelet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/retry"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// seed makes the order of pods and devices in answers the same in every run.
const seed = 2

// api answers as a kubelet does: every device has its own ContainerDevices entry, and the order of
// pods and of devices differs from call to call (the kubelet walks Go maps).
type api struct {
	kubeletapi.UnimplementedPodResourcesListerServer
	node   NodeView
	files  *files
	logger log.Logger
	calls  atomic.Uint64
	delay  atomic.Int64 // how long every answer takes, a time.Duration
}

func newAPI(node NodeView, f *files, logger log.Logger) *api {
	return &api{node: node, files: f, logger: logger}
}

// newOrder returns a random source for the order of one answer.
func (a *api) newOrder() *rand.Rand { return rand.New(rand.NewPCG(seed, a.calls.Add(1))) }

// List implements the pod-resources API.
func (a *api) List(ctx context.Context,
	_ *kubeletapi.ListPodResourcesRequest) (*kubeletapi.ListPodResourcesResponse, error) {
	if err := retry.Sleep(ctx, time.Duration(a.delay.Load())); err != nil {
		return nil, err
	}

	a.sync()
	order := a.newOrder()
	pods := podsOf(a.node.Containers(), order)
	order.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })

	return &kubeletapi.ListPodResourcesResponse{PodResources: pods}, nil
}

// sync brings the kubelet's files up to date. It only logs errors, because answers do not depend on
// the files.
func (a *api) sync() {
	if err := a.files.sync(); err != nil {
		level.Warn(a.logger).Log(
			"msg", "cannot update the files of the simulated kubelet",
			"err", err,
		)
	}
}

// Get implements the pod-resources API.
func (a *api) Get(_ context.Context,
	request *kubeletapi.GetPodResourcesRequest) (*kubeletapi.GetPodResourcesResponse, error) {
	for _, pod := range podsOf(a.node.Containers(), a.newOrder()) {
		if pod.Namespace == request.PodNamespace && pod.Name == request.PodName {
			return &kubeletapi.GetPodResourcesResponse{PodResources: pod}, nil
		}
	}

	return nil, fmt.Errorf(
		"pod %s in namespace %s not found",
		request.PodName,
		request.PodNamespace,
	)
}

// GetAllocatableResources implements the pod-resources API.
func (a *api) GetAllocatableResources(ctx context.Context,
	_ *kubeletapi.AllocatableResourcesRequest) (*kubeletapi.AllocatableResourcesResponse, error) {
	if err := retry.Sleep(ctx, time.Duration(a.delay.Load())); err != nil {
		return nil, err
	}

	return &kubeletapi.AllocatableResourcesResponse{
		Devices: devicesOf(a.node.Allocatable(), a.newOrder()),
	}, nil
}

// podsOf groups containers by pod. A pod comes where its first container is.
func podsOf(containers []sim.Container, order *rand.Rand) []*kubeletapi.PodResources {
	type name struct{ namespace, pod string }
	var pods []*kubeletapi.PodResources
	byName := map[name]*kubeletapi.PodResources{}

	for i := range containers {
		c := &containers[i]

		pod := byName[name{c.Namespace, c.Pod}]
		if pod == nil {
			pod = &kubeletapi.PodResources{Namespace: c.Namespace, Name: c.Pod}
			byName[name{c.Namespace, c.Pod}] = pod
			pods = append(pods, pod)
		}

		pod.Containers = append(pod.Containers, &kubeletapi.ContainerResources{
			Name:             c.Name,
			Devices:          devicesOf(c.Devices, order),
			DynamicResources: claimsOf(c.Claims),
		})
	}

	return pods
}

func devicesOf(grants []sim.DeviceGrant, order *rand.Rand) []*kubeletapi.ContainerDevices {
	var out []*kubeletapi.ContainerDevices

	for _, grant := range grants {
		for _, id := range grant.IDs {
			out = append(
				out,
				&kubeletapi.ContainerDevices{ResourceName: grant.Resource, DeviceIds: []string{id}},
			)
		}
	}

	order.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })

	return out
}

// claimsOf groups devices by claim.
func claimsOf(claims []sim.Claim) []*kubeletapi.DynamicResource {
	var out []*kubeletapi.DynamicResource

	for _, claim := range claims {
		var resource *kubeletapi.DynamicResource

		for _, other := range out {
			if other.ClaimNamespace == claim.Namespace && other.ClaimName == claim.Name {
				resource = other
			}
		}

		if resource == nil {
			resource = &kubeletapi.DynamicResource{
				ClaimNamespace: claim.Namespace,
				ClaimName:      claim.Name,
			}
			out = append(out, resource)
		}

		resource.ClaimResources = append(resource.ClaimResources, &kubeletapi.ClaimResource{
			DriverName: claim.Driver,
			PoolName:   claim.Pool,
			DeviceName: claim.Device,
		})
	}

	return out
}
