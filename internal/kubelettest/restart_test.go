package kubelettest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watch scrapes the exporter all the time, and holds every scrape against what is true throughout:
// which devices have which holders.
type watch struct {
	held map[string][]string // namespace/pod/container of the holders, by device
	done chan struct{}
	end  sync.WaitGroup

	mu         sync.Mutex
	violations []violation
	scrapes    int
	unknown    []time.Time // scrapes in which it was not known whether a device is free
	unproven   []time.Time // scrapes in which a holder was not confirmed
	plans      int         // that were asked for and refused
}

// violation is what was wrong, with a device if it is about its holders.
type violation struct{ device, text string }

// watchHolders starts a watch of the holders that awaitHolders has waited for. It ends with stop.
func (c *cluster) watchHolders(t *testing.T, holders []string) *watch {
	t.Helper()
	c.awaitHolders(t, holders)
	w := &watch{held: map[string][]string{}, done: make(chan struct{})}

	for _, h := range holders {
		fields := strings.Fields(h)
		w.held[fields[0]] = append(w.held[fields[0]], strings.Join(fields[1:4], "/"))
	}

	w.end.Go(func() { w.repeat(100*time.Millisecond, w.checkScrape) })
	w.end.Go(func() { w.repeat(500*time.Millisecond, func() { w.checkPlans(c) }) })

	return w
}

func (w *watch) repeat(every time.Duration, check func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()

	for {
		check()

		select {
		case <-w.done:
			return
		case <-tick.C:
		}
	}
}

func (w *watch) violate(device, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if v := (violation{device, fmt.Sprintf(format, args...)}); !slices.Contains(w.violations, v) {
		w.violations = append(w.violations, v)
	}
}

// checkScrape: no held device is free, none has a wrong holder, and none has lost one.
func (w *watch) checkScrape() {
	families, err := scrape()
	if err != nil {
		w.violate("", "scrape: %v", err)
		return
	}

	now := time.Now()
	shown := map[string][]string{}
	confirmed := true

	for _, h := range holdersOf(families) {
		name := strings.Join([]string{h.namespace, h.pod, h.container}, "/")
		shown[h.device] = append(shown[h.device], name)

		confirmed = confirmed && h.confirmed == "true"
		if !slices.Contains(w.held[h.device], name) {
			w.violate("", "device %s has a wrong holder: %s", h.device, name)
		}
	}

	allocated := heldDevices(families)
	for device, holders := range w.held {
		if is, known := allocated[device]; known && !is {
			w.violate(device, "device %s is shown as free", device)
		}

		for _, holder := range holders {
			if !slices.Contains(shown[device], holder) {
				w.violate(device, "device %s is not shown as held by %s", device, holder)
			}
		}
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.scrapes++
	if len(families["nvidia_gpu_allocated"].GetMetric()) < len(families["nvidia_gpu_info"].GetMetric()) {
		w.unknown = append(w.unknown, now)
	}

	if !confirmed {
		w.unproven = append(w.unproven, now)
	}
}

// checkPlans: no plan destroys an instance that is held, and while we do not know whether the idle
// instance of GPU 8 is free, none destroys that.
func (w *watch) checkPlans(c *cluster) {
	for _, gpu := range []string{"2", "9"} {
		output, exit, err := c.migctl(c.ctx, "plan", "--gpus="+gpu, "--devices=none")
		if err != nil || exit != 1 {
			w.violate("", "a plan that destroys all instances of GPU %s: exit code %d, %v: %s", gpu, exit, err, output)
		}
	}

	before, err := readNodeDocument()
	if err != nil {
		w.violate("", "node: %v", err)
		return
	}

	output, exit, err := c.migctl(c.ctx, "plan", "--gpus=8", "--devices=none")
	planned := time.Now()

	if err != nil {
		w.violate("", "plan for GPU 8: %v", err)
	}

	// A plan asks the kubelet itself, and the document can be older: one of a later poll counts.
	var after *nodeDocument

	if err := await(time.Minute, func() (err error) {
		after, err = readNodeDocument()
		if err == nil && !after.Time.After(planned) {
			err = fmt.Errorf("the document is of %s", after.Time)
		}

		return err
	}); err != nil {
		w.violate("", "node: %v", err)
		return
	}

	if before.GPUs[8].Allocated == nil && after.GPUs[8].Allocated == nil && exit != 1 {
		w.violate("", "a plan destroys the instance of GPU 8 while it is not known whether it is free: exit code %d: %s", exit,
			output)
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.plans += 2
	if exit == 1 {
		w.plans++
	}
}

// stop ends the watch, waits for the holders of the pods that have survived, and reports what was
// wrong about them.
func (w *watch) stop(t *testing.T, c *cluster, holders []string, what string, since time.Time) {
	t.Helper()
	close(w.done)
	w.end.Wait()

	survived := c.awaitSurvivors(t, holders)
	for _, v := range w.violations {
		if v.device == "" || slices.ContainsFunc(survived, func(h string) bool { return strings.HasPrefix(h, v.device+" ") }) {
			t.Errorf("%s: %s", what, v.text)
		}
	}

	last := func(times []time.Time) string {
		if len(times) == 0 {
			return "never"
		}

		return fmt.Sprintf("from %s to %s", times[0].Sub(since).Round(100*time.Millisecond),
			times[len(times)-1].Sub(since).Round(100*time.Millisecond))
	}
	record("%s: %d scrapes, %d plans refused; free devices unknown %s, holders unconfirmed %s after it", what, w.scrapes,
		w.plans, last(w.unknown), last(w.unproven))

	if len(w.unknown) == 0 {
		t.Errorf("%s: it was never unknown whether a device is free", what)
	}
}

// awaitSurvivors waits until the exporter shows these holders but for those of pods that the
// restarted kubelet has refused, and returns them. A kubelet allocates once more for an init
// container that has ended, and fails its pod if the device plugin has not registered again yet:
// the device is free then.
func (c *cluster) awaitSurvivors(t *testing.T, holders []string) []string {
	t.Helper()
	slices.Sort(holders)
	var survived []string

	if err := await(time.Minute, func() error {
		survived = nil

		for _, h := range holders {
			fields := strings.Fields(h)

			pod, err := c.client.CoreV1().Pods(fields[1]).Get(c.ctx, fields[2], metav1.GetOptions{})
			if err != nil {
				return err
			}

			if pod.Status.Phase != corev1.PodFailed || pod.Status.Reason != "UnexpectedAdmissionError" {
				survived = append(survived, h)
			} else if len(pod.Spec.InitContainers) == 0 {
				return fmt.Errorf("the kubelet refuses %s: %s", pod.Name, pod.Status.Message)
			}
		}

		return c.checkHolders(survived)
	}); err != nil {
		t.Fatal(err)
	}

	if refused := len(holders) - len(survived); refused > 0 {
		record("the restarted kubelet refused %d pod whose init container had ended", refused)
	}

	return survived
}

// awaitComplete waits until the exporter knows all holders again.
func (c *cluster) awaitComplete(t *testing.T, timeout time.Duration) {
	t.Helper()

	if err := await(timeout, func() error {
		document, err := readNodeDocument()
		if err == nil && document.Node.HoldersIncomplete != "" {
			err = fmt.Errorf("holders are incomplete: %s", document.Node.HoldersIncomplete)
		}

		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// awaitIncomplete waits until the exporter has noticed that it does not know all holders.
func (c *cluster) awaitIncomplete(t *testing.T) {
	t.Helper()

	if err := await(time.Minute, func() error {
		document, err := readNodeDocument()
		if err == nil && document.Node.HoldersIncomplete == "" {
			err = fmt.Errorf("the exporter still knows all holders")
		}

		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// holdMany starts pods that hold devices in many ways, and returns what must be shown.
func (c *cluster) holdMany(t *testing.T) []string {
	t.Helper()
	var want []string

	for _, given := range []struct{ pod, resource, sharing string }{
		{"replica-a", "nvidia.com/gpu.shared", "time-slicing"},
		{"replica-b", "nvidia.com/gpu.shared", "time-slicing"},
		{"first-compute-instance", "nvidia.com/mig-1c.3g.20gb", "exclusive"},
		{"second-compute-instance", "nvidia.com/mig-2c.3g.20gb", "exclusive"},
		{"hami", "example.com/hami-gpu", "hami"},
		{"gke-mig", "example.com/gke-mig", "exclusive"},
		{"gke-vgpu", "example.com/gke-vgpu", "time-slicing"},
		{"slice", "nvidia.com/mig-1g.5gb", "exclusive"},
	} {
		pod := c.run(t, newPod("ml", given.pod, newContainer("main", given.resource, 1)))
		want = append(want, c.given(t, pod, "main", given.sharing)...)
	}

	prepared := newPod("ml", "prepared", newContainer("main", "", 0))
	fetch := newContainer("fetch", "nvidia.com/mig-1g.5gb", 1)
	fetch.Command[3] = "echo devices=$" + allocatedVariable
	prepared.Spec.InitContainers = []corev1.Container{fetch}
	want = append(want, c.given(t, c.run(t, prepared), "fetch", "exclusive")...)
	claimed := c.bindClaims(t, newPod("ml", "claimed", newContainer("main", "", 0)), "claimed", false, "gpu-6")
	c.bindClaims(t, newPod(monitorsNamespace, "monitor", newContainer("main", "", 0)), "monitor", true, "gpu-6",
		"gpu-7-mig-2g10gb-14-2")
	static := c.writeStaticPod(t, newPod("ml", "edge", newContainer("main", "nvidia.com/gpu", 1)))
	ids, _ := c.plugins["nvidia.com/gpu"].offered()

	return append(want, c.expected(t, "gpu-6", claimed, "main", "exclusive"),
		c.expected(t, ids[0], static, "main", "exclusive"))
}

// TestKubeletRestart: a kubelet that is killed and started again forgets its pods for a while. No
// device of theirs is shown as free meanwhile, and no plan destroys an instance.
func TestKubeletRestart(t *testing.T) {
	c := startShared(t)
	holders := c.holdMany(t)
	w := c.watchHolders(t, holders)
	began := time.Now()

	if err := c.killKubelet(); err != nil {
		t.Fatal(err)
	}

	c.awaitIncomplete(t)

	if err := c.kubelet.start(); err != nil {
		t.Fatal(err)
	}

	if err := c.awaitNodeReady(); err != nil {
		t.Fatal(err)
	}

	c.awaitComplete(t, 2*time.Minute)
	w.stop(t, c, holders, "the kubelet is killed and started again", began)
}

// TestKubeletRestartWithoutAPIServer: such a kubelet knows its static pods alone until the API
// server is back.
func TestKubeletRestartWithoutAPIServer(t *testing.T) {
	c := startShared(t)
	holders := c.holdMany(t)
	w := c.watchHolders(t, holders)
	began := time.Now()

	if err := c.apiserver.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}

	if err := c.killKubelet(); err != nil {
		t.Fatal(err)
	}

	c.awaitIncomplete(t)

	if err := c.kubelet.start(); err != nil {
		t.Fatal(err)
	}

	listed := c.awaitKubeletList(t, 0)
	for _, pod := range listed {
		if !strings.HasSuffix(pod, "-"+nodeName) {
			t.Errorf("the kubelet lists %s without the API server", pod)
		}
	}

	record("a kubelet without its API server lists %d pods, static ones, %s after the kill", len(listed),
		time.Since(began).Round(100*time.Millisecond))
	c.checkMetricsFor(t, 30*time.Second, w)

	if err := c.apiserver.start(); err != nil {
		t.Fatal(err)
	}

	if err := c.awaitAPIServer(); err != nil {
		t.Fatal(err)
	}

	back := time.Now()
	c.awaitComplete(t, 5*time.Minute)
	record("the list is complete %s after the API server is back", time.Since(back).Round(100*time.Millisecond))
	w.stop(t, c, holders, "the kubelet is started again without its API server", began)
}

// checkMetricsFor waits until the watch has made as many scrapes as fit in a time, all of them
// while the list is not complete.
func (c *cluster) checkMetricsFor(t *testing.T, span time.Duration, w *watch) {
	t.Helper()
	count := func() (scrapes, unknown int) {
		w.mu.Lock()
		defer w.mu.Unlock()

		return w.scrapes, len(w.unknown)
	}
	scrapes, unknown := count()
	want := int(span / (200 * time.Millisecond))

	if err := await(5*time.Minute, func() error {
		if now, _ := count(); now < scrapes+want {
			return fmt.Errorf("%d scrapes, want %d", now-scrapes, want)
		}

		return nil
	}); err != nil {
		t.Fatal(err)
	}

	now, nowUnknown := count()
	if now-scrapes != nowUnknown-unknown {
		t.Errorf("without the API server, %d of %d scrapes say which devices are free", now-scrapes-nowUnknown+unknown,
			now-scrapes)
	}
}
