package kubelet_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/kubelet"
)

// stepped is a simulated node and its kubelet, on a stepped clock.
type stepped struct {
	t      *testing.T
	node   *sim.Node
	server *kubelet.Server
}

func newStepped(t *testing.T, text string) *stepped {
	t.Helper()
	n := simulated(t, text)

	return &stepped{t, n, serve(t, n)}
}

// to moves the clock to a time since its start.
func (s *stepped) to(passed time.Duration) {
	s.t.Helper()

	if err := s.node.Advance(passed - s.node.Now().Sub(sim.StepStart())); err != nil {
		s.t.Fatal(err)
	}

	if err := s.server.Follow(s.node.Kubelet()); err != nil {
		s.t.Fatal(err)
	}
}

// listed asks for the pods with the numbers of their devices and claims, sorted; "refused" without
// a kubelet.
func (s *stepped) listed() string {
	s.t.Helper()

	reply, err := dial(s.t, s.server.Socket()).List(within(s.t), &kubeletapi.ListPodResourcesRequest{})
	if status.Code(err) == codes.Unavailable {
		return "refused"
	}

	if err != nil {
		s.t.Fatal(err)
	}

	names := []string{}

	for _, pod := range reply.PodResources {
		devices := 0
		for _, c := range pod.Containers {
			devices += len(c.Devices) + len(c.DynamicResources)
		}

		names = append(names, pod.Namespace+"/"+pod.Name+strings.Repeat("+", devices))
	}

	slices.Sort(names)

	return strings.Join(names, " ")
}

// slowlyAdmitted: pod older is bound while the kubelet is down, and its device plugin takes long.
const slowlyAdmitted = `
version: 1
node: {hostname: n}
gpus: [{model: A100-40GB, count: 5}]
pods:
  - {name: file, static: true, resource: nvidia.com/gpu}
  - {name: oldest, resource: nvidia.com/gpu}
  - {name: older, created: 1s, at: 11s, resource: nvidia.com/gpu}
  - {name: young, at: 5s, resource: nvidia.com/gpu}
  - {name: new, at: 20s, resource: nvidia.com/gpu}
faults:
  - {at: 10s, for: 2s, kind: kubelet-restart}
  - {at: 10s, for: 5m, kind: device-plugin-slow, delay: 25s}
`

// TestSlowAdmission: the kubelet admits pods one after the other, the oldest first, and lists those
// that it has not come to as little as a kubelet that has just begun, while they run.
func TestSlowAdmission(t *testing.T) {
	const own = "mig-exporter/mig-exporter-sim"

	s := newStepped(t, slowlyAdmitted)
	for _, step := range []struct {
		at   time.Duration
		want string
	}{
		{9 * time.Second, "default/file-n+ default/oldest+ default/young+ " + own},
		{13 * time.Second, "default/file-n+"},
		{14 * time.Second, "default/file-n+ default/older default/oldest+ " + own},
		{39*time.Second - 1, "default/file-n+ default/older default/oldest+ " + own},
		{39 * time.Second, "default/file-n+ default/new default/older+ default/oldest+ default/young+ " + own},
		{64 * time.Second, "default/file-n+ default/new+ default/older+ default/oldest+ default/young+ " + own},
	} {
		s.to(step.at)

		if got := s.listed(); got != step.want {
			t.Errorf("after %s: %q, want %q", step.at, got, step.want)
		}
	}
}

const restarted = `
version: 1
node: {hostname: n}
gpus: [{model: A100-40GB, count: 3}]
workloads: [{name: w, memory: 4GiB, sm: 20}]
pods:
  - {name: file, static: true, resource: nvidia.com/gpu, workload: w}
  - {name: api, resource: nvidia.com/gpu, workload: w}
  - name: init
    containers:
      - {name: first, init: true, for: 1h, resource: nvidia.com/gpu, workload: w}
      - {name: main}
faults:
  - {at: 10s, for: 2s, kind: kubelet-restart}
  - {at: 20s, kind: kubelet-restart}
  - {at: 21s, for: 9s, kind: api-server-down}
`

// TestRestart: every phase of a restart, on the socket, with the API server and without it.
func TestRestart(t *testing.T) {
	const (
		static = "default/file-n+"
		all    = "default/api+ default/file-n+ default/init mig-exporter/mig-exporter-sim"
	)
	s := newStepped(t, restarted)
	var last os.FileInfo

	for _, step := range []struct {
		at     time.Duration
		want   string
		socket bool // a new one
	}{
		{0, all, true},
		{10 * time.Second, "refused", false},
		{12*time.Second - 1, "refused", false},
		{12 * time.Second, "", true},
		{13*time.Second - 1, "", false},
		{13 * time.Second, static, false},
		{14*time.Second - 1, static, false},
		{14 * time.Second, all, false},
		{20 * time.Second, "", true},
		{21 * time.Second, static, false},
		{30 * time.Second, static, false},
		{70*time.Second - 1, static, false},
		{70 * time.Second, all, false},
	} {
		s.to(step.at)

		if got := s.listed(); got != step.want {
			t.Errorf("after %s: %q, want %q", step.at, got, step.want)
		}

		info, err := os.Stat(s.server.Socket())
		if err != nil {
			t.Fatal(err)
		}

		if renewed := last == nil || !os.SameFile(last, info) || !last.ModTime().Equal(info.ModTime()); renewed != step.socket {
			t.Errorf("after %s: a new socket: %v", step.at, renewed)
		}

		last = info

		procs, err := os.ReadDir(s.server.ProcDir())
		if err != nil || len(procs) != 3 {
			t.Errorf("after %s: processes %v, %v; want those of three pods", step.at, procs, err)
		}
	}
}

// TestRestartBetweenTwoCalls is noticed all the same.
func TestRestartBetweenTwoCalls(t *testing.T) {
	s := newStepped(t, restarted)

	before, err := os.Stat(s.server.Socket())
	if err != nil {
		t.Fatal(err)
	}

	s.to(13 * time.Second)

	after, err := os.Stat(s.server.Socket())
	if err != nil || os.SameFile(before, after) && before.ModTime().Equal(after.ModTime()) {
		t.Errorf("the socket is the old one, %v", err)
	}

	if got := s.listed(); got != "default/file-n+" {
		t.Errorf("listed: %s", got)
	}
}

func TestAdminClaimsAreListed(t *testing.T) {
	s := newStepped(t, `
version: 1
node: {allocator: dra}
gpus: [{model: A100-40GB, count: 2}]
pods:
  - {name: holder, resource: nvidia.com/gpu}
  - {name: monitor, resource: nvidia.com/gpu, count: 2, admin: true}
`)
	if got := s.listed(); got != "default/holder+ default/monitor++ mig-exporter/mig-exporter-sim" {
		t.Errorf("listed: %s", got)
	}
}

// checkpointText is the file's form as Kubernetes has it.
type checkpointText struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID, ContainerName, ResourceName string
			DeviceIDs                           map[string][]string
			AllocResp                           []byte
		}
		RegisteredDevices map[string][]string
	}
	Checksum uint64
}

func readCheckpoint(t *testing.T, s *kubelet.Server) (c checkpointText, info os.FileInfo) {
	t.Helper()

	text, err := os.ReadFile(s.Checkpoint())
	if err != nil {
		t.Fatal(err)
	}

	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()

	if err := decoder.Decode(&c); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}

	if info, err = os.Stat(s.Checkpoint()); err != nil {
		t.Fatal(err)
	}

	return c, info
}

func TestCheckpointFile(t *testing.T) {
	s := newStepped(t, `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}, {model: A100-40GB, count: 4}]
pods:
  - {name: a, resource: nvidia.com/mig-3g.20gb, count: 2, for: 10s}
  - {name: wide, resource: nvidia.com/gpu, count: 3, at: 2s}
  - {name: b, resource: nvidia.com/mig-3g.20gb, at: 20s}
faults: [{at: 30s, for: 5s, kind: checkpoint-invalid}, {at: 40s, kind: kubelet-restart}]
`)
	uids := map[string]string{}
	entries := func(at time.Duration) (string, checkpointText, os.FileInfo) {
		s.to(at)

		for _, c := range s.node.Running() {
			uids[c.PodUID] = c.Pod
		}

		c, info := readCheckpoint(t, s.server)

		var names []string
		for _, e := range c.Data.PodDeviceEntries {
			names = append(names, uids[e.PodUID]+"/"+e.ContainerName+" "+e.ResourceName)
			var response deviceplugin.ContainerAllocateResponse

			ids := slices.Concat(slices.Collect(maps.Values(e.DeviceIDs))...)
			if err := proto.Unmarshal(e.AllocResp, &response); err != nil || strings.Count(response.Envs["NVIDIA_VISIBLE_DEVICES"], ",") != len(ids)-1 {
				t.Errorf("the plugin's answer %v, %v is not about %v", response.Envs, err, ids)
			}
		}

		return strings.Join(names, ", "), c, info
	}
	want := func(at time.Duration, text string) (checkpointText, os.FileInfo) {
		t.Helper()

		got, c, info := entries(at)
		if got != text {
			t.Errorf("after %s: %s, want %s", at, got, text)
		}

		return c, info
	}
	const slice, whole = " nvidia.com/mig-3g.20gb", " nvidia.com/gpu"
	want(0, "a/main"+slice)
	c, first := want(2*time.Second, "a/main"+slice+", wide/main"+whole)
	cmptest.Equal(t, "registered GPUs and MIG devices",
		[2]int{len(c.Data.RegisteredDevices["nvidia.com/gpu"]), len(c.Data.RegisteredDevices["nvidia.com/mig-3g.20gb"])}, [2]int{4, 2})
	cmptest.Equal(t, "there is no checksum", c.Checksum == 0, false)
	cmptest.Equal(t, "mode of the checkpoint", first.Mode().Perm(), 0o600)
	names, err := os.ReadDir(filepath.Dir(s.server.Checkpoint()))
	cmptest.Equal(t, "error of the folder", err, nil)
	cmptest.Equal(t, "files, with the socket and two directories", len(names), 4)

	_, second := want(19*time.Second, "a/main"+slice+", wide/main"+whole)
	if !os.SameFile(first, second) {
		t.Error("it was written when a pod ended")
	}

	want(20*time.Second, "wide/main"+whole+", b/main"+slice)
	s.to(30 * time.Second)

	if text, err := os.ReadFile(s.server.Checkpoint()); err != nil || json.Valid(text) {
		t.Errorf("invalid: %q, %v", text, err)
	}

	_, before := want(35*time.Second, "wide/main"+whole+", b/main"+slice)
	if _, after := want(40*time.Second, "wide/main"+whole+", b/main"+slice); os.SameFile(after, before) && after.ModTime().Equal(before.ModTime()) {
		t.Error("it was not written when the kubelet was started")
	}
}

// TestCheckpointOfEveryScenario: it can be read, and without claims has what the list has.
func TestCheckpointOfEveryScenario(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/scenarios/*.yaml")
	if err != nil || len(files) < 9 {
		t.Fatalf("scenarios: %v, %v", files, err)
	}

	for _, file := range files {
		scenario, err := sim.Load(file)
		if err != nil {
			t.Fatal(err)
		}

		n, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
		if err != nil {
			t.Fatal(err)
		}

		s := serve(t, n)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}

		c, _ := readCheckpoint(t, s)
		given := map[string]bool{}
		listed := map[string]bool{}

		for _, e := range c.Data.PodDeviceEntries {
			for _, ids := range e.DeviceIDs {
				for _, id := range ids {
					given[id] = true
				}
			}
		}

		for _, c := range n.Running() {
			for _, d := range c.Devices {
				for _, id := range d.IDs {
					listed[id] = true
				}
			}
		}

		if !maps.Equal(given, listed) {
			t.Errorf("%s: the checkpoint has %v, the containers have %v", scenario.Name, given, listed)
		}
	}
}
