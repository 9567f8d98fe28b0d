package podres

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// testReader reads at a time.
type testReader struct {
	reader
	now      time.Time
	settling bool
}

func newTestReader(opts Options) *testReader {
	if opts.Logger == nil {
		opts.Logger = log.NewNopLogger()
	}
	return &testReader{reader: newReader(opts), now: time.Unix(1000, 0)}
}

func (r *testReader) read(in *podresources.ListPodResourcesResponse) gpu.Assignments {
	return r.reader.read(in, r.now, r.settling)
}

func devices(resource string, ids ...string) []*podresources.ContainerDevices {
	var out []*podresources.ContainerDevices
	for _, id := range ids {
		out = append(out, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
	}
	return out
}

func pod(namespace, name string, containers ...*podresources.ContainerResources) *podresources.PodResources {
	return &podresources.PodResources{Namespace: namespace, Name: name, Containers: containers}
}

func container(name string, devices []*podresources.ContainerDevices) *podresources.ContainerResources {
	return &podresources.ContainerResources{Name: name, Devices: devices}
}

func reply(pods ...*podresources.PodResources) *podresources.ListPodResourcesResponse {
	return &podresources.ListPodResourcesResponse{PodResources: pods}
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
	got := newTestReader(Options{}).read(in)
	if len(got.List) != 4 || got.Garbled != 0 {
		t.Errorf("%d assignments, %d garbled, want 4 and 0: %+v", len(got.List), got.Garbled, got.List)
	}
	got = newTestReader(Options{ResourceNames: []string{"example.com/*", "mellanox.com/rdm"}}).read(in)
	if got.Garbled != 1 {
		t.Errorf("%d garbled with example.com/* configured, want 1", got.Garbled)
	}
}

func TestReadNamesTheHolder(t *testing.T) {
	got := newTestReader(Options{}).read(reply(pod("vision", "resnet-0", container("main", devices("nvidia.com/gpu", gpuA+"::3")))))
	want := gpu.Assignment{
		Device: gpu.DeviceRef{GPU: gpuA},
		Holder: gpu.Holder{
			Container: gpu.Container{Namespace: "vision", Pod: "resnet-0", Name: "main"},
			Resource:  "nvidia.com/gpu", Sharing: gpu.SharingReplica, Replica: "3",
		},
		Seen: 1,
	}
	if len(got.List) != 1 || fmt.Sprintf("%+v", got.List[0]) != fmt.Sprintf("%+v", want) {
		t.Errorf("got %+v, want %+v", got.List, want)
	}
}

func TestReadDoesNotDependOnOrder(t *testing.T) {
	var all []*podresources.ContainerDevices
	for i := range 20 {
		all = append(all, devices("nvidia.com/gpu", fmt.Sprintf("%s::%d", gpuA, i), fmt.Sprintf("nvidia%d", i))...)
	}
	in := reply(pod("b", "x", container("c", devices("nvidia.com/gpu", gpuB))), pod("a", "y", container("c", all)),
		pod("a", "x", container("d", devices("nvidia.com/gpu", migA)), container("c", devices("nvidia.com/gpu", "MIG-"+gpuA+"/2/1"))))
	want := newTestReader(Options{}).read(in)
	if len(want.List) != 43 {
		t.Fatalf("%d assignments, want 43", len(want.List))
	}
	order := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		order.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		order.Shuffle(len(in.PodResources), func(i, j int) {
			in.PodResources[i], in.PodResources[j] = in.PodResources[j], in.PodResources[i]
		})
		if got := newTestReader(Options{}).read(in); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("another order gives\n%v\nwant\n%v", got, want)
		}
	}
	// Replicas stand in numeric order.
	var replicas []string
	for _, a := range want.List {
		if a.Device.GPU == gpuA && a.Holder.Replica != "" {
			replicas = append(replicas, a.Holder.Replica)
		}
	}
	if got := strings.Join(replicas, " "); got != "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19" {
		t.Errorf("replicas come as %s", got)
	}
}

func TestReadNumbersByFirstSight(t *testing.T) {
	r := newTestReader(Options{})
	old := pod("ns", "old", container("c", devices("nvidia.com/gpu", gpuA)))
	other := pod("ns", "other", container("c", devices("nvidia.com/gpu", gpuB)))
	successor := pod("ns", "new", container("c", devices("nvidia.com/gpu", gpuA)))
	seen := func(in *podresources.ListPodResourcesResponse) map[string]uint64 {
		out := map[string]uint64{}
		for _, a := range r.read(in).List {
			out[a.Holder.Pod] = a.Seen
		}
		return out
	}
	first := seen(reply(old, other))
	if first["old"] != first["other"] {
		t.Errorf("one List gives different numbers: %v", first)
	}
	both := seen(reply(successor, other, old))
	if both["old"] != first["old"] || both["other"] != first["other"] || both["new"] <= both["old"] {
		t.Errorf("the successor should be newer than %v: %v", first, both)
	}
	// A kubelet that restarts lists its pods bit by bit.
	seen(reply())
	seen(reply(other))
	r.now = r.now.Add(maxGap - 1)
	if back := seen(reply(successor, other, old)); fmt.Sprint(back) != fmt.Sprint(both) {
		t.Errorf("after a short gap: %v, want %v", back, both)
	}
	seen(reply(successor, other))
	r.now = r.now.Add(maxGap)
	back := seen(reply(successor, other, old))
	if back["old"] <= back["new"] {
		t.Errorf("a holder that comes back should be the newest: %v", back)
	}
	r.now = r.now.Add(maxGap)
	if seen(reply()); len(r.missed) != 3 {
		t.Errorf("%d assignments are remembered, want 3", len(r.missed))
	}
	r.now = r.now.Add(maxGap)
	if seen(reply()); len(r.missed) != 0 {
		t.Errorf("%d assignments are remembered after a long gap", len(r.missed))
	}
}

func TestReadKeepsWhatASettlingKubeletDoesNotKnowYet(t *testing.T) {
	r := newTestReader(Options{})
	known := reply(pod("ns", "p", container("c", devices("nvidia.com/gpu", gpuA))))
	first := r.read(known)
	r.settling = true
	if got := r.read(reply(pod("ns", "other"))); fmt.Sprint(got) != fmt.Sprint(first) {
		t.Errorf("an empty reply gives %+v, want %+v", got, first)
	}
	if got := r.read(reply(pod("ns", "q", container("c", devices("nvidia.com/gpu", gpuB))))); len(got.List) != 1 || got.List[0].Holder.Pod != "q" {
		t.Errorf("a reply with a device gives %+v", got)
	}
	r.settling = false
	if got := r.read(reply()); len(got.List) != 0 {
		t.Errorf("once it has settled, an empty reply gives %+v", got)
	}
}

func TestReadListsADeviceOnceForAContainer(t *testing.T) {
	got := newTestReader(Options{}).read(reply(
		pod("ns", "p", container("c", devices("nvidia.com/gpu", gpuA, gpuA)), container("d", devices("nvidia.com/gpu", gpuA)))))
	if len(got.List) != 2 {
		t.Errorf("got %+v, want one assignment for each container", got.List)
	}
}

func TestReadCountsAndLogsGarbage(t *testing.T) {
	var buf bytes.Buffer
	r := newTestReader(Options{Logger: log.NewLogfmtLogger(&buf)})
	in := reply(pod("ns", "p", container("c", devices("nvidia.com/gpu", "garbage", gpuA, "two words", strings.Repeat("é", 1000)))))
	for range 3 {
		if got := r.read(in); got.Garbled != 3 || len(got.List) != 1 {
			t.Errorf("%d garbled, %d assignments, want 3 and 1", got.Garbled, len(got.List))
		}
	}
	if lines := strings.Count(buf.String(), "\n"); lines != 3 || buf.Len() > 1500 {
		t.Errorf("%d lines of log, want one for each id:\n%s", lines, buf.String())
	}
	buf.Reset()
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprint("garbage ", i))
	}
	in = reply(pod("ns", "p", container("c", devices("nvidia.com/gpu", many...))))
	if got := r.read(in); got.Garbled != 1000 {
		t.Errorf("%d garbled, want 1000", got.Garbled)
	}
	if lines := strings.Count(buf.String(), "\n"); lines != maxGarbledLogged-3+1 {
		t.Errorf("%d lines of log for 1000 ids", lines)
	}
}

func claim(namespace, name string, resources ...*podresources.ClaimResource) []*podresources.DynamicResource {
	return []*podresources.DynamicResource{{ClaimNamespace: namespace, ClaimName: name, ClaimResources: resources}}
}

func claimed(driver, device string) *podresources.ClaimResource {
	return &podresources.ClaimResource{DriverName: driver, PoolName: "node-1", DeviceName: device}
}

func TestReadClaims(t *testing.T) {
	share := "d1b8"
	alone := &podresources.ContainerResources{Name: "alone", DynamicResources: claim("ml", "train-gpu",
		claimed(draDriver, "gpu-2-mig-1g24gb-19-0"), claimed("nic.example.com", "eth0"), claimed(draDriver, ""), claimed(draDriver, "gpu-vfio-0"), claimed(draDriver, "garbage"))}
	one := &podresources.ContainerResources{Name: "one", DynamicResources: claim("ml", "both", claimed(draDriver, "gpu-1"))}
	two := &podresources.ContainerResources{Name: "two", DynamicResources: claim("ml", "both", claimed(draDriver, "gpu-1"))}
	part := &podresources.ContainerResources{Name: "part", DynamicResources: claim("ml", "part", &podresources.ClaimResource{
		DriverName: draDriver, PoolName: "node-1", DeviceName: "gpu-3", ShareId: &share})}
	got := newTestReader(Options{}).read(reply(pod("ml", "train-0", alone, one, two, part)))
	var text []string
	for _, a := range got.List {
		minor, _ := a.Device.Minor.Get()
		text = append(text, fmt.Sprintf("%s gpu %d %s %s %q", a.Holder.Name, minor, a.Holder.Resource, a.Holder.Sharing, a.Holder.Replica))
	}
	want := []string{
		`alone gpu 2 claim/ml/train-gpu exclusive ""`,
		`one gpu 1 claim/ml/both replica ""`,
		`part gpu 3 claim/ml/part replica "d1b8"`,
		`two gpu 1 claim/ml/both replica ""`,
	}
	if !slices.Equal(text, want) || got.Garbled != 1 {
		t.Errorf("%d garbled, got\n%s\nwant 1 and\n%s", got.Garbled, strings.Join(text, "\n"), strings.Join(want, "\n"))
	}
}

type fakeMetadata map[string]gpu.PodMetadata

func (m fakeMetadata) PodMetadata(namespace, pod string) (gpu.PodMetadata, bool) {
	known, ok := m[namespace+"/"+pod]
	return known, ok
}

func TestReadAddsMetadata(t *testing.T) {
	r := newTestReader(Options{Metadata: fakeMetadata{
		"ns/known": {Workload: "Deployment/web", Labels: []gpu.Label{{Name: "team", Value: "a"}}},
	}})
	got := r.read(reply(pod("ns", "known", container("c", devices("nvidia.com/gpu", gpuA)), container("d", devices("nvidia.com/gpu", gpuB))),
		pod("ns", "unknown", container("c", devices("nvidia.com/gpu", migA)))))
	for _, a := range got.List {
		workload, labels := "", 0
		if a.Holder.Pod == "known" {
			workload, labels = "Deployment/web", 1
		}
		if a.Holder.Workload != workload || len(a.Holder.Labels) != labels {
			t.Errorf("pod %s has workload %q and labels %v", a.Holder.Pod, a.Holder.Workload, a.Holder.Labels)
		}
	}
}

// manyDevices is a node with n devices, in entries of their own, a hundred to a pod.
func manyDevices(n int) *podresources.ListPodResourcesResponse {
	out := &podresources.ListPodResourcesResponse{}
	for i := 0; i < n; i += 100 {
		var all []*podresources.ContainerDevices
		for j := i; j < min(i+100, n); j++ {
			all = append(all, devices("nvidia.com/gpu", fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000::%d", j%977, j))...)
		}
		out.PodResources = append(out.PodResources, pod("ns", fmt.Sprint("pod-", i), container("main", all)))
	}
	return out
}

func TestReadTwentyThousandDevices(t *testing.T) {
	r, in := newTestReader(Options{}), manyDevices(20_000)
	if got := r.read(in); len(got.List) != 20_000 || got.Garbled != 0 {
		t.Fatalf("%d assignments, %d garbled, want 20000 and 0", len(got.List), got.Garbled)
	}
	// No allocation per device: the kubelet is asked every second.
	if allocs := testing.AllocsPerRun(3, func() { r.read(in) }); allocs > 500 {
		t.Errorf("%.0f allocations for 20,000 devices", allocs)
	}
}

func BenchmarkRead20000(b *testing.B) {
	r, in := newTestReader(Options{}), manyDevices(20_000)
	b.ReportAllocs()
	for b.Loop() {
		r.read(in)
	}
}
