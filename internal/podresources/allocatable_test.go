package podresources

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-kit/log"
	"google.golang.org/protobuf/proto"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestAllocatable(t *testing.T) {
	got := replyReader{newResourceNames(nil)}.readAllocatable(
		&kubeletapi.AllocatableResourcesResponse{Devices: slices.Concat(
			devices("nvidia.com/gpu.shared", gpuB+"::1", gpuB+"::0"),
			devices("nvidia.com/mig-3g.20gb", migA, "MIG-"+gpuA+"/2/1"),
			devices("nvidia.com/gpu", "nvidia7/gi2/vgpu0", "nvidia7/gi2/vgpu1", gpuA+"-9", gpuA+"-8", "garbage", "garbage"),
			devices("mellanox.com/rdma", "mlx5_0"),
		)})

	want := []gpu.Offer{
		{Device: gpu.DeviceRef{Minor: gpu.Some(7), Instance: gpu.Some(gpu.InstanceID(2))}, Resource: "nvidia.com/gpu"},
		{Device: gpu.DeviceRef{MIG: migA}, Resource: "nvidia.com/mig-3g.20gb"},
		{Device: gpu.DeviceRef{GPU: gpuB}, Resource: "nvidia.com/gpu.shared"},
		{Device: gpu.DeviceRef{GPU: gpuA}, Resource: "nvidia.com/gpu"},
		{Device: gpu.DeviceRef{GPU: gpuA, Instance: gpu.Some(gpu.InstanceID(2)), Compute: gpu.Some(gpu.ComputeID(1))},
			Resource: "nvidia.com/mig-3g.20gb"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestAllocatableIsBoundedAsListIs: the decoder's limits hold for this reply too.
func TestAllocatableIsBoundedAsListIs(t *testing.T) {
	in := &kubeletapi.AllocatableResourcesResponse{Devices: devices("nvidia.com/gpu", "XXXX", gpuA)}

	encoded, err := proto.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}

	invalid := bytes.Replace(encoded, []byte("XXXX"), []byte("a\xff\xfeb"), 1)

	ask := func(answer []byte) ([]gpu.Offer, error) {
		c := New(Options{Socket: serveRaw(t, "kubelet.sock", answer), Now: time.Now, Logger: log.NewNopLogger()})
		defer c.Close()

		return c.Allocatable(t.Context())
	}
	if got, err := ask(invalid); err != nil ||
		fmt.Sprint(got) != fmt.Sprint([]gpu.Offer{{Device: gpu.DeviceRef{GPU: gpuA}, Resource: "nvidia.com/gpu"}}) {
		t.Errorf("with an id that is no UTF-8: %+v, %v", got, err)
	}

	if got, err := ask(make([]byte, maxReply+1)); err == nil {
		t.Errorf("a reply over 16 MiB gives %+v", got)
	}
}
