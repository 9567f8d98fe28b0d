package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const mediaScenario = `
version: 1
node: {kubernetes: false}
gpus:
- {model: H100-80GB}
- {model: H100-80GB, mig: true, layout: [{gi: "2g.20gb@0", ci: ["1c", "1c"]}, "1g.10gb+me@6"]}
- {model: RTX-PRO-6000, fans: 2}
workloads:
- {name: video, memory: 1GiB, sm: 4, decoder: 3.5, jpeg: 0.7, ofa: 0.25}
- {name: transcode, memory: 1GiB, sm: 4, decoder: 3.5, jpeg: 0.7, ofa: 0.25, encoder: 2}
- {name: frames, memory: 1GiB, sm: 4, decoder: 0.5}
- {name: flood, memory: 1GiB, sm: 4, decoder: 9, ofa: 9}
processes:
- {device: 0, workload: video}
- {device: 1/2g.20gb@0/0, workload: frames}
- {device: 1/2g.20gb@0/1, workload: frames}
- {device: 1/1g.10gb+me@6, workload: flood}
- {device: 2, workload: transcode}
`

func stateOf(t *testing.T, n *Node, index int) GPUState {
	t.Helper()

	s, err := n.Read(index, gpu.ReadingDevice)
	if err != nil {
		t.Fatal(err)
	}

	return s
}

// gpmMetric is a metric of a window of one second, of a GPU or of a GPU instance, in percent.
func gpmMetric(t *testing.T, n *Node, read func() (Counters, error), id uint32) (float64, bool) {
	t.Helper()

	before, err := read()
	if err != nil {
		t.Fatal(err)
	}

	if err := n.Advance(time.Second); err != nil {
		t.Fatal(err)
	}

	after, err := read()
	if err != nil {
		t.Fatal(err)
	}

	return GPM(before, after, id)
}

func TestMediaEngines(t *testing.T) {
	n := start(t, mediaScenario)
	for index, want := range []gpu.Opt[MediaUtilization]{
		gpu.Some(MediaUtilization{0, 50, 10, 25}), // 7 decoders, 7 JPEG engines, an optical flow accelerator, no encoder
		gpu.None[MediaUtilization](),
		gpu.Some(MediaUtilization{50, 88, 18, 25}), // 4 of each but one
	} {
		if s := stateOf(t, n, index); s.Media != want {
			t.Errorf("GPU %d: %v, want %v", index, s.Media, want)
		}
	}

	s := stateOf(t, n, 1)
	if got, want := s.Instances[0].Activity.Media, (Media{MediaDecoder: 0.5}); got != want {
		t.Errorf("two processes on one GPU instance with 2 decoders: %v, want %v", got, want)
	}

	if got, want := s.Instances[1].Activity.Media, (Media{MediaDecoder: 1, MediaOFA: 1}); got != want {
		t.Errorf("too much for one decoder: %v, want %v", got, want)
	}

	if got := s.Instances[0].ComputeInstances[0].Activity.Media; got != (Media{}) {
		t.Errorf("a compute instance has media engines: %v", got)
	}

	if got, want := s.Activity.Media, (Media{MediaDecoder: 2.0 / 7, MediaOFA: 1}); got != want {
		t.Errorf("the GPU with both: %v, want %v", got, want)
	}
}

// TestMissingMediaEngine: a workload that wants an engine that its device lacks is killed, when it
// wants it.
func TestMissingMediaEngine(t *testing.T) {
	n := start(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true, layout: ["1g.5gb@0", "1g.5gb+me@1", "2g.10gb@2"]}, {model: H100-80GB}]
workloads:
- {name: video, memory: 1GiB, width: 4, busy: 0.5, decoder: {steps: [{at: 10s, value: 0.1}]}}
- {name: still, memory: 1GiB, width: 4, busy: 0.5, encoder: 0}
- {name: recorder, memory: 1GiB, width: 4, busy: 0.5, encoder: 0.1}
processes:
- {device: 0/1g.5gb@0, workload: video}
- {device: 0/1g.5gb+me@1, workload: video}
- {device: 0/2g.10gb@2, workload: video}
- {device: 1, workload: still}
- {device: 1, workload: recorder}
`)
	for _, c := range []struct {
		after  time.Duration
		failed []string
	}{
		{9 * time.Second, []string{"H100-80GB has no encoder"}},
		{time.Second, []string{"H100-80GB has no encoder", "1g.5gb has no decoder"}},
	} {
		advance(t, n, c.after)
		var failed []string
		running := 0

		for _, p := range n.Truth() {
			if p.Failed == "" {
				running++
			} else if failed = append(failed, p.Failed); p.Throughput != 0 || !recorded(n, p.Failed) {
				t.Errorf("%+v; want throughput 0 and a record", p)
			}
		}

		if !slices.Equal(failed, c.failed) || running != 5-len(failed) {
			t.Errorf("after %v: %d run, failed %q; want %q", c.after, running, failed, c.failed)
		}
	}
}

// TestTooFewMediaEngines: a workload that keeps five decoders busy on a whole H100 does three
// fifths of its work on the three of a 3g.40gb, whose decoders are busy all the time; beside
// another one that decodes it does less. Its kernels, and its traffic, wait for the decoders.
func TestTooFewMediaEngines(t *testing.T) {
	n := start(t, `
version: 1
node: {kubernetes: false}
gpus:
- {model: H100-80GB}
- {model: H100-80GB, mig: true, layout: ["3g.40gb@0", {gi: "3g.40gb@4", ci: ["1c", "1c", "1c"]}]}
workloads:
- {name: five, memory: 1GiB, width: 4, busy: 0.5, decoder: 5, pcie: 1GiB}
- {name: one, memory: 1GiB, width: 4, busy: 0.5, decoder: 1}
- {name: none, memory: 1GiB, width: 4, busy: 0.5}
processes:
- {device: 0, workload: five}
- {device: 1/3g.40gb@0, workload: five}
- {device: 1/3g.40gb@4/0, workload: five}
- {device: 1/3g.40gb@4/1, workload: one}
- {device: 1/3g.40gb@4/2, workload: none}
`)
	for i, want := range []float64{1, 0.6, 0.45, 0.75, 1} {
		got := n.Truth()[i]
		if math.Abs(got.Throughput-want) > 1e-9 || math.Abs(got.Busy-want/2) > 1e-9 || got.Stretch != 1 {
			t.Errorf("%s on %s: throughput %v, busy %v, stretch %v; want %v, %v, 1",
				got.Workload, got.Profile, got.Throughput, got.Busy, got.Stretch, want, want/2)
		}
	}

	s := stateOf(t, n, 1)
	for i := range s.Instances {
		if got := s.Instances[i].Activity.Media[MediaDecoder]; math.Abs(got-1) > 1e-9 {
			t.Errorf("instance %d: decoders busy for %v of the time, want 1", i, got)
		}
	}

	if got, want := s.Instances[0].Activity.PCIe, 0.6*(1<<30); math.Abs(got-want) > 1 {
		t.Errorf("PCIe %v, want %v", got, want)
	}
}

// A metric of an engine is there if the device has the engine, on GPUs that have GPM.
func TestMediaEnginesByGPM(t *testing.T) {
	n := start(t, mediaScenario)
	instance := func(i int) func() (Counters, error) {
		id := stateOf(t, n, 1).Instances[i].ID
		return func() (Counters, error) { return n.InstanceCounters(1, id) }
	}
	compute := func() (Counters, error) { return n.ComputeCounters(1, stateOf(t, n, 1).Instances[0].ID, 0) }

	ofGPU := func() (Counters, error) { return n.GPUCounters(2) }
	for _, c := range []struct {
		of   string
		read func() (Counters, error)
		id   uint32
		want float64
		has  bool
	}{
		{"2g, NVDEC 0", instance(0), 30, 50, true},
		{"2g, NVDEC 1", instance(0), 31, 50, true},
		{"2g, NVDEC 2", instance(0), 32, 0, false},
		{"2g, NVJPG 1", instance(0), 41, 0, true},
		{"2g, NVOFA 0", instance(0), 50, 0, false},
		{"1g+me, NVDEC 0", instance(1), 30, 100, true},
		{"1g+me, NVOFA 0", instance(1), 50, 100, true},
		{"1g+me, NVENC 0", instance(1), 166, 0, false},
		{"a compute instance, NVDEC 0", compute, 30, 0, false},
		{"RTX PRO 6000, NVENC 3", ofGPU, 169, 50, true},
		{"RTX PRO 6000, past the last of a kind", ofGPU, 38, 0, false},
	} {
		if got, has := gpmMetric(t, n, c.read, c.id); has != c.has || has && got != c.want {
			t.Errorf("%s: %v, %t; want %v, %t", c.of, got, has, c.want, c.has)
		}
	}
}

func TestFansAndPerformanceState(t *testing.T) {
	n := start(t, mediaScenario)
	if s := stateOf(t, n, 0); s.Fans != nil || s.PerformanceState != 0 {
		t.Errorf("a data-center GPU: fans %v, P%d", s.Fans, s.PerformanceState)
	}

	cool := stateOf(t, n, 2)
	if len(cool.Fans) != 2 {
		t.Fatalf("a GPU with fans has %d, want 2", len(cool.Fans))
	}

	cmptest.Equal(t, "its first fan", cool.Fans[0], idleFanPercent)
	cmptest.Equal(t, "its performance state", cool.PerformanceState, 0)

	hot := start(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: RTX-PRO-6000, fans: 1}, {model: RTX-PRO-6000}]
workloads: [{name: all, memory: 1GiB, sm: 188, dram: 1, tensor: 1}]
processes: [{device: 0, workload: all}]
`)
	if err := hot.Advance(10 * time.Minute); err != nil {
		t.Fatal(err)
	}

	s := stateOf(t, hot, 0)

	want := 30 + 70*float64(s.Celsius-fanRestCelsius)/(slowdownCelsius-fanRestCelsius)
	if len(s.Fans) != 1 || s.Fans[0] < 60 || math.Abs(float64(s.Fans[0])-want) > 2 {
		t.Errorf("fans %v at %d C, want one at %.0f, give or take 2, and 60 at least", s.Fans, s.Celsius, want)
	}

	if s := stateOf(t, hot, 1); s.PerformanceState != 8 || s.Fans != nil {
		t.Errorf("an idle RTX PRO 6000: P%d, fans %v", s.PerformanceState, s.Fans)
	}
}
