package sim

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

const scenarioFolder = "../../testdata/scenarios"

// shipped starts a scenario of the project.
func shipped(t *testing.T, name string) *Node {
	t.Helper()

	s, err := Load(filepath.Join(scenarioFolder, name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}

	return startScenario(t, s)
}

func shippedNames(t *testing.T) []string {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(scenarioFolder, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}

	for _, must := range []string{"dgx-a100-mixed", "h100-underused", "h100-single", "a30", "gke-h100-3g",
		"mps-and-timeslicing", "chaos", "kubelet-outages", "dra-monitors", "rtx-pro-video", "b200-power"} {
		if !slices.Contains(names, must) {
			t.Errorf("scenario %s is missing", must)
		}
	}

	return names
}

// sound are the scenarios that stay so: whose GPUs answer at all times.
func sound(t *testing.T) []string {
	return slices.DeleteFunc(shippedNames(t), func(name string) bool { return name == "chaos" })
}

// everything that a node says, as text.
func everything(t *testing.T, n *Node) string {
	t.Helper()

	var all []any
	for i := range n.Count() {
		all = append(all, state(t, n, i))
	}

	all = append(all, n.Containers(), n.Allocatable(), n.Records())

	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// checkGPU holds one GPU to what must be true at any time, and its counters to what they were
// before.
func checkGPU(t *testing.T, s, before GPUState) {
	t.Helper()

	where := s.Time.Format(time.TimeOnly)
	if s.MemoryUsed+s.MemoryReserved > s.MemoryTotal {
		t.Errorf("%s GPU %d: %d MiB used of %d", where, s.Index, s.MemoryUsed>>20, s.MemoryTotal>>20)
	}

	sum := uint64(0)
	for k, i := range s.Instances {
		sum += i.MemoryUsed
		if i.MemoryUsed > i.Profile.MemoryBytes {
			t.Errorf("%s GPU %d GPU instance %d: more memory used than there is", where, s.Index, i.ID)
		}

		if k > 0 && i.Placement.Overlaps(s.Instances[k-1].Placement) {
			t.Errorf("%s GPU %d: instances overlap", where, s.Index)
		}

		if i.Activity.SM > 1+1e-9 || i.Activity.Graphics > 1+1e-9 || i.Activity.Graphics < i.Activity.SM-1e-9 {
			t.Errorf("%s GPU %d GPU instance %d: activity %+v, want SM <= Graphics <= 1", where, s.Index, i.ID, i.Activity)
		}
	}

	if sum > s.MemoryUsed {
		t.Errorf("%s GPU %d: instances use more memory than the GPU", where, s.Index)
	}

	if s.Watts > s.LimitWatts || s.Watts < 20 {
		t.Errorf("%s GPU %d: %g W", where, s.Index, s.Watts)
	}

	if s.Celsius < 20 || s.Celsius > 90 {
		t.Errorf("%s GPU %d: %d C", where, s.Index, s.Celsius)
	}

	if s.Joules <= before.Joules || s.PCIeBytes <= before.PCIeBytes || s.NVLinkBytes < before.NVLinkBytes {
		t.Errorf("%s GPU %d: %g J after %g, %d bytes by PCIe after %d, by NVLink %d after %d: want growth, or the same by NVLink",
			where, s.Index, s.Joules, before.Joules, s.PCIeBytes, before.PCIeBytes, s.NVLinkBytes, before.NVLinkBytes)
	}

	if s.MIGEnabled == s.Utilization.Present() {
		t.Errorf("%s GPU %d: utilization %v with MIG %v", where, s.Index, s.Utilization, s.MIGEnabled)
	}
}

func TestShippedScenariosKeepTheirInvariantsForAnHour(t *testing.T) {
	for _, name := range sound(t) {
		t.Run(name, func(t *testing.T) {
			n := shipped(t, name)

			before := make([]GPUState, n.Count())
			for i := range before {
				before[i] = state(t, n, i)
			}

			for range 360 {
				advance(t, n, 10*time.Second)

				for i := range before {
					s := state(t, n, i)
					checkGPU(t, s, before[i])
					before[i] = s
				}
			}
		})
	}
}

func TestSameRunSameBytes(t *testing.T) {
	for _, name := range sound(t) {
		a := shipped(t, name)
		b := shipped(t, name)
		// Readings do not depend on how often they are read.
		for range 130 {
			advance(t, a, time.Second)
			advance(t, b, time.Second)

			for i := range a.Count() {
				state(t, a, i)
			}
		}

		if everything(t, a) != everything(t, b) {
			t.Errorf("%s: two runs differ", name)
		}
	}
}

func TestOtherSeedOtherIdentities(t *testing.T) {
	a := start(t, "version: 1\nseed: 1\ngpus: [{model: A30}]\n")

	b := start(t, "version: 1\nseed: 2\ngpus: [{model: A30}]\n")
	if state(t, a, 0).UUID == state(t, b, 0).UUID {
		t.Error("seeds give the same UUID")
	}
}

func TestDGXStory(t *testing.T) {
	n := shipped(t, "dgx-a100-mixed")
	s := state(t, n, 4)

	computeInstances := []int{} // of each GPU instance
	for _, i := range s.Instances {
		computeInstances = append(computeInstances, len(i.ComputeInstances))
	}

	if want := []int{2, 0}; !slices.Equal(computeInstances, want) {
		t.Fatalf("the GPU instances of GPU 4 have %v compute instances, want %v", computeInstances, want)
	}

	asr := mustContainer(t, n, "asr-0")

	tts := mustContainer(t, n, "tts-0")
	for k, c := range []Container{asr, tts} {
		if want := string(s.Instances[0].ComputeInstances[k].UUID); c.Devices[0].IDs[0] != want {
			t.Errorf("%s has %v, want %s", c.Pod, c.Devices, want)
		}
	}

	if used, want := s.Instances[0].MemoryUsed, uint64(3+5)<<30; used < want || used > want+16<<20 {
		t.Errorf("GPU instance of two pods uses %d MiB, want both", used>>20)
	}

	first := mustContainer(t, n, "etl-1").Devices[0].IDs[0]
	advance(t, n, 61*time.Second)

	ended := mustContainer(t, n, "etl-1")

	next := mustContainer(t, n, "etl-2")
	if ended.Devices[0].IDs[0] != first || next.Devices[0].IDs[0] != first {
		t.Errorf("etl-1 and etl-2 have %v and %v, want both %s", ended.Devices, next.Devices, first)
	}

	if len(ended.PIDs) != 0 || len(next.PIDs) != 1 {
		t.Errorf("processes %v of the ended pod and %v of its successor", ended.PIDs, next.PIDs)
	}

	advance(t, n, 2*time.Second)

	if _, ok := findContainer(n, "etl-1"); ok {
		t.Error("etl-1 is still listed 3 seconds after its end")
	}

	if label := mustContainer(t, n, "awkward").Labels["note"]; !strings.ContainsAny(label, "\"\\\n") {
		t.Errorf("label %q needs no escaping", label)
	}

	advance(t, n, time.Hour)

	if !recorded(n, "chat/big-0: refused: no free device of nvidia.com/mig-7g.40gb") {
		t.Error("big-0 was not refused")
	}

	if !recorded(n, "search/rerank-5d8b-kq9zl: process") || len(mustContainer(t, n, "rerank-5d8b-kq9zl").PIDs) != 0 {
		t.Error("rerank was not killed for lack of memory, or is not listed any more")
	}

	if s := state(t, n, 7); len(s.Instances) != 2 || s.Instances[0].Profile.Name != "4g.20gb" {
		t.Errorf("GPU 7 was not repartitioned: %+v", s.Instances)
	}
}

// Everything that a scenario asks for is admitted, but what its story says is refused.
func TestStoriesAdmitTheirPods(t *testing.T) {
	refused := map[string][]string{
		"dgx-a100-mixed": {"chat/big-0"},
		"gke-h100-3g":    {"tgi/gemma-6c8d9f-p3vx8"},
		"h100-single":    {"chat/small-llm-1"},
	}

	for _, name := range shippedNames(t) {
		n := shipped(t, name)
		advance(t, n, time.Hour)

		for _, p := range n.Scenario().Pods {
			pod := p.Namespace + "/" + p.Name
			if admitted, want := recorded(n, pod+": admitted"), !slices.Contains(refused[name], pod); admitted != want {
				t.Errorf("%s: pod %s admitted: %v, want %v", name, pod, admitted, want)
			}
		}

		for _, r := range n.Records() {
			if strings.HasPrefix(r.Message, "no device") {
				t.Errorf("%s: %s", name, r.Message)
			}
		}
	}
}

func TestGKEStory(t *testing.T) {
	n := shipped(t, "gke-h100-3g")
	advance(t, n, 3*time.Minute)

	if got := len(n.Containers()); got != 17 {
		t.Errorf("%d containers, want 16 and the exporter's own", got)
	}

	used := uint64(0)
	total := uint64(0)
	watts := 0.0

	for i := range n.Count() {
		s := state(t, n, i)

		used = used + s.MemoryUsed
		total = total + s.MemoryTotal

		watts = watts + s.Watts
		for _, d := range s.Devices {
			if d.Compute.SMs != 60 {
				t.Errorf("a slice has %d SMs, want 60", d.Compute.SMs)
			}
		}
	}

	if share := float64(used) / float64(total); share < 0.905 || share > 0.915 {
		t.Errorf("%.2f of the node's memory in use, want 0.91", share)
	}

	// A node with eight H100 under load draws about 8 kW, of which its GPUs make up at most 5.6.
	if watts < 4500 || watts > 5600 {
		t.Errorf("eight GPUs draw %.0f W", watts)
	}

	ids := n.Containers()[0].Devices[0]
	cmptest.Equal(t, "resource of GKE's device", ids.Resource, "nvidia.com/gpu")

	if id := ids.IDs[0]; !strings.HasPrefix(id, "nvidia") || !strings.Contains(id, "/gi") {
		t.Errorf("GKE's device is %q, want a form such as nvidia0/gi7", id)
	}
}

func TestSharingStory(t *testing.T) {
	n := shipped(t, "mps-and-timeslicing")
	for index, exclusive := range []bool{false, true, false, false} {
		if s := state(t, n, index); s.ExclusiveProcess != exclusive {
			t.Errorf("GPU %d: exclusive %v", index, s.ExclusiveProcess)
		}
	}

	seen := make(map[string]bool)

	for _, c := range n.Containers() {
		for _, d := range c.Devices {
			for _, id := range d.IDs {
				if seen[id] {
					t.Errorf("%s was given twice", id)
				}

				seen[id] = true
				if shared := strings.Contains(id, "::"); shared != strings.HasSuffix(d.Resource, ".shared") {
					t.Errorf("%s of %s", id, d.Resource)
				}
			}
		}
	}

	memory := make(map[uint32]uint64)
	for _, p := range state(t, n, 0).Processes {
		memory[p.PID] = p.MemoryBytes
	}

	if pid := mustContainer(t, n, "serving-0").PIDs[0]; memory[pid] != 11<<30 || len(memory) != 3 {
		t.Errorf("processes of GPU 0: %v", memory)
	}

	advance(t, n, 11*time.Minute)

	if len(mustContainer(t, n, "growing-0").PIDs) != 0 || len(mustContainer(t, n, "serving-1").PIDs) != 1 {
		t.Error("growing-0 must be killed beyond its share of MPS memory, serving-1 must go on")
	}

	clients := 0

	for _, p := range state(t, n, 1).Processes {
		if p.MPSClient {
			clients++
		}
	}

	if clients != 2 {
		t.Errorf("%d MPS clients, want 2", clients)
	}
}

func TestUnderusedStory(t *testing.T) {
	n := shipped(t, "h100-underused")
	for minute := range 60 {
		advance(t, n, time.Minute)

		for i := range n.Count() {
			s := state(t, n, i)
			if s.Activity.SM > 0.45 {
				t.Errorf("minute %d GPU %d: %.2f of the SMs busy on an underused node", minute, i, s.Activity.SM)
			}
		}
	}
}

func TestA30Story(t *testing.T) {
	n := shipped(t, "a30")
	advance(t, n, time.Minute)
	s := state(t, n, 0)
	greedy := mustContainer(t, n, "greedy-0").PIDs[0]

	at := slices.IndexFunc(s.Processes, func(p Process) bool { return p.PID == greedy })
	if speed := s.Processes[at].Speed; !near(speed, 14.0/40) {
		t.Errorf("greedy-0 wants 40 SMs of 14 and runs at %.2f", speed)
	}

	pending := state(t, n, 1)
	cmptest.Equal(t, "MIG mode of GPU 1", pending.MIGEnabled, false)
	cmptest.Equal(t, "its pending mode", pending.MIGPending, true)
	cmptest.Equal(t, "its processes", len(pending.Processes), 1)

	if err := n.Reset(1); err == nil {
		t.Error("a GPU with a process was reset")
	}
}
