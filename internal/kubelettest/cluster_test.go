package kubelettest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cluster is the shared node with the exporter in its pod, and allocators that offer the simulated
// node's devices.
type cluster struct {
	*node
	exporter *corev1.Pod
	layout   *nodeDocument // when the exporter began
	plugins  map[string]*devicePlugin
	devices  map[string]string // device of a series (deviceOf) by the id that an allocator gives it
	ctx      context.Context
}

// allocators starts the exporter, the device plugins and the DRA driver once, for the first test
// that needs them.
var allocators = sync.OnceValues(func() (*cluster, error) { return startCluster(context.Background(), shared) })

func startShared(t *testing.T) *cluster {
	t.Helper()

	c, err := allocators()
	if err != nil {
		t.Fatalf("start the exporter and the allocators: %v (logs in %s)", err, shared.logs)
	}

	return c
}

func startCluster(ctx context.Context, n *node) (*cluster, error) {
	pod, err := n.startExporter(ctx)
	if err != nil {
		return nil, err
	}

	c := &cluster{node: n, exporter: pod, plugins: map[string]*devicePlugin{}, devices: map[string]string{}, ctx: ctx}

	err = await(time.Minute, func() (err error) {
		c.layout, err = readNodeDocument()
		if err == nil && len(c.layout.GPUs) != 10 {
			err = fmt.Errorf("the exporter sees %d GPUs, expected 10", len(c.layout.GPUs))
		}

		return err
	})
	if err != nil {
		return nil, err
	}

	for resource, ids := range c.pluginDevices() {
		c.plugins[resource] = newDevicePlugin(resource, ids...)
		go c.plugins[resource].run(ctx, reportError)
	}

	if err := c.startDRA(); err != nil {
		return nil, err
	}

	return c, c.awaitResources()
}

// reportError prints an error of a goroutine that no test waits for.
func reportError(err error) { fmt.Println(err) }

// pluginDevices returns the ids that the device plugins offer, by resource, in every form that
// there is, and records which device each of them means.
func (c *cluster) pluginDevices() map[string][]string {
	d := c.layout
	offers := map[string][]string{}
	offer := func(resource, device, format string, args ...any) {
		id := fmt.Sprintf(format, args...)
		offers[resource] = append(offers[resource], id)
		c.devices[id] = device
	}
	uuid := func(gpu int) string { return d.GPUs[gpu].UUID }
	instance := func(gpu, start int) (string, int, []string) {
		id, mig := d.gpuInstance(gpu, start)
		return fmt.Sprintf("%s/%d", uuid(gpu), id), id, mig
	}
	offer("nvidia.com/gpu", uuid(0), "%s", uuid(0))

	for replica := range 4 {
		offer("nvidia.com/gpu.shared", uuid(1), "%s::%d", uuid(1), replica)
		offer("example.com/hami-gpu", uuid(3), "%s-%d", uuid(3), replica)
		offer("example.com/gke-vgpu", uuid(5), "nvidia5/vgpu%d", replica)
	}

	split, _, mig := instance(2, 4)
	offer("nvidia.com/mig-1c.3g.20gb", split+"/0", "%s", mig[0])
	offer("nvidia.com/mig-2c.3g.20gb", split+"/1", "%s", mig[1])
	whole, _, mig := instance(2, 0)
	offer("nvidia.com/mig-2g.10gb", whole, "%s", mig[0])
	whole, _, mig = instance(2, 2)
	offer("nvidia.com/mig-1g.5gb.shared", whole, "%s::0", mig[0])
	offer("nvidia.com/mig-1g.5gb.shared", whole, "%s::1", mig[0])
	whole, id, _ := instance(2, 3)
	offer("example.com/legacy-mig", whole, "MIG-%s/%d/0", uuid(2), id)

	for _, start := range []int{0, 4} {
		whole, id, _ = instance(4, start)
		offer("example.com/gke-mig", whole, "nvidia4/gi%d", id)
	}

	for start := range 7 {
		whole, _, mig = instance(9, start)
		offer("nvidia.com/mig-1g.5gb", whole, "%s", mig[0])
	}

	whole, _, mig = instance(8, 4)
	offer("nvidia.com/mig-3g.20gb", whole, "%s", mig[0])

	return offers
}

// startDRA starts the DRA driver with GPU 6 and the instances of GPU 7.
func (c *cluster) startDRA() error {
	d := c.layout
	devices := map[string]map[resourceapi.QualifiedName]string{
		"gpu-6": {"type": "gpu", "uuid": d.GPUs[6].UUID},
	}
	c.devices["gpu-6"] = d.GPUs[6].UUID

	for _, mig := range []struct {
		profile   string
		id, start int
	}{{"1g5gb", 19, 0}, {"1g5gb", 19, 1}, {"2g10gb", 14, 2}, {"3g20gb", 9, 4}} {
		name := fmt.Sprintf("gpu-7-mig-%s-%d-%d", mig.profile, mig.id, mig.start)
		gi, uuids := d.gpuInstance(7, mig.start)
		devices[name] = map[resourceapi.QualifiedName]string{"type": "mig", "uuid": uuids[0], "parentUUID": d.GPUs[7].UUID}
		c.devices[name] = fmt.Sprintf("%s/%d", d.GPUs[7].UUID, gi)
	}

	_, err := startDRADriver(c.ctx, c.node, devices, reportError)

	return err
}

// awaitResources waits until the kubelet offers all devices of the plugins.
func (c *cluster) awaitResources() error {
	return await(time.Minute, func() error {
		object, err := c.client.CoreV1().Nodes().Get(c.ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}

		for resource, plugin := range c.plugins {
			ids, _ := plugin.offered()

			have := object.Status.Allocatable[corev1.ResourceName(resource)]
			if have.Value() != int64(len(ids)) {
				return fmt.Errorf("the kubelet offers %d of %s, expected %d", have.Value(), resource, len(ids))
			}
		}

		return nil
	})
}

// run creates a pod and waits until it runs; it is deleted after the test.
func (c *cluster) run(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()

	created, err := c.createPod(c.ctx, pod)
	if err != nil {
		t.Fatal(err)
	}

	c.deleteAfter(t, pod)

	return created
}

func (c *cluster) deleteAfter(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.deletePod(c.ctx, pod.Namespace, pod.Name); err != nil {
			t.Errorf("delete pod %s/%s: %v", pod.Namespace, pod.Name, err)
		}
	})
}

// given returns the holders that a running container of a pod must have by the ids that its device
// plugin gave it.
func (c *cluster) given(t *testing.T, pod *corev1.Pod, container, sharing string) []string {
	t.Helper()
	var ids []string

	if err := await(30*time.Second, func() (err error) {
		ids, _, err = givenDevices(pod, container)
		return err
	}); err != nil {
		t.Fatal(err)
	}

	if len(ids) == 0 {
		t.Fatalf("container %s of pod %s/%s was given no device", container, pod.Namespace, pod.Name)
	}

	var want []string
	for _, id := range ids {
		want = append(want, c.expected(t, id, pod, container, sharing))
	}

	return want
}

// expected returns what must be shown of a device that a container holds.
func (c *cluster) expected(t *testing.T, id string, pod *corev1.Pod, container, sharing string) string {
	t.Helper()

	device, ok := c.devices[id]
	if !ok {
		t.Fatalf("no device has the id %q", id)
	}

	return strings.Join([]string{device, pod.Namespace, pod.Name, container, sharing, "confirmed=true"}, " ")
}

func (h holder) String() string {
	return strings.Join([]string{h.device, h.namespace, h.pod, h.container, h.sharing, "confirmed=" + h.confirmed}, " ")
}

// awaitHolders waits until the exporter shows exactly these holders on the whole node, and knows
// that there are no others.
func (c *cluster) awaitHolders(t *testing.T, want []string) {
	t.Helper()
	slices.Sort(want)

	if err := await(time.Minute, func() error { return c.checkHolders(want) }); err != nil {
		t.Fatal(err)
	}
}

// checkHolders compares the holders that the exporter shows with these, which are sorted.
func (c *cluster) checkHolders(want []string) error {
	families, err := scrape()
	if err != nil {
		return err
	}

	var have []string
	for _, h := range holdersOf(families) {
		have = append(have, h.String())
	}

	slices.Sort(have)

	if !slices.Equal(have, want) {
		return fmt.Errorf("holders:\n%s\nwant:\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}

	return c.checkAllocated(heldDevices(families), want)
}

// heldDevices returns the devices of which it is known whether they are allocated, and whether they
// are.
func heldDevices(families map[string]*dto.MetricFamily) map[string]bool {
	out := map[string]bool{}
	for device, value := range allocatedOf(families) {
		out[device] = value == 1
	}

	return out
}

// checkAllocated compares the *_allocated series with holders: a device is allocated if it, a part
// of it or all of it is held. None may be missing.
func (c *cluster) checkAllocated(have map[string]bool, holders []string) error {
	want := map[string]bool{}
	for device := range maps.Keys(have) {
		want[device] = slices.ContainsFunc(holders, func(h string) bool {
			held, _, _ := strings.Cut(h, " ")
			return held == device || strings.HasPrefix(held, device+"/") || strings.HasPrefix(device, held+"/")
		})
	}

	if !maps.Equal(have, want) {
		return fmt.Errorf("allocated: %v, want %v", have, want)
	}

	gpus := 0

	for device := range have {
		if !strings.Contains(device, "/") {
			gpus++
		}
	}

	if gpus != len(c.layout.GPUs) {
		return fmt.Errorf("of %d GPUs it is known whether they are allocated, want %d", gpus, len(c.layout.GPUs))
	}

	return nil
}
