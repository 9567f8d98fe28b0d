package podresources

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestAPlainInitContainerHolds: the kubelet does not list it, only its checkpoint has it.
func TestAPlainInitContainerHolds(t *testing.T) {
	c := &fakeCluster{gone: map[string]bool{}}
	g := newTestLedger(t, c)
	g.checkpoint = testCheckpoint(t, uidA+" c "+gpuA, uidA+" init "+gpuB, uidB+" init "+gpuC)

	got := g.listUntilSettled(t, podWithDevices("a", gpuA))
	if formatAssignments(got.List) != "? a a" {
		t.Fatalf("got %s, want the container and the init container of a, and another pod's of which nothing is known",
			formatAssignments(got.List))
	}

	init := got.List[2]
	cmptest.Equal(t, "container of the init container's device", init.Holder.Name, "init")
	cmptest.Equal(t, "its pod", init.Holder.PodUID, uidA)
	cmptest.Equal(t, "its device", init.Device.GPU, gpuB)
	c.pods = map[string]gpu.PodMetadata{"ns/b": {UID: uidB}}

	if got := formatAssignments(g.list(podWithDevices("a", gpuA)).List); got != "a a b" {
		t.Errorf("once the API server has b: %s", got)
	}

	c.pods = nil
	c.gone[uidB] = true

	if got := formatAssignments(g.list(podWithDevices("a", gpuA)).List); got != "a a" {
		t.Errorf("once the API server has it no longer: %s", got)
	}

	// The checkpoint has the devices of pods that have ended until something else is given out.
	if got := g.list(); formatAssignments(got.List) != "" || got.Incomplete != "" {
		t.Errorf("once a has ended: %s, incomplete %q", formatAssignments(got.List), got.Incomplete)
	}
}

// TestTheCheckpointOfARestart: at the start in the hole of a restart, what it has may be held.
func TestTheCheckpointOfARestart(t *testing.T) {
	g := newTestLedger(t, nil)
	g.checkpoint = testCheckpoint(t, uidA+" c "+gpuA)

	got := g.list().List
	if formatAssignments(got) != "?" {
		t.Fatalf("got %+v, want one unconfirmed device", got)
	}

	cmptest.Equal(t, "device", got[0].Device.GPU, gpuA)
	cmptest.Equal(t, "pod", got[0].Holder.PodUID, uidA)
	g.confirm(nil, got)

	if got := formatAssignments(g.list().List); got != "" {
		t.Errorf("an operator has said that it is free, but %q", got)
	}

	if got := formatAssignments(g.list(podWithDevices("a", gpuA)).List); got != "a" {
		t.Errorf("once the kubelet lists it: %q", got)
	}

	if got := formatAssignments(g.list(podWithDevices("b", gpuA)).List); got != "b" {
		t.Errorf("once the kubelet lists it for another: %q", got)
	}
}

// TestTheCheckpointByResource: a device id that is listed by one resource can be held by another
// one, too.
func TestTheCheckpointByResource(t *testing.T) {
	g := newTestLedger(t, nil)
	g.checkpoint = testCheckpoint(t)
	writeText(t, g.checkpoint.path, `{"Data": {"PodDeviceEntries": [
		{"PodUID": "`+uidA+`", "ContainerName": "init", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"-1": ["`+gpuA+`"]}},
		{"PodUID": "`+uidB+`", "ContainerName": "c", "ResourceName": "nvidia.com/gpu.shared", "DeviceIDs": {"-1": ["`+gpuA+`"]}}]}}`)

	got := g.listUntilSettled(t, pod("ns", "b", container("c", devices("nvidia.com/gpu.shared", gpuA))))
	if formatAssignments(got.List) != "? b" {
		t.Errorf("got %s, want b and the init container of which nothing is known", formatAssignments(got.List))
	}
}

func TestParseCheckpoint(t *testing.T) {
	entry := func(fields string) string { return `{"Data":{"PodDeviceEntries":[{` + fields + `}]},"Checksum":1}` }
	for _, tt := range []struct{ name, text, want string }{
		{"no pods", `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}`, ""},
		{"one device", entry(`"PodUID":"u","ContainerName":"c","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["` + gpuA +
			`"]},"AllocResp":"Cg=="`), ""},
		{"another resource",
			entry(`"PodUID":"u","ContainerName":"c","ResourceName":"example.com/nic","DeviceIDs":{"0":["eth0"]}`), ""},
		{"nothing", ``, "expected the JSON"},
		{"cut short", `{"Data":{"PodDeviceEntries":[{"PodUID":"u"`, "expected the JSON"},
		{"another file", `{"entries":{},"checksum":1}`, "has no Data"},
		{"ids without NUMA nodes", entry(`"PodUID":"u","ContainerName":"c","ResourceName":"nvidia.com/gpu","DeviceIDs":["` +
			gpuA + `"]`), "expected the JSON"},
		{"no UID", entry(`"ContainerName":"c","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["` + gpuA + `"]}`),
			`resource "nvidia.com/gpu" has no pod UID`},
		{"garbage", entry(`"PodUID":"u","ContainerName":"c","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["x"]}`),
			`device id "x" of resource "nvidia.com/gpu"`},
	} {
		_, _, err := parseCheckpoint([]byte(tt.text), newResourceNames(nil))
		if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s, want %q", tt.name, got, tt.want)
		}
	}
}

func FuzzParseCheckpoint(f *testing.F) {
	f.Add([]byte(
		`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["` + gpuA + `"]}}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, _, err := parseCheckpoint(text, newResourceNames(nil))
		for _, d := range list {
			if _, ok := parseDeviceID(d.id); !ok {
				t.Errorf("%+v: an id in no known form", d)
			}

			if err != nil || d.uid == "" || d.container == "" {
				t.Errorf("%+v with error %v, want pod and container without one", d, err)
			}
		}
	})
}

func TestCheckpointState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint")
	c := &checkpoint{path: path, names: newResourceNames(nil), now: time.Now}
	expect := func(up, stale bool, want error) {
		t.Helper()
		c.readIfChanged()
		s, shown := c.sourceState()
		cmptest.Equal(t, "shown", shown, true)
		cmptest.Equal(t, "never read", s.LastSuccess.IsZero(), !up && !stale)
		cmptest.Equal(t, "state", s, gpu.SourceState{Name: gpu.SourceCheckpoint, Up: up, Stale: stale,
			LastSuccess: s.LastSuccess, Err: want})
	}
	c.readIfChanged()

	if s, shown := c.sourceState(); shown {
		t.Errorf("a file that is not there is shown as %+v", s)
	}

	writeCheckpoint(t, path, uidA+" c "+gpuA)
	expect(true, false, nil)
	writeText(t, path, "{")
	expect(false, true, gpu.ErrUnavailable)

	if len(c.devices) != 1 || c.version != 1 {
		t.Errorf("%d devices, version %d: what could be read last stays", len(c.devices), c.version)
	}

	writeCheckpoint(t, path)
	expect(true, false, nil)

	if len(c.devices) != 0 || c.version != 2 {
		t.Errorf("%d devices, version %d, want none of version 2", len(c.devices), c.version)
	}

	if err := os.Truncate(path, maxCheckpoint+1); err != nil {
		t.Fatal(err)
	}

	expect(false, true, gpu.ErrUnavailable)
}
