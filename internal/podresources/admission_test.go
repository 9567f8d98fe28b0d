package podresources

import (
	"strings"
	"testing"
	"time"

	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A restarted kubelet admits its pods one after the other, the oldest first. Pod "older" was bound
// while it was down, and the Allocate of its device plugin takes long: the list has the witness and
// what is older, and none of the pods that hold devices. oldest is that list.
func oldest() []*kubeletapi.PodResources {
	return []*kubeletapi.PodResources{witness(), pod("ns", "older", container("c", nil))}
}

// blockAdmission settles a list of two pods with devices, restarts the kubelet and gives the ledger
// lists of a kubelet that admits no younger pod. None of them may end a holding or tell that a
// device is free.
func blockAdmission(t *testing.T, g *testLedger) gpu.Assignments {
	t.Helper()
	g.listUntilSettled(t, podWithDevices("a", gpuA), podWithDevices("b", gpuB))
	g.resetForRestart(g.now)
	g.list()

	var got gpu.Assignments
	for range 300 {
		got = g.list(oldest()...)
		if text := formatAssignments(got.List); text != "a? b?" && text != "? ? a? b?" || got.Incomplete == "" {
			t.Fatalf("while the kubelet admits no pod: %q, incomplete %q", text, got.Incomplete)
		}
	}

	return got
}

// TestTheWitnessAloneEndsNothing: without any other source, a list is settled once every known pod
// has stood in it.
func TestTheWitnessAloneEndsNothing(t *testing.T) {
	g := newTestLedger(t, nil)

	got := blockAdmission(t, g)
	if want := "pod ns/a, which held a device, has not been listed since the kubelet began"; !strings.Contains(
		got.Incomplete, want) {
		t.Errorf("incomplete because %q, want %q", got.Incomplete, want)
	}

	// Allocate has returned, and the kubelet admits the others.
	all := append(oldest(), podWithDevices("a", gpuA), podWithDevices("b", gpuB))
	for range 2 {
		if got := g.list(all...); formatAssignments(got.List) != "a b" || got.Incomplete == "" {
			t.Errorf("at once: %s, incomplete %q", formatAssignments(got.List), got.Incomplete)
		}
	}

	if got := g.list(all...); formatAssignments(got.List) != "a b" || got.Incomplete != "" {
		t.Errorf("two seconds later: %s, incomplete %q", formatAssignments(got.List), got.Incomplete)
	}
}

// TestAPodThatDoesNotComeBack: one that was deleted while the kubelet was down is in no list again.
// Without a source that knows, the list is settled once its device is another's, or an operator has
// said that it is free.
func TestAPodThatDoesNotComeBack(t *testing.T) {
	for name, end := range map[string]func(g *testLedger) []*kubeletapi.PodResources{
		"another pod has the device": func(*testLedger) []*kubeletapi.PodResources {
			return append(oldest(), podWithDevices("a", gpuA), podWithDevices("c", gpuB))
		},
		"an operator": func(g *testLedger) []*kubeletapi.PodResources {
			g.confirm([]gpu.DeviceRef{{GPU: gpuB}}, g.assignmentsAt(nil, g.now).List)
			return append(oldest(), podWithDevices("a", gpuA))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newTestLedger(t, nil)
			blockAdmission(t, g)

			for range 100 {
				if got := g.list(append(oldest(), podWithDevices("a", gpuA))...); got.Incomplete == "" {
					t.Fatalf("b is missing, and the list is settled: %s", formatAssignments(got.List))
				}
			}

			pods := end(g)

			var got gpu.Assignments
			for range 5 {
				got = g.list(pods...)
			}

			if got.Incomplete != "" || strings.Contains(formatAssignments(got.List), "b") {
				t.Errorf("%s, incomplete %q", formatAssignments(got.List), got.Incomplete)
			}
		})
	}
}

// TestTheAPIServersPodsSettleTheList: pods that this exporter has never seen are awaited as well,
// and one that has ended is not.
func TestTheAPIServersPodsSettleTheList(t *testing.T) {
	c := &fakeCluster{gone: map[string]bool{}, asked: time.Unix(99999, 0), pods: map[string]gpu.PodMetadata{
		"ns/witness": {UID: "w-1"}, "ns/older": {UID: "o-1"}, "ns/unknown": {UID: uidA}}}
	g := newTestLedger(t, c)

	var got gpu.Assignments
	for range 100 {
		got = g.list(oldest()...)
	}

	want := "pod ns/unknown, which the API server has bound to this node, has not been listed since this exporter began"
	if !strings.Contains(got.Incomplete, want) {
		t.Fatalf("incomplete because %q, want %q", got.Incomplete, want)
	}

	delete(c.pods, "ns/unknown")

	if got := g.list(oldest()...); got.Incomplete != "" {
		t.Errorf("the pod has ended, but incomplete because %q", got.Incomplete)
	}
}

// TestTheAPIServerVetoes: a settled list and a new checkpoint lack a pod that the API server has
// bound and that has not ended.
func TestTheAPIServerVetoes(t *testing.T) {
	c := &fakeCluster{gone: map[string]bool{}, asked: time.Unix(99999, 0), pods: map[string]gpu.PodMetadata{
		"ns/witness": {UID: "w-1"}, "ns/a": {UID: uidA}, "ns/b": {UID: uidB}}}
	g := newTestLedger(t, c)
	g.checkpoint = testCheckpoint(t, uidA+" c "+gpuA, uidB+" c "+gpuB)
	blockAdmission(t, g)
	writeCheckpoint(t, g.checkpoint.path)

	for range 10 {
		if got := formatAssignments(g.list(oldest()...).List); got != "a? b?" {
			t.Fatalf("the checkpoint was rewritten: %q", got)
		}
	}

	delete(c.pods, "ns/b") // it has ended, and the other one not
	c.gone[uidB] = true

	if got := formatAssignments(g.list(oldest()...).List); got != "a?" {
		t.Errorf("with b gone: %q", got)
	}
}

// TestAPodThatWasListedTooShortly: the kubelet ends before the API server has told the UID of a new
// pod, and the pod is deleted. That it has none of the name proves the end, unless the pod may be a
// static one.
func TestAPodThatWasListedTooShortly(t *testing.T) {
	for name, want := range map[string]string{"a": "", "a-node-1": "a-node-1?"} {
		c := &fakeCluster{gone: map[string]bool{"": true}, pods: map[string]gpu.PodMetadata{"ns/witness": {UID: "w-1"}}}
		g := newTestLedger(t, c)
		g.completeness.nodes = []string{"node-1"}
		g.listUntilSettled(t, podWithDevices(name, gpuA))
		g.resetForRestart(g.now)

		var got gpu.Assignments
		for range 4 {
			got = g.list(witness())
		}

		if text := formatAssignments(got.List); text != want || (got.Incomplete == "") != (want == "") {
			t.Errorf("%s: %q, incomplete %q, want %q", name, text, got.Incomplete, want)
		}
	}
}

// TestALiveCgroupVetoes: a container whose cgroup has a process has not ended, whatever lists, the
// checkpoint and the API server lack.
func TestALiveCgroupVetoes(t *testing.T) {
	c := &fakeCluster{gone: map[string]bool{uidA: true}, asked: time.Unix(99999, 0), pods: map[string]gpu.PodMetadata{
		"ns/a": {UID: uidA}}}
	for name, uid := range map[string]string{"by UID": uidA, "by name": ""} {
		t.Run(name, func(t *testing.T) {
			g := newTestLedger(t, nil)
			if uid != "" {
				g.metadata = c
			}

			live := newLiveContainers()
			live.add(gpu.Container{Namespace: "ns", Pod: "a", Name: "c"}, uidA)
			g.live = func() *liveContainers { return live }
			g.listUntilSettled(t, podWithDevices("a", gpuA))
			c.pods = nil // deleted by force

			for range 10 {
				if got := formatAssignments(g.list(witness()).List); got != "a?" {
					t.Fatalf("it left a settled list, and runs: %q", got)
				}
			}

			live = newLiveContainers()

			if got := formatAssignments(g.list(witness()).List); got != "" {
				t.Errorf("it has ended: %q", got)
			}
		})
	}
}

// TestTheCgroupOfASuccessor: another pod of the same name, on another device, does not keep the
// first one's.
func TestTheCgroupOfASuccessor(t *testing.T) {
	g := newTestLedger(t, nil)
	live := newLiveContainers()
	live.add(gpu.Container{Namespace: "ns", Pod: "web-0", Name: "c"}, uidB)
	g.live = func() *liveContainers { return live }
	g.listUntilSettled(t, podWithDevices("web-0", gpuA))

	if got := g.list(podWithDevices("web-0", gpuB), witness()); len(got.List) != 1 || got.List[0].ID != gpuB {
		t.Errorf("got %+v, want the device of the second alone", got.List)
	}
}

// TestLiveContainersSettleTheList: at our own start no pod is known but those whose containers run.
func TestLiveContainersSettleTheList(t *testing.T) {
	g := newTestLedger(t, nil)

	live := newLiveContainers()
	for _, name := range []string{"c", "b", "a"} {
		live.add(gpu.Container{Namespace: "ns", Pod: name, Name: "c"}, "")
	}

	g.live = func() *liveContainers { return live }
	for range 2 {
		g.list(oldest()...)
	}

	for range 100 {
		got := g.list(oldest()...)

		want := "pod ns/a, of which a container runs, has not been listed" // of several, always the same one
		if !strings.Contains(got.Incomplete, want) {
			t.Fatalf("incomplete because %q, want %q", got.Incomplete, want)
		}
	}

	live = newLiveContainers()

	if got := g.list(oldest()...); got.Incomplete != "" {
		t.Errorf("it has ended, but incomplete because %q", got.Incomplete)
	}
}

// TestAnAPIServerThatIsSilent: it may have bound pods that were never listed. After a minute the
// list is believed.
func TestAnAPIServerThatIsSilent(t *testing.T) {
	c := &fakeCluster{gone: map[string]bool{}, pods: map[string]gpu.PodMetadata{"ns/witness": {UID: "w-1"}}}
	g := newTestLedger(t, c)
	g.listUntilSettled(t, oldest()...)
	g.live = nil
	c.silent = true
	g.resetForRestart(g.now)
	began := g.now

	var got gpu.Assignments
	for g.now.Sub(began) < unaidedSettleAfter {
		if got = g.list(oldest()...); got.Incomplete == "" {
			t.Fatalf("settled after %s", g.now.Sub(began))
		}
	}

	if want := "no other source says which pods there are"; !strings.Contains(got.Incomplete, want) {
		t.Errorf("incomplete because %q, want %q", got.Incomplete, want)
	}

	if got := g.list(oldest()...); got.Incomplete != "" {
		t.Errorf("after %s: incomplete because %q", g.now.Sub(began), got.Incomplete)
	}
}

// TestAStartWithoutAnySource: no pod is known, and no source says which there are. The list is
// believed after a minute in which no pod was added.
func TestAStartWithoutAnySource(t *testing.T) {
	g := newTestLedger(t, nil)
	g.live = nil
	g.completeness.settledBefore = false

	began := g.now
	for g.now.Sub(began) < unaidedSettleAfter {
		if got := g.list(oldest()...); got.Incomplete == "" {
			t.Fatalf("settled after %s", g.now.Sub(began))
		}
	}

	if got := g.list(oldest()...); got.Incomplete != "" {
		t.Errorf("after %s: incomplete because %q", g.now.Sub(began), got.Incomplete)
	}
}

// TestASecondRestartRightAfterTheStart: the kubelet restarts before any list was settled. Nothing
// was known before that a list could be compared with, so the witness alone settles no list yet.
func TestASecondRestartRightAfterTheStart(t *testing.T) {
	g := newTestLedger(t, nil)
	g.live = nil
	g.completeness.settledBefore = false
	g.list(oldest()...)
	g.resetForRestart(g.now)

	began := g.now
	for g.now.Sub(began) < unaidedSettleAfter {
		if got := g.list(oldest()...); got.Incomplete == "" {
			t.Fatalf("settled after %s", g.now.Sub(began))
		}
	}

	if got := g.list(oldest()...); got.Incomplete != "" {
		t.Errorf("after %s: incomplete because %q", g.now.Sub(began), got.Incomplete)
	}

	// Now it is known which pods hold devices, so that later lists can be compared with that.
	g.resetForRestart(g.now)
	g.listUntilSettled(t, oldest()...)
}

// TestProcessesAreNoProofOfAbsence: a pod that crashes again and again, or waits for its image, has
// its device and no process. So at our own start that containers are seen to run does not shorten
// the wait.
func TestProcessesAreNoProofOfAbsence(t *testing.T) {
	g := newTestLedger(t, nil)
	g.completeness.settledBefore = false
	live := newLiveContainers()
	live.add(gpu.Container{Namespace: "ns", Pod: "older", Name: "c"}, uidA)
	g.live = func() *liveContainers { return live }

	began := g.now
	for g.now.Sub(began) < unaidedSettleAfter {
		if got := g.list(oldest()...); got.Incomplete == "" {
			t.Fatalf("settled after %s", g.now.Sub(began))
		}
	}
}

// TestACheckpointWithoutAPluginOfOurs: on a node of dynamic resource allocation another resource's
// device plugin has the kubelet write a checkpoint, which has no claims. So at our own start it
// does not say which pods hold devices.
func TestACheckpointWithoutAPluginOfOurs(t *testing.T) {
	const port = `{"PodUID":"` + uidA + `","ContainerName":"c","ResourceName":"rdma/port","DeviceIDs":{"0":["p0"]}}`
	for name, tt := range map[string]struct {
		checkpoint string
		settles    bool
	}{
		"another resource": {`{"Data":{"PodDeviceEntries":[` + port + `],"RegisteredDevices":{"rdma/port":["p0"]}}}`, false},
		"nothing":          {`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null}}`, false},
		// After a restart, until the plugin registers again, it has no devices.
		"ours": {`{"Data":{"PodDeviceEntries":[` + port + `],"RegisteredDevices":{"rdma/port":[],"nvidia.com/gpu":null}}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newTestLedger(t, nil)
			g.completeness.settledBefore = false
			g.checkpoint = testCheckpoint(t)
			writeText(t, g.checkpoint.path, tt.checkpoint)

			var got gpu.Assignments
			for range 10 {
				got = g.list(oldest()...)
			}

			if settled := got.Incomplete == ""; settled != tt.settles {
				t.Errorf("settled %v, incomplete because %q", settled, got.Incomplete)
			}
		})
	}
}

// TestAnOperatorsWordEndsWithARestart: what was confirmed of a pod that is missing counts until the
// kubelet restarts. Then the pod is awaited again: it may have been listed since, between two
// polls.
func TestAnOperatorsWordEndsWithARestart(t *testing.T) {
	g := newTestLedger(t, nil)
	blockAdmission(t, g)
	g.confirm([]gpu.DeviceRef{{GPU: gpuB}}, g.assignmentsAt(nil, g.now).List)
	g.resetForRestart(g.now)

	for range 10 {
		if got := g.list(oldest()...); formatAssignments(got.List) != "a? b?" || got.Incomplete == "" {
			t.Fatalf("after another restart: %q, incomplete %q", formatAssignments(got.List), got.Incomplete)
		}
	}
}
