package kubelettest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	slowResource = "rdma.example.net/port"
	// slowAllocate is how long its device plugin takes.
	slowAllocate = 25 * time.Second
)

// profileWatch scrapes the exporter of one profile all the time, and notes what contradicts the
// devices that are held.
type profileWatch struct {
	name, url string
	held      []string // device namespace pod

	mu         sync.Mutex
	scrapes    int
	unknown    int // of them, those that do not tell whether every device is free
	unanswered int // scrapes without an answer, which tells nothing: the machine is busy
	violations []string
}

func (w *profileWatch) check() {
	body, err := getURL(w.url)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.unanswered++

		return
	}

	families, err := parseMetrics(body)
	if err != nil {
		w.note(false, err.Error())
		return
	}

	shown := map[string]bool{}
	for _, h := range holdersOf(families) {
		shown[strings.Join([]string{h.device, h.namespace, h.pod}, " ")] = true
	}

	allocated := heldDevices(families)
	var wrong []string

	for _, held := range w.held {
		device, _, _ := strings.Cut(held, " ")
		if is, known := allocated[device]; known && !is {
			wrong = append(wrong, device+" is shown as free")
		}

		if !shown[held] {
			wrong = append(wrong, held+" is not shown")
		}
	}

	w.note(len(families["nvidia_gpu_allocated"].GetMetric()) < len(families["nvidia_gpu_info"].GetMetric()), wrong...)
}

func (w *profileWatch) note(unknown bool, wrong ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.scrapes++
	if unknown {
		w.unknown++
	}

	for _, text := range wrong {
		if !slices.Contains(w.violations, text) {
			w.violations = append(w.violations, text)
		}
	}
}

// report reports what was wrong, and whether there were too few scrapes to tell; blocked is whether
// the kubelet waited for the device plugin meanwhile.
func (w *profileWatch) report(t *testing.T, blocked bool) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, text := range w.violations {
		t.Errorf("%s: %s", w.name, text)
	}

	if blocked && (w.unknown < 10 || w.unanswered > w.scrapes/2) {
		t.Errorf("%s: %d scrapes, %d of them with free devices unknown, and %d without an answer: too few to judge by",
			w.name, w.scrapes, w.unknown, w.unanswered)
	}

	record("slow admission, %s: %d scrapes, %d with free devices unknown", w.name, w.scrapes, w.unknown)
}

// isComplete reports whether the exporter knows all holders.
func (w *profileWatch) isComplete() error {
	body, err := getURL(w.url)
	if err != nil {
		return err
	}

	families, err := parseMetrics(body)
	if err != nil {
		return err
	}

	known := len(families["nvidia_gpu_allocated"].GetMetric())

	gpus := len(families["nvidia_gpu_info"].GetMetric())
	if known < gpus {
		return fmt.Errorf("%s: of %d of %d GPUs it is known whether they are allocated", w.name, known, gpus)
	}

	for _, h := range holdersOf(families) {
		if h.confirmed != "true" {
			return fmt.Errorf("%s: %v", w.name, h)
		}
	}

	return nil
}

// startProfiles starts an exporter of each profile beside that of control, and of some with fewer
// sources.
func (c *cluster) startProfiles(t *testing.T) []*profileWatch {
	t.Helper()
	url := func(pod *corev1.Pod) string { return "http://" + pod.Status.PodIP + ":9401/metrics" }

	watches := []*profileWatch{{name: "control", url: url(c.exporter)}}
	for i, m := range c.installed[1:] {
		pod := c.run(t, m.pod("slow"+fmt.Sprint(i)))
		watches = append(watches, &profileWatch{name: profiles[i+1].namespace, url: url(pod)})
	}

	for name, m := range map[string]*manifest{"the defaults without the checkpoint": c.installed[1],
		"mig without the checkpoint": c.installed[2]} {
		pod := c.run(t, m.pod("list", "--kubernetes.checkpoint="))
		watches = append(watches, &profileWatch{name: name, url: url(pod)})
	}

	return watches
}

// waitingPods creates pods that ask for the resource of the slow device plugin and are not bound to
// the node yet. All pods that are created later are younger.
func (c *cluster) waitingPods(t *testing.T, count int) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod

	for n := range count {
		pod := newPod("ml", fmt.Sprint("older-", n), newContainer("main", slowResource, 1))
		pod.Spec.NodeName = ""

		created, err := c.client.CoreV1().Pods("ml").Create(c.ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}

		c.deleteAfter(t, pod)
		pods = append(pods, created)
	}

	// Times of creation have no fractions of a second.
	last := pods[count-1].CreationTimestamp.Time

	if err := await(10*time.Second, func() error {
		if !time.Now().After(last.Add(2 * time.Second)) {
			return errors.New("the clock stands still")
		}

		return nil
	}); err != nil {
		t.Fatal(err)
	}

	return pods
}

// TestKubeletRestartWithSlowAdmission: while the kubelet is down, a pod is bound that is older than
// those that hold devices, and whose device plugin takes long to allocate. The restarted kubelet
// admits its pods by their age and waits there: its list has the exporters, which are older still,
// and lacks those that hold devices, for all that time. No exporter of any profile shows a device
// of theirs as free.
func TestKubeletRestartWithSlowAdmission(t *testing.T) {
	c := startShared(t)
	slow := newDevicePlugin(slowResource, "port-0", "port-1", "port-2", "port-3", "port-4")
	slow.delay = slowAllocate
	go slow.run(c.ctx, reportError)

	c.plugins[slowResource] = slow
	if err := c.awaitResources(); err != nil {
		t.Fatal(err)
	}

	watches := c.startProfiles(t)
	older := c.waitingPods(t, 5)
	var holders []string

	for _, given := range []struct{ pod, resource string }{
		{"whole", "nvidia.com/gpu"}, {"slice-a", "nvidia.com/mig-1g.5gb"}, {"slice-b", "nvidia.com/mig-1g.5gb"},
	} {
		pod := c.run(t, newPod("ml", given.pod, newContainer("main", given.resource, 1)))
		for _, h := range c.given(t, pod, "main", "exclusive") {
			holders = append(holders, strings.Join(strings.Fields(h)[:3], " "))
		}
	}

	for _, w := range watches {
		w.held = holders
		if err := await(2*time.Minute, w.isComplete); err != nil {
			t.Fatal(err)
		}
	}

	// A kubelet refuses the pod if its device plugin has not registered again yet: then another one
	// is bound.
	for n, pod := range older {
		if c.restartWith(t, pod, watches) {
			return
		}

		record("the restarted kubelet refused pod %d of a slow device plugin", n)
	}

	t.Fatal("the kubelet has refused every pod of the slow device plugin")
}

// restartWith restarts the kubelet and binds a pod meanwhile, and reports whether the device plugin
// was asked for it.
func (c *cluster) restartWith(t *testing.T, pod *corev1.Pod, watches []*profileWatch) bool {
	t.Helper()

	done := make(chan struct{})

	end := sync.WaitGroup{}
	for _, w := range watches {
		end.Go(func() {
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()

			for {
				w.check()

				select {
				case <-done:
					return
				case <-tick.C:
				}
			}
		})
	}

	stop := sync.OnceFunc(func() { close(done); end.Wait() })
	defer stop()

	if err := c.killKubelet(); err != nil {
		t.Fatal(err)
	}

	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{
		Kind: "Node", Name: nodeName}}
	if err := c.client.CoreV1().Pods(pod.Namespace).Bind(c.ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	if err := c.kubelet.start(); err != nil {
		t.Fatal(err)
	}

	asked := c.awaitAllocate(t, pod)
	if asked {
		c.checkBlockedList(t)

		if _, err := c.awaitPod(c.ctx, pod, corev1.PodRunning); err != nil {
			t.Fatal(err)
		}
	}

	for _, w := range watches {
		if err := await(3*time.Minute, w.isComplete); err != nil {
			t.Error(err)
		}
	}

	stop()

	for _, w := range watches {
		w.report(t, asked)
	}

	return asked
}

// awaitAllocate waits until the device plugin is asked for a pod, and returns false if the kubelet
// refuses it.
func (c *cluster) awaitAllocate(t *testing.T, pod *corev1.Pod) (asked bool) {
	t.Helper()

	if err := await(2*time.Minute, func() error {
		if asked = c.plugins[slowResource].isAllocating(); asked {
			return nil
		}

		now, err := c.client.CoreV1().Pods(pod.Namespace).Get(c.ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.PodFailed {
			err = fmt.Errorf("pod %s is %s", pod.Name, now.Status.Phase)
		}

		return err
	}); err != nil {
		t.Fatal(err)
	}

	return asked
}

// checkBlockedList: for as long as the device plugin takes, the kubelet lists the exporters and
// none of the holders.
func (c *cluster) checkBlockedList(t *testing.T) {
	t.Helper()
	var listed []string

	if err := await(slowAllocate/2, func() error {
		listed = c.awaitKubeletList(t, 0)
		if !slices.Contains(listed, c.exporter.Namespace+"/"+c.exporter.Name) {
			return fmt.Errorf("the kubelet lists %v", listed)
		}

		return nil
	}); err != nil {
		t.Fatal(err)
	}

	if slices.Contains(listed, "ml/whole") || !c.plugins[slowResource].isAllocating() {
		t.Errorf("the kubelet does not wait for the device plugin: it lists %v", listed)
	}

	record("while it waits for a device plugin, the kubelet lists %d pods", len(listed))
}
