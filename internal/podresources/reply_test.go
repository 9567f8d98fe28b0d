package podresources

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func readReply(in *kubeletapi.ListPodResourcesResponse, resources ...string) listing {
	return replyReader{newResourceNames(resources)}.readReply(in)
}

func TestReadIgnoresOtherResources(t *testing.T) {
	in := reply(pod("ns", "p", container("c", slices.Concat(
		devices("nvidia.com/gpu", gpuA),
		devices("nvidia.com/gpu.shared", gpuB+"::1"),
		devices("nvidia.com/mig-3g.20gb", migA),
		devices("nvidia.com/mig-1g.5gb.shared", migA+"::2"),
		devices("mellanox.com/rdma", "mlx5_0"),
		devices("example.com/gpus", "garbage"),
		devices("nvidia.com/gpumem", "garbage"),
	))))
	if got := readReply(in); len(got.entries) != 4 || len(got.unreadable) != 0 {
		t.Errorf("got %+v, want four entries and nothing unreadable", got)
	}

	if got := readReply(in, "example.com/*", "mellanox.com/rdm"); len(got.unreadable) != 1 {
		t.Errorf("%d unreadable with example.com/* configured, want 1", len(got.unreadable))
	}
}

func TestReadNamesTheHolder(t *testing.T) {
	got := readReply(reply(pod("vision", "resnet-0", container("main", devices("nvidia.com/gpu", gpuA+"::3")))))

	want := gpu.Assignment{
		ID:     gpuA + "::3",
		Device: gpu.DeviceRef{GPU: gpuA},
		Holder: gpu.Holder{
			Container: gpu.Container{Namespace: "vision", Pod: "resnet-0", Name: "main"},
			Resource:  "nvidia.com/gpu", Sharing: gpu.SharingReplica, Replica: "3",
		},
	}
	if len(got.entries) != 1 || fmt.Sprintf("%+v", got.entries[0].Assignment) != fmt.Sprintf("%+v", want) {
		t.Errorf("got %+v, want %+v", got.entries, want)
	}
}

func TestReadDoesNotDependOnOrder(t *testing.T) {
	var all []*kubeletapi.ContainerDevices
	for i := range 20 {
		all = append(all, devices("nvidia.com/gpu", fmt.Sprintf("%s::%d", gpuA, i), fmt.Sprintf("nvidia%d", i))...)
	}

	in := reply(pod("b", "x", container("c", devices("nvidia.com/gpu", gpuB))), pod("a", "y", container("c", all)),
		pod("a", "x", container("c", devices("nvidia.com/gpu", "MIG-"+gpuA+"/2/1")),
			container("d", devices("nvidia.com/gpu", migA))))

	want := readReply(in)
	if len(want.entries) != 43 {
		t.Fatalf("%d entries, want 43", len(want.entries))
	}

	order := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		order.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		order.Shuffle(len(in.PodResources), func(i, j int) {
			in.PodResources[i], in.PodResources[j] = in.PodResources[j], in.PodResources[i]
		})

		if got := readReply(in); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("another order gives\n%v\nwant\n%v", got, want)
		}
	}
}

func TestReadListsADeviceOnceForAContainer(t *testing.T) {
	got := readReply(reply(pod("ns", "p", container("c", devices("nvidia.com/gpu", gpuA, gpuA)),
		container("d", devices("nvidia.com/gpu", gpuA)))))
	if len(got.entries) != 2 {
		t.Errorf("got %+v, want one entry for each container", got.entries)
	}
}

func TestReadKeepsUnreadableIDs(t *testing.T) {
	long := strings.Repeat("é", 1000)

	got := readReply(reply(podWithDevices("p", "garbage", gpuA, "two words", long)))
	if len(got.unreadable) != 3 || len(got.entries) != 1 {
		t.Fatalf("got %+v, want three unreadable ids and an entry", got)
	}

	for _, a := range got.unreadable {
		cmptest.Equal(t, "pod", a.Holder.Pod, "p")
		cmptest.Equal(t, "id without invalid UTF-8", a.ID, strings.ToValidUTF8(a.ID, ""))

		if n := len(a.ID); n == 0 || n > maxIDLength+3 {
			t.Errorf("id of %d bytes, want 1 to %d", n, maxIDLength+3)
		}
	}
}

func TestReadClaims(t *testing.T) {
	share := "d1b8"
	alone := &kubeletapi.ContainerResources{Name: "alone", DynamicResources: claim("ml", "train-gpu",
		claimResource(draDriver, "gpu-2-mig-1g24gb-19-0"), claimResource("nic.example.com", "eth0"),
		claimResource(draDriver, ""), claimResource(draDriver, "gpu-vfio-0"), claimResource(draDriver, "garbage"))}
	one := &kubeletapi.ContainerResources{Name: "one",
		DynamicResources: claim("ml", "both", claimResource(draDriver, "gpu-1"))}
	two := &kubeletapi.ContainerResources{Name: "two",
		DynamicResources: claim("ml", "both", claimResource(draDriver, "gpu-1"))}
	part := &kubeletapi.ContainerResources{Name: "part", DynamicResources: claim("ml", "part", &kubeletapi.ClaimResource{
		DriverName: draDriver, PoolName: "node-1", DeviceName: "gpu-3", ShareId: &share})}
	got := readReply(reply(pod("ml", "train-0", alone, one, two, part)))
	var text []string

	for _, e := range got.entries {
		minor, _ := e.Device.Minor.Get()
		text = append(text, fmt.Sprintf("%s gpu %d %s %s %q", e.Holder.Name, minor, e.Holder.Resource, e.Holder.Sharing,
			e.Holder.Replica))
	}

	want := []string{
		`alone gpu 2 claim/ml/train-gpu exclusive ""`,
		`one gpu 1 claim/ml/both replica ""`,
		`part gpu 3 claim/ml/part replica "d1b8"`,
		`two gpu 1 claim/ml/both replica ""`,
	}
	if !slices.Equal(text, want) || len(got.unreadable) != 1 {
		t.Errorf("%d unreadable, got\n%s\nwant 1 and\n%s", len(got.unreadable), strings.Join(text, "\n"),
			strings.Join(want, "\n"))
	}

	if claim := (gpu.ClaimDevice{Namespace: "ml", Claim: "part", Driver: draDriver, Pool: "node-1",
		Device: "gpu-3"}); got.entries[2].claim != claim {
		t.Errorf("the claim is %+v, want %+v", got.entries[2].claim, claim)
	}
}

// manyDevices is a node with n devices, in entries of their own, a hundred to a pod.
func manyDevices(n int) *kubeletapi.ListPodResourcesResponse {
	out := &kubeletapi.ListPodResourcesResponse{}

	for i := 0; i < n; i += 100 {
		var all []*kubeletapi.ContainerDevices
		for j := i; j < min(i+100, n); j++ {
			all = append(all, devices("nvidia.com/gpu", fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000::%d", j%977, j))...)
		}

		out.PodResources = append(out.PodResources, pod("ns", fmt.Sprint("pod-", i), container("main", all)))
	}

	return out
}

func TestTwentyThousandDevices(t *testing.T) {
	g := newTestLedger(t, nil)

	in := manyDevices(20_000)
	if got := g.list(in.PodResources...); len(got.List) != 20_000 || len(got.Unreadable) != 0 {
		t.Fatalf("%d assignments, %d unreadable, want 20000 and 0", len(got.List), len(got.Unreadable))
	}

	// No allocation per device: the kubelet is asked every second.
	if allocs := testing.AllocsPerRun(3, func() { g.list(in.PodResources...) }); allocs > 1000 {
		t.Errorf("%.0f allocations for 20,000 devices", allocs)
	}
}

func BenchmarkList20000(b *testing.B) {
	g := newTestLedger(&testing.T{}, nil)
	in := manyDevices(20_000)
	b.ReportAllocs()

	for b.Loop() {
		g.list(in.PodResources...)
	}
}
