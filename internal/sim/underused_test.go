package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/podmeta"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// snapshot returns what an exporter sees of a node without MIG.
func snapshot(t *testing.T, n *sim.Node) *gpu.Snapshot {
	t.Helper()
	s := &gpu.Snapshot{Time: n.Now(), Hostname: n.Scenario().Node.Hostname}
	containers := make(map[string]sim.Container)

	for _, c := range n.Containers() {
		for _, d := range c.Devices {
			containers[d.IDs[0]] = c
		}
	}

	for i := range n.Count() {
		state, err := n.Read(i, gpu.ReadingDevice)
		if err != nil {
			t.Fatal(err)
		}

		g := gpu.GPU{
			Facts: gpu.Facts{UUID: state.UUID, Index: i, Name: state.Name, SMs: gpu.Some(state.SMs), Profiles: state.Profiles},
			Device: gpu.Device{Up: true, Allocated: gpu.Some(false), Activity: gpu.Activity{
				GraphicsEngine: gpu.Some(state.Activity.Graphics), SM: gpu.Some(state.Activity.SM),
				DRAM: gpu.Some(state.Activity.DRAM),
			}}, MIG: gpu.MIGState{Enabled: gpu.Some(state.MIGEnabled)},
			ActivitySource: gpu.ActivityGPM,
			Readings: gpu.Readings{
				SlowReadings: gpu.SlowReadings{PowerLimitWatts: gpu.Some(state.LimitWatts)},
				Memory:       gpu.Memory{Total: gpu.Some(state.MemoryTotal), Used: gpu.Some(state.MemoryUsed)},
				Media: gpu.Media{
					Encoder: gpu.Some(state.Activity.Media[sim.MediaEncoder]),
					Decoder: gpu.Some(state.Activity.Media[sim.MediaDecoder]),
					JPEG:    gpu.Some(state.Activity.Media[sim.MediaJPEG]), OFA: gpu.Some(state.Activity.Media[sim.MediaOFA]),
				},
				PowerWatts: gpu.Some(state.Watts),
			},
			Power: gpu.PowerEstimate{IdleWatts: gpu.Some(70.)},
		}
		if c, held := containers[string(state.UUID)]; held {
			g.Holders = []gpu.Holder{{
				Container: gpu.Container{Namespace: c.Namespace, Pod: c.Pod, Name: c.Name}, PodUID: c.PodUID, Workload: c.Owner,
				Resource: c.Devices[0].Resource, Sharing: gpu.SharingExclusive,
			}}
			pod, _ := n.PodByName(c.Namespace, c.Pod, time.Time{})
			g.Holders[0].Rightsizing, _ = podmeta.ParseHints(pod.Annotations)
			g.Allocated = gpu.Some(true)
		}

		s.GPUs = append(s.GPUs, g)
	}

	return s
}

// adviceAfter returns what the advisor says of each pod after a time, as action, reason and
// profile.
func adviceAfter(t *testing.T, scenario string, o advise.Options, duration time.Duration) map[string]string {
	t.Helper()

	s, err := sim.Load("../../testdata/scenarios/" + scenario + ".yaml")
	if err != nil {
		t.Fatal(err)
	}

	n, err := sim.New(s, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	o.MaxGap = 2 * time.Minute
	a := advise.New(o)
	last := snapshot(t, n) // containers have not loaded anything yet
	a.Observe(last)

	for range int(duration / time.Minute) {
		if err := n.Advance(time.Minute); err != nil {
			t.Fatal(err)
		}

		last = snapshot(t, n)
		a.Observe(last)
	}

	said := make(map[string]string)

	for _, r := range a.Recommend(last).Devices {
		name := fmt.Sprintf("GPU %d", r.Index)
		if r.Pod != nil {
			name = r.Pod.Name
		}

		said[name] = fmt.Sprintf("%s %s %s", r.Action, r.Reason, r.Recommended)
	}

	return said
}

// TestUnderusedNodeHasEveryAnswer: after a day, each kind of answer of right-sizing is there on
// eight GPUs.
func TestUnderusedNodeHasEveryAnswer(t *testing.T) {
	cmptest.Equal(t, "advice", adviceAfter(t, "h100-underused", advise.DefaultOptions(), 25*time.Hour), map[string]string{
		"classifier-0": "slice  1g.10gb+me",
		"embedder-0":   "slice  2g.20gb",
		"reranker-0":   "slice  3g.40gb",
		"small-llm-0":  "keep preallocated ",
		"medium-llm-0": "keep busy ",
		"notebook-ben": "slice  1g.10gb",
		"asr-0":        "share stretch ",
		"GPU 7":        "free  ",
	})
}

// TestSingleStrategyHasOneAnswer: one profile does for all pods of the node.
func TestSingleStrategyHasOneAnswer(t *testing.T) {
	o := advise.DefaultOptions()
	o.SingleStrategy = true
	cmptest.Equal(t, "advice", adviceAfter(t, "h100-single", o, 25*time.Hour), map[string]string{
		"detector-0": "slice  3g.40gb", "embedder-0": "slice  3g.40gb", "notebook-ben": "slice  3g.40gb",
		"small-llm-0": "slice  3g.40gb",
	})
}
