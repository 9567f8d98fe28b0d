package kubelet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-kit/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/kubelet"
)

const (
	gpuA = "GPU-fb8bbc70-d551-45f9-43d4-9734f9cddb2c"
	gpuB = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
	migA = "MIG-5f3c8e0a-91d2-5c7b-8b43-0d4c6a7e1f20"
)

// fakeNode has the containers that a test gives it.
type fakeNode struct {
	mu         sync.Mutex
	containers []sim.Container
	block      chan struct{} // until it is closed, Containers does not return
}

func (n *fakeNode) Containers() []sim.Container {
	n.mu.Lock()
	containers := n.containers
	block := n.block
	n.mu.Unlock()

	if block != nil {
		<-block
	}

	return containers
}

func (n *fakeNode) Running() []sim.Container {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.containers
}

func (n *fakeNode) Checkpoint() sim.Checkpoint { return sim.Checkpoint{} }

func (n *fakeNode) Allocatable() []sim.DeviceGrant {
	return []sim.DeviceGrant{{Resource: "nvidia.com/gpu", IDs: []string{gpuA, gpuB}}}
}

func (n *fakeNode) set(containers ...sim.Container) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.containers = containers
}

func id(n int) string { return fmt.Sprintf("%064x", n) }

func held(pod, container string, n int, resource string, ids ...string) sim.Container {
	return sim.Container{
		Namespace: "ml", Pod: pod, Name: container, PodUID: "2f0b7c1e-8a53-4f0e-9d8e-3b1f6f8f0f11", ID: id(n),
		PIDs: []uint32{uint32(1000 + n)}, Devices: []sim.DeviceGrant{{Resource: resource, IDs: ids}},
	}
}

func serve(t *testing.T, node kubelet.NodeView) *kubelet.Server {
	t.Helper()

	s, err := kubelet.New(node, t.TempDir(), log.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})

	return s
}

// stopped is a clock that stands still: on it a backoff never ends by itself.
func stopped() time.Time { return time.Unix(1_700_000_000, 0) }

func client(t *testing.T, socket string) *podresources.Client {
	t.Helper()
	c := podresources.New(podresources.Options{Socket: socket, Now: stopped, Logger: log.NewNopLogger()})
	t.Cleanup(c.Close)

	return c
}

// within bounds a test that would otherwise wait for ever for what does not come.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)

	return ctx
}

func TestClientListsWhatTheKubeletGaveOut(t *testing.T) {
	node := &fakeNode{}
	sidecar := sim.Container{Namespace: "ml", Pod: "train-0", Name: "sidecar", ID: id(9)}
	claimer := sim.Container{Namespace: "ml", Pod: "train-1", Name: "main", ID: id(3), Claims: []sim.Claim{
		{Name: "two", Namespace: "ml", Driver: "gpu.nvidia.com", Pool: "node", Device: "gpu-2-mig-1g24gb-19-0"},
		{Name: "two", Namespace: "ml", Driver: "gpu.nvidia.com", Pool: "node", Device: "gpu-3"},
	}}
	node.set(held("train-0", "main", 1, "nvidia.com/gpu", gpuA, gpuB), sidecar,
		held("train-0", "other", 2, "nvidia.com/mig-3g.20gb", migA+"::1"), claimer)
	s := serve(t, node)
	c := client(t, s.Socket())
	var texts []string

	for range 10 {
		got, err := c.List(within(t))
		if err != nil {
			t.Fatal(err)
		}

		if len(got.List) != 5 || len(got.Unreadable) != 0 {
			t.Fatalf("got %+v, want 5 assignments", got)
		}

		texts = append(texts, fmt.Sprint(got))
	}

	for _, text := range texts {
		if text != texts[0] {
			t.Errorf("answers differ:\n%s\n%s", text, texts[0])
		}
	}
}

func dial(t *testing.T, socket string) kubeletapi.PodResourcesListerClient {
	t.Helper()

	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = conn.Close() })

	return kubeletapi.NewPodResourcesListerClient(conn)
}

func TestServerAnswersAsAKubelet(t *testing.T) {
	node := &fakeNode{}

	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprintf("%s::%d", gpuA, i))
	}

	sidecar := sim.Container{Namespace: "ml", Pod: "train-0", Name: "sidecar", ID: id(9)}
	node.set(held("train-0", "main", 1, "nvidia.com/gpu", ids...), sidecar,
		held("train-1", "main", 2, "nvidia.com/gpu", gpuB))
	list := func(kubelet kubeletapi.PodResourcesListerClient) *kubeletapi.PodResources {
		t.Helper()

		reply, err := kubelet.List(within(t), &kubeletapi.ListPodResourcesRequest{})
		if err != nil {
			t.Fatal(err)
		}

		if len(reply.PodResources) != 2 {
			t.Fatalf("%d pods, want 2", len(reply.PodResources))
		}

		for _, pod := range reply.PodResources {
			if pod.Name == "train-0" {
				return pod
			}
		}

		t.Fatal("no pod train-0")

		return nil
	}
	one := dial(t, serve(t, node).Socket())
	two := dial(t, serve(t, node).Socket())

	first := list(one)
	second := list(one)
	elsewhere := list(two)

	if len(first.Containers) != 2 {
		t.Fatalf("containers %v, want the one without devices too", first.Containers)
	}

	cmptest.Equal(t, "the container without devices", first.Containers[1].Name, "sidecar")
	cmptest.Equal(t, "its devices", len(first.Containers[1].Devices), 0)

	if n := len(first.Containers[0].Devices); n != 20 {
		t.Errorf("%d entries, want one for each of 20 devices", n)
	}

	if fmt.Sprint(first) == fmt.Sprint(second) {
		t.Error("the order of devices should differ between calls")
	}

	if fmt.Sprint(first) != fmt.Sprint(elsewhere) {
		t.Error("the order of devices should be the same in every run")
	}

	allocatable, err := one.GetAllocatableResources(within(t), &kubeletapi.AllocatableResourcesRequest{})
	if err != nil || len(allocatable.Devices) != 2 {
		t.Errorf("allocatable: %v, %v, want 2 entries", allocatable, err)
	}

	got, err := one.Get(within(t), &kubeletapi.GetPodResourcesRequest{PodName: "train-1", PodNamespace: "ml"})
	if err != nil || len(got.GetPodResources().GetContainers()) != 1 {
		t.Errorf("Get of a pod: %v, %v", got, err)
	}

	if _, err := one.Get(within(t),
		&kubeletapi.GetPodResourcesRequest{PodName: "train-1", PodNamespace: "other"}); err == nil {
		t.Error("Get of a pod that does not exist gives no error")
	}
}

// untilItAnswers asks again and again; with the clock standing still only the watch on the socket
// can end a backoff.
func untilItAnswers(t *testing.T, c *podresources.Client) gpu.Assignments {
	t.Helper()

	ctx := within(t)
	for {
		got, err := c.List(ctx)
		if err == nil {
			return got
		}

		if ctx.Err() != nil {
			t.Fatalf("the new socket was not noticed: %v", err)
		}
	}
}

func TestClientFindsARestartedKubelet(t *testing.T) {
	node := &fakeNode{}
	node.set(held("train-0", "main", 1, "nvidia.com/gpu", gpuA))
	s := serve(t, node)

	c := client(t, s.Socket())
	if _, err := c.List(within(t)); err != nil {
		t.Fatal(err)
	}

	for range 3 {
		s.Stop()

		if _, err := os.Stat(s.Socket()); err != nil {
			t.Errorf("a stopped kubelet leaves its socket: %v", err)
		}

		_, err := c.List(within(t))
		if !errors.Is(err, gpu.ErrUnavailable) || errors.Is(err, gpu.ErrNotFound) || errors.Is(err, gpu.ErrTimeout) {
			t.Errorf("a stopped kubelet gives %v, want %v, neither %v nor %v", err, gpu.ErrUnavailable, gpu.ErrNotFound,
				gpu.ErrTimeout)
		}

		if _, again := c.List(within(t)); !errors.Is(again, err) {
			t.Errorf("during the backoff List gives %v, want the same error again: %v", again, err)
		}

		if err := s.Start(); err != nil {
			t.Fatal(err)
		}

		if got := untilItAnswers(t, c); len(got.List) != 1 {
			t.Errorf("after the restart: %+v", got)
		}
	}
}

// TestClientKeepsTheHoldersOfAKubeletThatStarts: they are unconfirmed until its list is settled, by
// a new witness.
func TestClientKeepsTheHoldersOfAKubeletThatStarts(t *testing.T) {
	node := &fakeNode{}
	train := held("train-0", "main", 1, "nvidia.com/gpu", gpuA)
	witness := held("witness", "main", 2, "example.com/none")
	node.set(train, witness)
	s := serve(t, node)
	now := stopped()
	c := podresources.New(podresources.Options{Socket: s.Socket(), Witness: "ml/witness",
		Now: func() time.Time { return now }, Logger: log.NewNopLogger()})
	defer c.Close()
	want := func(what string, confirmed, unconfirmed int, complete bool) {
		t.Helper()
		now = now.Add(time.Second)

		got, err := c.List(within(t))
		for _, a := range got.List {
			if a.Holder.Unconfirmed == "" {
				confirmed--
			} else {
				unconfirmed--
			}
		}

		if err != nil {
			t.Errorf("%s: %v", what, err)
		}

		cmptest.Equal(t, what+": missing confirmed and unconfirmed holders", [2]int{confirmed, unconfirmed}, [2]int{})
		cmptest.Equal(t, what+": the list is complete", got.Incomplete == "", complete)
	}
	want("at first", 1, 0, false)
	want("a second later", 1, 0, false)
	now = now.Add(time.Minute) // nothing but the list says which pods there are
	want("once it is settled", 1, 0, true)
	node.set(witness)
	want("when the pod has ended", 0, 0, true)
	node.set(train, witness)
	want("when it is back", 1, 0, true)
	s.Stop()
	node.set()

	if err := s.Start(); err != nil {
		t.Fatal(err)
	}

	for range 100 {
		want("after a restart", 0, 1, false)
	}

	node.set(witness)
	want("when it lists the witness", 0, 1, false)
	want("a second later", 0, 1, false)

	for range 100 {
		want("when it does not list the pod for long", 0, 1, false)
	}

	node.set(held("eval-0", "main", 1, "nvidia.com/gpu", gpuA), witness)
	want("when another pod has the device", 1, 0, false)
	want("a second later", 1, 0, false)
	want("when its list is settled", 1, 0, true)
}

func TestClientFindsASocketInAReplacedDirectory(t *testing.T) {
	top := t.TempDir()
	t.Chdir(top)
	start := func(pods int) *kubelet.Server {
		t.Helper()

		node := &fakeNode{}
		for n := range pods {
			node.containers = append(node.containers, held(fmt.Sprint("train-", n), "main", n, "nvidia.com/gpu", gpuA))
		}

		s, err := kubelet.New(node, filepath.Join(top, "var", "pod-resources"), log.NewNopLogger())
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(s.Stop)

		return s
	}
	start(1)
	c := client(t, filepath.Join("var", "pod-resources", "kubelet.sock"))
	t.Chdir(t.TempDir())

	if got, err := c.List(within(t)); err != nil || len(got.List) != 1 {
		t.Fatalf("a relative path: %+v, %v", got, err)
	}

	// Nothing happens in the directory that is watched, and the first kubelet goes on to answer.
	if err := os.Rename(filepath.Join(top, "var"), filepath.Join(top, "old")); err != nil {
		t.Fatal(err)
	}

	second := start(2)

	if got, err := c.List(within(t)); err != nil || len(got.List) != 2 {
		t.Errorf("after the directory was replaced: %+v, %v, want 2 assignments", got, err)
	}

	second.Stop()

	if _, err := c.List(within(t)); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("a stopped kubelet gives %v", err)
	}

	if err := second.Start(); err != nil {
		t.Fatal(err)
	}

	if got, err := c.List(within(t)); err != nil || len(got.List) != 2 {
		t.Errorf("after the restart: %+v, %v, want 2 assignments", got, err)
	}
}

func TestClientWaitsForADirectoryAndASocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod-resources")

	c := client(t, filepath.Join(dir, "kubelet.sock"))
	for range 2 {
		_, err := c.List(within(t))
		if !errors.Is(err, gpu.ErrUnavailable) || !errors.Is(err, gpu.ErrNotFound) ||
			!strings.Contains(err.Error(), dir+"/kubelet.sock") {
			t.Errorf("without a socket: %v, want %v and %v, with the path", err, gpu.ErrUnavailable, gpu.ErrNotFound)
		}
	}

	for range 2 { // the second time in a directory that was created again
		s, err := kubelet.New(&fakeNode{}, dir, log.NewNopLogger())
		if err != nil {
			t.Fatal(err)
		}

		if _, err := c.List(within(t)); err != nil {
			t.Errorf("with a socket: %v", err)
		}

		s.Stop()

		if _, err := c.List(within(t)); !errors.Is(err, gpu.ErrUnavailable) {
			t.Errorf("a stopped kubelet gives %v", err)
		}

		if err := s.Start(); err != nil {
			t.Fatal(err)
		}

		untilItAnswers(t, c)

		if err := s.Close(); err != nil {
			t.Error(err)
		}

		if err := os.Remove(dir); err != nil {
			t.Errorf("Close should leave nothing behind: %v", err)
		}

		if _, err := c.List(within(t)); !errors.Is(err, gpu.ErrNotFound) {
			t.Errorf("with the directory gone: %v", err)
		}
	}
}

func TestClientAcceptsLargeReplies(t *testing.T) {
	node := &fakeNode{}
	var all []sim.Container

	for i := range 200 {
		var ids []string
		for j := range 100 {
			ids = append(ids, fmt.Sprintf("%s::%d", gpuA, 100*i+j))
		}

		all = append(all, held(fmt.Sprint("pod-", i), "main", i, "nvidia.com/gpu."+strings.Repeat("x", 200), ids...))
	}

	node.set(all...)

	s := serve(t, node)
	if _, err := dial(t, s.Socket()).List(within(t), &kubeletapi.ListPodResourcesRequest{}); err == nil {
		t.Fatal("the reply is within gRPC's own limit: nothing is tested here")
	}

	c := podresources.New(podresources.Options{Socket: s.Socket(), ResourceNames: []string{"nvidia.com/gpu.*"},
		Now: stopped, Logger: log.NewNopLogger()})
	defer c.Close()

	got, err := c.List(within(t))
	if err != nil || len(got.List) != 20_000 {
		t.Errorf("%d assignments, %v, want 20000", len(got.List), err)
	}
}

func TestClientHonoursTheContext(t *testing.T) {
	node := &fakeNode{block: make(chan struct{})}
	s := serve(t, node)
	t.Cleanup(func() { close(node.block) })

	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()

	_, err := client(t, s.Socket()).List(ctx)
	if !errors.Is(err, gpu.ErrUnavailable) || !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("a kubelet that does not answer gives %v, want %v", err, gpu.ErrTimeout)
	}

	c := client(t, s.Socket())
	ended := make(chan error)
	go func() {
		_, err := c.List(t.Context())
		ended <- err
	}()
	c.Close()

	if err := <-ended; !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("List of a client that is closed gives %v", err)
	}

	if _, err := c.List(within(t)); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("List after Close gives %v", err)
	}
}

func TestProcessesLeadToContainers(t *testing.T) {
	node := &fakeNode{}
	long := held(strings.Repeat("p", 150), "main", 3, "nvidia.com/gpu", gpuA)
	long.Namespace, long.ID = strings.Repeat("n", 60), strings.Repeat("ab", 32)
	node.set(held("train-0", "main", 1, "nvidia.com/gpu", gpuA), held("train-1", "main", 2, "nvidia.com/gpu", gpuB), long,
		sim.Container{Namespace: "ml", Pod: "starting", Name: "main"})
	s := serve(t, node)

	containers := podresources.NewContainers(podresources.ContainersOptions{
		ProcDir: s.ProcDir(), LogDir: s.LogDir(), Now: stopped, Logger: log.NewNopLogger(),
	})
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}

	for pid, want := range map[uint32]string{1001: "train-0", 1002: "train-1", 1003: long.Pod} {
		got, ok := containers.ContainerOf(pid)
		if !ok {
			t.Errorf("process %d is in no container", pid)
		}

		cmptest.Equal(t, fmt.Sprintf("pod and container of process %d", pid), [2]string{got.Pod, got.Name},
			[2]string{want, "main"})
	}

	// A List brings the files up to date; the process id goes to a successor.
	successor := held("train-2", "main", 4, "nvidia.com/gpu", gpuA)
	successor.PIDs = []uint32{1001}
	node.set(successor)

	if _, err := client(t, s.Socket()).List(within(t)); err != nil {
		t.Fatal(err)
	}

	if got, ok := containers.ContainerOf(1001); !ok || got.Pod != "train-2" {
		t.Errorf("process 1001 is in %+v, %v, want pod train-2", got, ok)
	}

	if got, ok := containers.ContainerOf(1002); ok {
		t.Errorf("process 1002 has ended and is in %+v", got)
	}
}

func TestNamesThatMakeNoFileAreReported(t *testing.T) {
	node := &fakeNode{}
	node.set(held("a/b", "main", 1, "nvidia.com/gpu", gpuA), held("train-0", "main", 2, "nvidia.com/gpu", gpuB))
	var buf bytes.Buffer

	s, err := kubelet.New(node, t.TempDir(), log.NewLogfmtLogger(log.NewSyncWriter(&buf)))
	if err != nil {
		t.Fatal(err)
	}

	if got, err := client(t, s.Socket()).List(within(t)); err != nil || len(got.List) != 2 {
		t.Errorf("List: %+v, %v", got, err)
	}

	if err := s.Close(); err != nil {
		t.Error(err)
	}

	if !strings.Contains(buf.String(), "a/b_ml_main") {
		t.Errorf("the log says %q", buf.String())
	}
}

func TestNewSaysWhyItCannotServe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	for _, dir := range []string{file, filepath.Join(t.TempDir(), strings.Repeat("d", 120))} {
		if _, err := kubelet.New(&fakeNode{}, dir, log.NewNopLogger()); err == nil {
			t.Errorf("a kubelet serves in %s", dir)
		}
	}
}

// TestFollow: what the faults of a node make of its kubelet.
func TestFollow(t *testing.T) {
	node := &fakeNode{}
	node.set(held("train-0", "main", 1, "nvidia.com/gpu", gpuA))
	s := serve(t, node)
	c := client(t, s.Socket())
	follow := func(state sim.KubeletState) {
		t.Helper()

		if err := s.Follow(state); err != nil {
			t.Fatal(err)
		}
	}
	follow(sim.KubeletState{})

	if got, err := c.List(within(t)); err != nil || len(got.List) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}

	follow(sim.KubeletState{Down: true})

	if _, err := c.List(within(t)); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("while it is down: %v", err)
	}

	follow(sim.KubeletState{Down: true})

	for restarts := range 2 {
		follow(sim.KubeletState{Restarts: restarts})

		if got, err := c.List(within(t)); err != nil || len(got.List) != 1 {
			t.Errorf("after %d restarts, at once: %+v, %v", restarts, got, err)
		}
	}

	follow(sim.KubeletState{Restarts: 1, Delay: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()

	if _, err := c.List(ctx); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("while it is slow: %v", err)
	}
}
