package podresources

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	uidA = "0a1b2c3d-0000-0000-0000-00000000000a"
	uidB = "0a1b2c3d-0000-0000-0000-00000000000b"
)

// TestNothingIsFreeBeforeTheListIsSettled: a list is settled once the witness has been in it for
// two polls.
func TestNothingIsFreeBeforeTheListIsSettled(t *testing.T) {
	g := newTestLedger(t, nil)
	for _, step := range []struct {
		pods []*kubeletapi.PodResources
		want string // in the reason; empty: complete
	}{
		{nil, "ns/witness (--kubernetes.witness-pod) has not been listed since this exporter began"},
		{[]*kubeletapi.PodResources{podWithDevices("a", gpuA)}, "has not been listed"},
		{[]*kubeletapi.PodResources{podWithDevices("a", gpuA), witness()}, "new ones still appear"},
		{[]*kubeletapi.PodResources{podWithDevices("a", gpuA), podWithDevices("b", gpuB)}, "new ones still appear"},
		{[]*kubeletapi.PodResources{podWithDevices("a", gpuA), podWithDevices("b", gpuB)}, "new ones still appear"},
		{[]*kubeletapi.PodResources{podWithDevices("a", gpuA), podWithDevices("b", gpuB)}, ""},
		{[]*kubeletapi.PodResources{podWithDevices("a", gpuA), podWithDevices("c", gpuC)}, ""}, // it stays settled
	} {
		got := g.list(step.pods...)
		if step.want == "" && got.Incomplete != "" || !strings.Contains(got.Incomplete, step.want) {
			t.Errorf("%d pods: incomplete because %q, want %q", len(step.pods), got.Incomplete, step.want)
		}
	}

	g.resetForRestart(g.now)

	if got := g.list(witness()); !strings.Contains(got.Incomplete, "since the kubelet began") {
		t.Errorf("after a restart of the kubelet: %q", got.Incomplete)
	}

	g.completeness.witness = ""
	g.resetForRestart(g.now)

	if got := g.completeness.unsettledReason(); !strings.Contains(got, "--kubernetes.witness-pod") {
		t.Errorf("without a witness: %q", got)
	}

	for range 10 {
		if g.list(witness()).Incomplete == "" {
			t.Error("without a witness a list is settled")
		}
	}

	g.completeness.witness = "ns/wit*"
	known := []*kubeletapi.PodResources{podWithDevices("a", gpuA), podWithDevices("b", gpuB), podWithDevices("c", gpuC)}
	g.listUntilSettled(t, known...) // a prefix names it
	g.completeness.nodes = []string{"node-1"}
	static := pod("ns", "witness-node-1", container("c", nil))
	g.resetForRestart(g.now)

	for range 10 {
		if g.list(static).Incomplete == "" {
			t.Fatal("a static pod is the witness")
		}
	}
}

// TestARestartedKubeletForgets: what it does not list yet is unconfirmed, and the same as before
// once it does.
func TestARestartedKubeletForgets(t *testing.T) {
	g := newTestLedger(t, nil)
	before := g.listUntilSettled(t, podWithDevices("a", gpuA), podWithDevices("b", gpuB), podWithDevices("static", gpuC))
	g.resetForRestart(g.now)

	empty := g.list()
	if got := formatAssignments(empty.List); got != "a? b? static?" || empty.Incomplete == "" {
		t.Errorf("an empty list gives %s, incomplete %q", got, empty.Incomplete)
	}

	if why := empty.List[0].Holder.Unconfirmed; !strings.Contains(why,
		"the kubelet listed it last at 1970-01-01T00:16:43Z") {
		t.Errorf("unconfirmed because %q", why)
	}

	for range 200 {
		if got := formatAssignments(g.list(podWithDevices("static", gpuC)).List); got != "a? b? static" {
			t.Fatalf("with the static pod alone: %s", got)
		}
	}

	back := g.list(podWithDevices("a", gpuA), podWithDevices("static", gpuC), witness())
	if got := formatAssignments(back.List); got != "a b? static" || back.List[0].FirstListNumber != before.List[0].FirstListNumber {
		t.Errorf("with the API server's pods: %s, seen %d, want %d", got, back.List[0].FirstListNumber, before.List[0].FirstListNumber)
	}

	for range 100 {
		if got := formatAssignments(g.list(podWithDevices("a", gpuA), podWithDevices("static", gpuC),
			witness()).List); got != "a b? static" {
			t.Fatalf("a list in which b has never stood ends b: %s", got)
		}
	}

	// Pod b stands in the list, and no longer on the same device: it was created again under its
	// name.
	for range 4 {
		back = g.list(podWithDevices("a", gpuA), pod("ns", "b", container("c", nil)), podWithDevices("static", gpuC),
			witness())
	}

	if got := formatAssignments(back.List); got != "a static" || back.Incomplete != "" {
		t.Errorf("two settled lists in which b has no device give %s", got)
	}
}

func TestAPodThatLeavesASettledListIsGone(t *testing.T) {
	g := newTestLedger(t, nil)
	g.listUntilSettled(t, podWithDevices("a", gpuA), podWithDevices("b", gpuB))

	if got := g.list(podWithDevices("b", gpuB)); formatAssignments(got.List) != "b" || got.Incomplete != "" {
		t.Errorf("got %s, incomplete %q", formatAssignments(got.List), got.Incomplete)
	}
}

// TestProofs: each of them ends an unconfirmed holding, and a live process overrules it.
func TestProofs(t *testing.T) {
	for _, tt := range []struct {
		name  string
		prove func(g *testLedger, c *fakeCluster)
		then  []*kubeletapi.PodResources
		want  string
	}{
		{"nothing", func(*testLedger, *fakeCluster) {}, nil, "a?"},
		{"the API server", func(_ *testLedger, c *fakeCluster) { c.gone[uidA] = true }, nil, ""},
		{"the API server, of another pod", func(_ *testLedger, c *fakeCluster) { c.gone[uidB] = true }, nil, "a?"},
		{"the checkpoint", func(g *testLedger, c *fakeCluster) {
			writeCheckpoint(t, g.checkpoint.path)
			clear(c.pods)
		}, nil, ""},
		{"the checkpoint, but not the API server",
			func(g *testLedger, _ *fakeCluster) { writeCheckpoint(t, g.checkpoint.path) }, nil, "a?"},
		{"the checkpoint, with it", func(g *testLedger, _ *fakeCluster) {
			writeCheckpoint(t, g.checkpoint.path, uidA+" c "+gpuA, uidB+" c "+gpuB)
		}, nil, "? a?"}, // and what it has for another pod
		{"the checkpoint, cut short",
			func(g *testLedger, _ *fakeCluster) { writeText(t, g.checkpoint.path, `{"Data": {"PodDev`) }, nil, "a?"},
		{"the device of another pod", func(*testLedger, *fakeCluster) {},
			[]*kubeletapi.PodResources{podWithDevices("b", gpuA)}, "b"},
		{"the device of another pod, by another resource", func(*testLedger, *fakeCluster) {},
			[]*kubeletapi.PodResources{pod("ns", "b", container("c", devices("nvidia.com/gpu.shared", gpuA)))}, "a? b"},
		{"another device of another pod", func(*testLedger, *fakeCluster) {},
			[]*kubeletapi.PodResources{podWithDevices("b", gpuB)}, "a? b"},
		{"an operator", func(g *testLedger, _ *fakeCluster) {
			g.confirm([]gpu.DeviceRef{{GPU: gpuA}}, g.assignmentsAt(nil, g.now).List)
		}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &fakeCluster{pods: map[string]gpu.PodMetadata{"ns/a": {UID: uidA}}, gone: map[string]bool{},
				asked: time.Unix(9999, 0)}
			g := newTestLedger(t, c)
			g.checkpoint = testCheckpoint(t, uidA+" c "+gpuA)
			g.listUntilSettled(t, podWithDevices("a", gpuA))
			g.resetForRestart(g.now)

			if got := formatAssignments(g.list().List); got != "a?" {
				t.Fatalf("before: %s", got)
			}

			tt.prove(g, c)

			if got := formatAssignments(g.list(tt.then...).List); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestALiveProcessOverrulesProofs(t *testing.T) {
	running := true
	c := &fakeCluster{pods: map[string]gpu.PodMetadata{"ns/a": {UID: uidA}}, gone: map[string]bool{uidA: true},
		asked: time.Unix(9999, 0)}
	g := newTestLedger(t, c)
	g.running = func(a *gpu.Assignment) bool {
		return running && a.Holder.Container == gpu.Container{Namespace: "ns", Pod: "a", Name: "c"}
	}
	g.listUntilSettled(t, podWithDevices("a", gpuA))

	for range 3 {
		if got := formatAssignments(g.list().List); got != "a" {
			t.Fatalf("while its process runs: %q", got)
		}
	}

	running = false

	if got := formatAssignments(g.list().List); got != "" {
		t.Errorf("once its process has ended: %q", got)
	}
}

// TestProcessesAreNotLookedForInVain: what the kubelet lists needs no process to be believed. To
// find one, files of every process are read.
func TestProcessesAreNotLookedForInVain(t *testing.T) {
	g := newTestLedger(t, nil)
	g.running = func(a *gpu.Assignment) bool { t.Errorf("looked for a process of %s", a.Holder.Pod); return false }
	g.listUntilSettled(t, podWithDevices("a", gpuA))

	if got := formatAssignments(g.list(podWithDevices("a", gpuA)).List); got != "a" {
		t.Errorf("got %q", got)
	}
}

// TestAStaticPodIsNotTheAPIServers: the API server may have no mirror of it, under a UID of its
// own.
func TestAStaticPodIsNotTheAPIServers(t *testing.T) {
	const uid = "d41d8cd98f00b204e9800998ecf8427e"
	g := newTestLedger(t, &fakeCluster{gone: map[string]bool{uid: true}})
	g.checkpoint = testCheckpoint(t, uid+" c "+gpuA)
	g.listUntilSettled(t, podWithDevices("a", gpuA))
	g.resetForRestart(g.now)

	if got := formatAssignments(g.list().List); got != "a?" {
		t.Errorf("got %q, want it unconfirmed", got)
	}
}

// TestANameIsUsedAgain: metadata of a pod is not used for the next pod of that name.
func TestANameIsUsedAgain(t *testing.T) {
	c := &fakeCluster{pods: map[string]gpu.PodMetadata{"ns/a": {UID: uidA, Workload: "StatefulSet/a", Template: "a-1"}},
		asked: time.Unix(1002, 0)}
	g := newTestLedger(t, c)

	workload := func(got gpu.Assignments) string {
		t.Helper()

		if len(got.List) != 1 {
			t.Fatalf("got %+v, want one", got.List)
		}

		h := &got.List[0].Holder

		return fmt.Sprint(h.Workload, " ", h.Template, " ", h.Undescribed)
	}
	if got := workload(g.listUntilSettled(t, podWithDevices("a", gpuA))); got != "StatefulSet/a a-1 false" {
		t.Fatalf("the first: %s", got)
	}

	g.list()

	if got := workload(g.list(podWithDevices("a", gpuB))); got != "  true" {
		t.Errorf("the API server has not been asked since: %s, want it to be awaited", got)
	}

	if got := workload(g.list(podWithDevices("a", gpuB))); got != "  false" {
		t.Errorf("a second later: %s, want it to be shown without", got)
	}

	c.asked = g.now
	c.pods["ns/a"] = gpu.PodMetadata{UID: uidB, Workload: "StatefulSet/a", Template: "a-2"}

	if got := workload(g.list(podWithDevices("a", gpuB))); got != "StatefulSet/a a-2 false" {
		t.Errorf("the second: %s", got)
	}

	if got := workload(g.list(podWithDevices("a", gpuC))); got != "  true" {
		t.Errorf("another one with no list in between: %s", got)
	}
}

// TestTheCheckpointTellsPodsOfOneNameApart: a pod of the same name on the same device, with no list
// in between.
func TestTheCheckpointTellsPodsOfOneNameApart(t *testing.T) {
	c := &fakeCluster{pods: map[string]gpu.PodMetadata{"ns/a": {UID: uidA, Workload: "Job/first"}},
		asked: time.Unix(9999, 0)}
	g := newTestLedger(t, c)
	g.checkpoint = testCheckpoint(t, uidA+" c "+gpuA)
	g.listUntilSettled(t, podWithDevices("a", gpuA))
	writeCheckpoint(t, g.checkpoint.path, uidB+" c "+gpuA)
	g.list(podWithDevices("a", gpuA)) // the checkpoint has changed meanwhile

	if got := g.list(podWithDevices("a", gpuA)).List[0].Holder; got.Workload != "" || got.PodUID != uidB {
		t.Errorf("got workload %q of pod %s, want none of %s", got.Workload, got.PodUID, uidB)
	}
}

func TestUnreadableIDsMakeTheListIncomplete(t *testing.T) {
	g := newTestLedger(t, nil)
	g.listUntilSettled(t)

	got := g.list(witness(), podWithDevices("a", "garbage"))
	if !strings.Contains(got.Incomplete, `"garbage"`) || len(got.Unreadable) != 1 {
		t.Errorf("incomplete because %q, unreadable %+v", got.Incomplete, got.Unreadable)
	}
}

// TestAConfirmationLastsUntilTheKubeletRestarts, or until it is too old.
func TestAConfirmationLastsUntilTheKubeletRestarts(t *testing.T) {
	g := newTestLedger(t, nil)
	g.list(podWithDevices("a", gpuA))
	g.confirm([]gpu.DeviceRef{{GPU: gpuB}}, nil)

	if got := g.list(); !slices.Equal(got.Free, []gpu.DeviceRef{{GPU: gpuB}}) {
		t.Errorf("free: %v", got.Free)
	}

	g.confirm(nil, g.assignmentsAt(nil, g.now).List)

	if got := formatAssignments(g.list().List); got != "" {
		t.Errorf("dismissed, but %q", got)
	}

	if got := formatAssignments(g.list(podWithDevices("a", gpuA)).List); got != "a" {
		t.Errorf("a listed holder is a fact, but %q", got)
	}

	if got := formatAssignments(g.list().List); got != "a?" {
		t.Errorf("the confirmation was about another time, but %q", got)
	}

	g.confirm([]gpu.DeviceRef{{GPU: gpuB}}, nil)

	g.now = g.now.Add(freeFor)
	if got := g.list(); len(got.Free) != 0 {
		t.Errorf("free after %s: %v", freeFor, got.Free)
	}

	g.confirm([]gpu.DeviceRef{{GPU: gpuB}}, nil)
	g.resetForRestart(g.now)

	if got := g.list(); len(got.Free) != 0 {
		t.Errorf("free after a restart: %v", got.Free)
	}
}

func TestClaims(t *testing.T) {
	device := gpu.ClaimDevice{Namespace: "ns", Claim: "one", Driver: draDriver, Pool: "node-1", Device: "gpu-1"}
	pod := pod("ns", "a",
		&kubeletapi.ContainerResources{Name: "c", DynamicResources: claim("ns", "one", claimResource(draDriver, "gpu-1"))})
	c := &fakeCluster{err: fmt.Errorf("get resourceclaims: %w", gpu.ErrNoPermission)}
	g := newTestLedger(t, c)

	first := g.listUntilSettled(t, pod).List
	if len(first) != 1 || !strings.Contains(first[0].Holder.Unconfirmed, "no permission") {
		t.Fatalf("without permission: %+v, want one unconfirmed holder", first)
	}

	cmptest.Equal(t, "sharing without permission", first[0].Holder.Sharing, gpu.SharingUnknown)
	c.err = nil

	got := g.list(pod, witness()).List
	if len(got) != 1 {
		t.Fatalf("an ordinary claim: %+v, want one holder", got)
	}

	cmptest.Equal(t, "sharing of an ordinary claim", got[0].Holder.Sharing, gpu.SharingExclusive)
	cmptest.Equal(t, "an ordinary claim is unconfirmed", got[0].Holder.Unconfirmed, "")
	c.err = gpu.ErrUnavailable

	if got := g.list(pod, witness()).List; len(got) != 1 || got[0].Holder.Unconfirmed != "" {
		t.Errorf("what was reported is forgotten in an outage: %+v", got)
	}

	c.err = nil
	c.admin = map[gpu.ClaimDevice]bool{device: true}

	g = newTestLedger(t, c)
	if got := g.listUntilSettled(t, pod); len(got.List) != 0 {
		t.Errorf("a claim for administrative access holds %+v", got.List)
	}

	g = newTestLedger(t, nil)
	if got := g.listUntilSettled(t, pod).List; len(got) != 1 ||
		!strings.Contains(got[0].Holder.Unconfirmed, "--kubernetes.node-name") {
		t.Errorf("without the API server: %+v", got)
	}
}

// TestAKubeletThatIsAwayForLong: what it listed last is no fact any more, and can be settled
// without it.
func TestAKubeletThatIsAwayForLong(t *testing.T) {
	c := &fakeCluster{pods: map[string]gpu.PodMetadata{"ns/a": {UID: uidA}, "ns/b": {UID: uidB}}, gone: map[string]bool{},
		asked: time.Unix(9999, 0)}
	g := newTestLedger(t, c)
	g.listUntilSettled(t, podWithDevices("a", gpuA), podWithDevices("b", gpuB))

	if got := g.assignmentsAt(gpu.ErrTimeout, g.now.Add(maxSilence-1)); formatAssignments(got.List) != "a b" ||
		got.Incomplete != "" {
		t.Errorf("at first: %s, incomplete because %q", formatAssignments(got.List), got.Incomplete)
	}

	if got := g.assignmentsAt(gpu.ErrTimeout, g.now.Add(maxSilence)); formatAssignments(got.List) != "a b" ||
		!strings.Contains(got.Incomplete, "timed out") {
		t.Errorf("a while later: %s, incomplete because %q", formatAssignments(got.List), got.Incomplete)
	}

	g.markAllMissing(g.now)

	if got := g.assignmentsAt(gpu.ErrTimeout, g.now); formatAssignments(got.List) != "a? b?" ||
		!strings.Contains(got.Incomplete, "timed out") {
		t.Errorf("got %s, incomplete because %q", formatAssignments(got.List), got.Incomplete)
	}

	c.gone[uidA] = true
	g.markAllMissing(g.now)

	if got := formatAssignments(g.assignmentsAt(gpu.ErrTimeout, g.now).List); got != "b?" {
		t.Errorf("with a gone: %s", got)
	}

	if got := formatAssignments(g.list(podWithDevices("b", gpuB)).List); got != "b" {
		t.Errorf("once it is back: %s", got)
	}
}

func testCheckpoint(t *testing.T, entries ...string) *checkpoint {
	t.Helper()
	c := &checkpoint{path: filepath.Join(t.TempDir(), "kubelet_internal_checkpoint"), names: newResourceNames(nil),
		now: time.Now}
	writeCheckpoint(t, c.path, entries...)
	c.readIfChanged()

	if c.err != nil {
		t.Fatal(c.err)
	}

	return c
}

// writeCheckpoint replaces a checkpoint by one with entries of nvidia.com/gpu, "uid container id"
// each.
func writeCheckpoint(t *testing.T, path string, entries ...string) {
	t.Helper()
	var list []string

	for _, e := range entries {
		f := strings.Fields(e)
		list = append(list,
			fmt.Sprintf(
				`{"PodUID":%q,"ContainerName":%q,"ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":[%q]},"AllocResp":"Cg=="}`, f[0],
				f[1], f[2]))
	}

	writeText(t, path, `{"Data":{"PodDeviceEntries":[`+strings.Join(list,
		",")+`],"RegisteredDevices":{"nvidia.com/gpu":["x"]}},"Checksum":1}`)
}

func writeText(t *testing.T, path, text string) {
	t.Helper()

	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
