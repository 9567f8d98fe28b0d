package podresources

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A StatefulSet's pod is created again under its name on another device. The process of the new one
// keeps the old device held, for ever.
func TestAProcessOfTheSuccessorIsOnItsOwnDevice(t *testing.T) {
	g := newTestLedger(t, nil)
	g.running = func(a *gpu.Assignment) bool { return a.Holder.Pod == "web-0" && a.ID == gpuB }
	g.listUntilSettled(t, podWithDevices("web-0", gpuA))

	var got gpu.Assignments
	for range 100 {
		got = g.list(podWithDevices("web-0", gpuB), witness())
	}

	for _, a := range got.List {
		if a.ID == gpuA {
			t.Errorf("web-0 was created again with B, but A is reported as held by %s, unconfirmed %q", a.Holder.Pod,
				a.Holder.Unconfirmed)
		}
	}
}

// The kubelet lists the pod again between the check and the confirmation, which must not hide a
// fact.
func TestAListedHolderOverrulesAnOperator(t *testing.T) {
	g := newTestLedger(t, nil)
	g.listUntilSettled(t, podWithDevices("a", gpuA))
	g.resetForRestart(g.now)
	seen := g.list() // a? : what control has seen
	g.list(podWithDevices("a", gpuA), witness())
	g.confirm(nil, seen.List)

	for range 3 {
		if got := g.list(podWithDevices("a", gpuA), witness()); formatAssignments(got.List) != "a" {
			t.Fatalf("the kubelet lists a, reported is %q, incomplete %q", formatAssignments(got.List), got.Incomplete)
		}
	}
}

// The kubelet restarts between the check and the confirmation: the confirmation is about the former
// one.
func TestAConfirmationIsOfAnEpoch(t *testing.T) {
	g := newTestLedger(t, nil)
	g.list(podWithDevices("a", gpuA))
	seen := g.list()
	g.resetForRestart(g.now)
	g.list()

	if g.confirmFree(seen.Epoch, []gpu.DeviceRef{{GPU: gpuB}}, nil, g.now) {
		t.Error("taken")
	}

	if got := g.list(); len(got.Free) > 0 {
		t.Errorf("free %v after the kubelet has started again", got.Free)
	}
}

func TestALiveProcessOverrulesAnOperator(t *testing.T) {
	running := false
	g := newTestLedger(t, nil)
	g.running = func(*gpu.Assignment) bool { return running }
	g.listUntilSettled(t, podWithDevices("a", gpuA))
	g.resetForRestart(g.now)
	g.confirm(nil, g.list().List)
	running = true

	if got := formatAssignments(g.list().List); got != "a" {
		t.Errorf("its process runs, reported is %q", got)
	}
}

// The API server says that a pod runs whose device an operator has confirmed to be free.
func TestTheAPIServerOverrulesAnOperator(t *testing.T) {
	c := &fakeCluster{gone: map[string]bool{}}
	g := newTestLedger(t, c)
	g.checkpoint = testCheckpoint(t, uidA+" init "+gpuA)
	g.confirm(nil, g.listUntilSettled(t).List)
	c.pods = map[string]gpu.PodMetadata{"ns/a": {UID: uidA}}

	if got := formatAssignments(g.list(witness()).List); got != "a" {
		t.Errorf("the API server has the pod, reported is %q", got)
	}
}

// With an id of no known form the list is incomplete as long as that pod runs, and confirm-free
// lasts for one list.
func TestAConfirmationBesideUnreadableIDs(t *testing.T) {
	g := newTestLedger(t, nil)
	strange := podWithDevices("strange", "some-vendor-id")
	g.list(strange, witness())
	g.list(strange, witness())

	if got := g.list(strange, witness()); !strings.Contains(got.Incomplete, "no known form") {
		t.Fatalf("incomplete %q", got.Incomplete)
	}

	g.confirm([]gpu.DeviceRef{{GPU: gpuA}}, nil)

	if got := g.list(strange, witness()); got.Incomplete != "" && len(got.Free) == 0 {
		t.Errorf("still incomplete (%s), and the confirmation is forgotten", got.Incomplete)
	}
}

// A static pod's UID is a hash of its manifest: one that is removed and put back has the same.
func TestAStaticPodThatIsPutBack(t *testing.T) {
	const uid = "d41d8cd98f00b204e9800998ecf8427e"
	g := newTestLedger(t, nil)
	g.checkpoint = testCheckpoint(t, uid+" c "+gpuA)
	g.listUntilSettled(t, podWithDevices("static", gpuA))
	g.list(witness()) // the manifest was removed
	// It is put back, with an init container that has the device first.
	writeCheckpoint(t, g.checkpoint.path, uid+" init "+gpuB)

	for range 3 {
		if got := g.list(pod("ns", "static", container("c", nil)), witness()); len(got.List) == 0 && got.Incomplete == "" {
			t.Fatal("the device of the static pod's init container is reported as free")
		}
	}
}

// A pod and its claim are created again under their names, the first for administrative access, the
// second not.
func TestAClaimOfTheSameName(t *testing.T) {
	c := &fakeCluster{pods: map[string]gpu.PodMetadata{"ns/web-0": {UID: uidA}}, asked: time.Unix(9999, 0),
		admin: map[gpu.ClaimDevice]bool{}}
	g := newTestLedger(t, c)
	device := gpu.ClaimDevice{Namespace: "ns", Claim: "gpu", Driver: draDriver, Pool: "node-1", Device: "gpu-0"}
	p := pod("ns", "web-0", container("c", nil))
	p.Containers[0].DynamicResources = claim("ns", "gpu", claimResource(draDriver, "gpu-0"))
	c.admin[device] = true

	if got := formatAssignments(g.listUntilSettled(t, p).List); got != "" {
		t.Fatalf("an administrative claim: %q", got)
	}

	c.admin[device] = false
	c.pods["ns/web-0"] = gpu.PodMetadata{UID: uidB}

	for range 100 {
		if got := g.list(p, witness()); formatAssignments(got.List) == "web-0" {
			return
		}
	}

	t.Error("the API server has pod web-0 under another UID with an exclusive claim, and its device is reported as free")
}

// The same pod comes back after it was taken for gone (a kubelet that is slow to take pods in): its
// workload is never reported again.
func TestTheSamePodComesBack(t *testing.T) {
	c := &fakeCluster{pods: map[string]gpu.PodMetadata{"ns/a": {UID: uidA, Workload: "Job/first"}},
		asked: time.Unix(99999, 0)}
	g := newTestLedger(t, c)
	g.listUntilSettled(t, podWithDevices("a", gpuA))
	g.list(witness())

	for range 2000 {
		g.list(podWithDevices("a", gpuA), witness())
	}

	if got := g.list(podWithDevices("a", gpuA), witness()).List[0].Holder; got.Workload != "Job/first" {
		t.Errorf("workload %q", got.Workload)
	}
}

// What the checkpoint has now is listed now: a device that is found later (a driver that comes
// late) is not "created since".
func TestTheCheckpointTellsNow(t *testing.T) {
	c := &fakeCluster{pods: map[string]gpu.PodMetadata{"ns/a": {UID: uidA}}, gone: map[string]bool{}}
	g := newTestLedger(t, c)
	g.checkpoint = testCheckpoint(t, uidA+" init "+gpuA)
	g.checkpoint.now = func() time.Time { return g.now }
	initializing := pod("ns", "a", container("main", nil))
	g.listUntilSettled(t, initializing)

	for range 10 {
		g.list(initializing, witness())
	}

	got := g.list(initializing, witness())
	if a := got.List[0]; a.Holder.Unconfirmed != "" || !a.LastListed.Equal(g.now) {
		t.Errorf("unconfirmed %q, listed %v ago; poll drops it for every device that was first seen since",
			a.Holder.Unconfirmed, g.now.Sub(a.LastListed))
	}
}

// On a host without a witness every pod that a replica was given to stays, for ever.
func TestReplicasWithoutAWitness(t *testing.T) {
	g := newTestLedger(t, nil)
	g.completeness.witness = ""

	var got gpu.Assignments
	for n := range 500 {
		got = g.list(podWithDevices(fmt.Sprint("job-", n), gpuA+"::0"))
	}

	if len(got.List) > 10 {
		t.Errorf("one replica has %d holders", len(got.List))
	}
}

// TestCheckpointStateDoesNotWait: the poll loop asks for it in every cycle, and must not wait for a
// call that the kubelet does not answer.
func TestCheckpointStateDoesNotWait(t *testing.T) {
	asked := make(chan struct{})
	release := make(chan struct{})
	socket := serveReplies(t, "kubelet.sock", func() []byte {
		close(asked)
		<-release

		return nil
	})
	t.Cleanup(func() { close(release) })
	c := New(Options{Socket: socket, Checkpoint: testCheckpoint(t).path, Now: time.Now, Logger: log.NewNopLogger()})
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.List(ctx)
	}()
	<-asked
	c.CheckpointState()

	select {
	case <-ended:
		t.Error("it has waited for the end of the call")
	default:
	}

	cancel()
	<-ended
}

// A caller whose time was spent waiting for another's call blames the kubelet: the next one is not
// made.
func TestACallerWithoutTimeIsNotTheKubeletsFault(t *testing.T) {
	c := New(Options{Socket: serveRaw(t, "kubelet.sock", nil), Now: time.Now, Logger: log.NewNopLogger()})
	defer c.Close()

	if _, err := c.List(t.Context()); err != nil {
		t.Fatal(err)
	}

	expired, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-expired.Done()

	_, _ = c.List(expired) // as after a long wait for c.mu
	if _, err := c.List(t.Context()); err != nil {
		t.Errorf("the kubelet answers, but: %v", err)
	}
}

// One settled list lacks b, since the kubelet takes pods in slowly; then the kubelet restarts: an
// unsettled list is not the second.
func TestTwoListsAreBothSettled(t *testing.T) {
	g := newTestLedger(t, nil)
	g.listUntilSettled(t, podWithDevices("a", gpuA), podWithDevices("b", gpuB))
	g.resetForRestart(g.now)
	g.list()
	g.list(podWithDevices("a", gpuA), witness())
	g.list(podWithDevices("a", gpuA), witness())

	if got := formatAssignments(g.list(podWithDevices("a", gpuA), witness()).List); got != "a b?" {
		t.Fatalf("one settled list: %q", got)
	}

	g.resetForRestart(g.now) // the kubelet crashes and starts again

	if got := g.list(); formatAssignments(got.List) != "a? b?" {
		t.Errorf("an empty list that is not settled ends b: %q", formatAssignments(got.List))
	}
}

// On a node with HAMi a pod is created again under its name with the same id: the reservation of
// the former one names its device.
func TestAReservationOfTheFormerPod(t *testing.T) {
	c := &fakeCluster{asked: time.Unix(1003, 0), gone: map[string]bool{}, pods: map[string]gpu.PodMetadata{
		"ns/a": {UID: uidA, MIGDevices: [][]gpu.DeviceRef{{{MIG: "MIG-1"}}}}}}
	g := newTestLedger(t, c)
	g.listUntilSettled(t, podWithDevices("a", gpuA+"-3"))
	g.resetForRestart(g.now)
	g.list()
	// a is missing; the API server has a successor of that name, with another reservation.
	c.pods["ns/a"] = gpu.PodMetadata{UID: uidB, MIGDevices: [][]gpu.DeviceRef{{{MIG: "MIG-2"}}}}

	if got := g.list().List; len(got) != 1 || got[0].Device.MIG == "MIG-2" {
		t.Errorf("the unconfirmed device of the former pod is reported as the successor's: %+v", got)
	}
}

// TestAnOrdinaryClaimOverrulesAnOperator: a confirmation was given while it was not known whether
// the claim is for administrative access.
func TestAnOrdinaryClaimOverrulesAnOperator(t *testing.T) {
	c := &fakeCluster{err: gpu.ErrUnavailable}
	g := newTestLedger(t, c)
	p := pod("ns", "a", container("c", nil))
	p.Containers[0].DynamicResources = claim("ns", "gpu", claimResource(draDriver, "gpu-0"))
	g.confirm(nil, g.listUntilSettled(t, p).List)

	if got := formatAssignments(g.list(p, witness()).List); got != "" {
		t.Errorf("the confirmation does not count: %q", got)
	}

	c.err = nil

	for range 2 {
		if got := formatAssignments(g.list(p, witness()).List); got != "a" {
			t.Errorf("an ordinary claim is hidden: %q", got)
		}
	}
}

// TestAFileThatIsNoCheckpoint: a pipe would hold up all that is known of holders.
func TestAFileThatIsNoCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}

	c := &checkpoint{path: path, names: newResourceNames(nil), now: time.Now}
	c.readIfChanged()
	state, shown := c.sourceState()
	cmptest.Equal(t, "shown", shown, true)
	cmptest.Equal(t, "up", state.Up, false)

	if got, want := fmt.Sprint(state.Err), "expected a regular file"; !strings.Contains(got, want) {
		t.Errorf("error %s, want %s", got, want)
	}
}
