package kubelettest

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNoHolders: the exporter knows that nothing is held, by its own pod in the kubelet's list.
func TestNoHolders(t *testing.T) { startShared(t).awaitHolders(t, nil) }

// TestHolderOfEveryForm: each container is shown as the holder of what its device plugin gave it,
// whatever form the ids have, and no device has another holder.
func TestHolderOfEveryForm(t *testing.T) {
	c := startShared(t)
	var want []string

	for _, given := range []struct {
		pod, resource string
		count         int64
		sharing       string
	}{
		{"whole", "nvidia.com/gpu", 1, "exclusive"},
		{"replica-a", "nvidia.com/gpu.shared", 1, "time-slicing"},
		{"replica-b", "nvidia.com/gpu.shared", 1, "time-slicing"},
		{"first-compute-instance", "nvidia.com/mig-1c.3g.20gb", 1, "exclusive"},
		{"second-compute-instance", "nvidia.com/mig-2c.3g.20gb", 1, "exclusive"},
		{"gpu-instance", "nvidia.com/mig-2g.10gb", 1, "exclusive"},
		{"mig-replica-a", "nvidia.com/mig-1g.5gb.shared", 1, "time-slicing"},
		{"mig-replica-b", "nvidia.com/mig-1g.5gb.shared", 1, "time-slicing"},
		{"legacy", "example.com/legacy-mig", 1, "exclusive"},
		{"hami-a", "example.com/hami-gpu", 1, "hami"},
		{"hami-b", "example.com/hami-gpu", 1, "hami"},
		{"gke-mig", "example.com/gke-mig", 1, "exclusive"},
		{"gke-vgpu-a", "example.com/gke-vgpu", 1, "time-slicing"},
		{"gke-vgpu-b", "example.com/gke-vgpu", 1, "time-slicing"},
		{"three", "nvidia.com/mig-1g.5gb", 3, "exclusive"},
	} {
		pod := c.run(t, newPod("ml", given.pod, newContainer("main", given.resource, given.count)))
		want = append(want, c.given(t, pod, "main", given.sharing)...)
	}

	c.awaitHolders(t, want)
}

// TestHolderInits: a device of a plain init container is in no list of the kubelet, but held until
// its pod ends; that of a sidecar is listed.
func TestHolderInits(t *testing.T) {
	c := startShared(t)
	fetch := newContainer("fetch", "nvidia.com/mig-1g.5gb", 1)
	fetch.Command = []string{"/bin/busybox", "sh", "-c", "echo devices=$" + allocatedVariable +
		"; until [ -e /go/on ]; do busybox usleep 100000; done"}
	fetch.VolumeMounts = []corev1.VolumeMount{{Name: "go", MountPath: "/go"}}
	sidecar := newContainer("proxy", "nvidia.com/mig-1g.5gb", 1)
	sidecar.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
	pod := newPod("ml", "prepared", newContainer("main", "nvidia.com/mig-2g.10gb", 1))
	pod.Spec.InitContainers = []corev1.Container{sidecar, fetch}
	pod.Spec.Volumes = []corev1.Volume{{Name: "go", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{}}}}

	created, err := c.client.CoreV1().Pods("ml").Create(c.ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	c.deleteAfter(t, pod)
	// The main container is listed with its device before it runs.
	inits := append(c.given(t, created, "proxy", "exclusive"), c.given(t, created, "fetch", "exclusive")...)
	ids, _ := c.plugins["nvidia.com/mig-2g.10gb"].offered()
	all := append(inits, c.expected(t, ids[0], created, "main", "exclusive"))
	c.awaitHolders(t, all)
	c.touch(t, created, "go", "on")

	if _, err := c.awaitPod(c.ctx, created, corev1.PodRunning); err != nil {
		t.Fatal(err)
	}

	c.awaitHolders(t, all)
}

// TestHolderClaims: devices of claims are held by the containers that use the claims, and a claim
// for administrative access holds nothing.
func TestHolderClaims(t *testing.T) {
	c := startShared(t)
	train := c.bindClaims(t, newPod("ml", "train", newContainer("main", "", 0)), "train", false, "gpu-6")
	pair := c.bindClaims(t, newPod("ml", "pair", newContainer("a", "", 0), newContainer("b", "", 0)), "pair", false,
		"gpu-7-mig-3g20gb-9-4")
	two := c.bindClaims(t, newPod("chat", "two", newContainer("main", "", 0)), "two", false, "gpu-7-mig-1g5gb-19-0",
		"gpu-7-mig-1g5gb-19-1")
	c.bindClaims(t, newPod(monitorsNamespace, "monitor", newContainer("main", "", 0)), "monitor", true, "gpu-6",
		"gpu-7-mig-2g10gb-14-2", "gpu-7-mig-3g20gb-9-4")
	c.awaitHolders(t, []string{
		c.expected(t, "gpu-6", train, "main", "exclusive"),
		c.expected(t, "gpu-7-mig-3g20gb-9-4", pair, "a", "claim"),
		c.expected(t, "gpu-7-mig-3g20gb-9-4", pair, "b", "claim"),
		c.expected(t, "gpu-7-mig-1g5gb-19-0", two, "main", "exclusive"),
		c.expected(t, "gpu-7-mig-1g5gb-19-1", two, "main", "exclusive"),
	})
}

// bindClaims creates a pod whose containers all use one claim, and the claim with its allocation,
// as a scheduler binds a pod after it has allocated the claim.
func (c *cluster) bindClaims(t *testing.T, pod *corev1.Pod, claim string, admin bool, devices ...string) *corev1.Pod {
	t.Helper()

	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: &claim}}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
	}

	pod.Spec.NodeName = ""

	created, err := c.client.CoreV1().Pods(pod.Namespace).Create(c.ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := c.client.ResourceV1().ResourceClaims(pod.Namespace).Delete(c.ctx, claim,
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	c.deleteAfter(t, pod)

	if err := c.claim(c.ctx, pod.Namespace, claim, admin, devices, created); err != nil {
		t.Fatal(err)
	}

	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{
		Kind: "Node", Name: nodeName}}
	if err := c.client.CoreV1().Pods(pod.Namespace).Bind(c.ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	running, err := c.awaitPod(c.ctx, created, corev1.PodRunning)
	if err != nil {
		t.Fatal(err)
	}

	return running
}

// TestHolderStatic: a static pod holds its device under the name that the kubelet gives it.
func TestHolderStatic(t *testing.T) {
	c := startShared(t)
	pod := newPod("ml", "edge", newContainer("main", "nvidia.com/gpu", 1))
	mirror := c.writeStaticPod(t, pod)
	ids, _ := c.plugins["nvidia.com/gpu"].offered()
	c.awaitHolders(t, []string{c.expected(t, ids[0], mirror, "main", "exclusive")})
}

// TestHolderLabels: the owner and the chosen label of a pod, and how long after the start of its
// container they are there.
func TestHolderLabels(t *testing.T) {
	c := startShared(t)
	var toHolder, toOwner []time.Duration

	for round := range 10 {
		name := fmt.Sprintf("web-7d4b9c-%d", round)
		pod := ownedBy(newPod("chat", name, newContainer("main", "nvidia.com/gpu", 1)), "ReplicaSet", "web-7d4b9c")

		pod.Labels["pod-template-hash"] = "7d4b9c"
		if _, err := c.client.CoreV1().Pods("chat").Create(c.ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}

		var held, owned time.Time

		err := await(time.Minute, func() error {
			families, err := scrape()
			if err != nil {
				return err
			}

			for _, h := range holdersOf(families) {
				if h.pod != name {
					return fmt.Errorf("another pod holds a device: %v", h)
				}

				if held.IsZero() {
					held = time.Now()
				}

				if h.workload == "Deployment/web" && h.team == "chat" {
					owned = time.Now()
					return nil
				}
			}

			return fmt.Errorf("pod %s has no owner", name)
		})
		if err != nil {
			t.Fatal(err)
		}

		running, err := c.awaitPod(c.ctx, pod, corev1.PodRunning)
		if err != nil {
			t.Fatal(err)
		}

		var began time.Time

		if err := await(time.Minute, func() (err error) {
			_, began, err = givenDevices(running, "main")
			return err
		}); err != nil {
			t.Fatal(err)
		}

		toHolder, toOwner = append(toHolder, held.Sub(began)), append(toOwner, owned.Sub(began))

		if err := c.deletePod(c.ctx, "chat", name); err != nil {
			t.Fatal(err)
		}

		c.awaitHolders(t, nil)
	}

	recordDurations("a pod's device is shown, after its container's start", toHolder)
	recordDurations("its owner and label are shown, after its container's start", toOwner)
}
