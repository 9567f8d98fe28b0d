package advise

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestServerOfAPodWithTwoSlices: on which of the two the server is, is not known. What it answers,
// and what the pod's annotation says of its model, says nothing of the memory that the other
// container holds.
func TestServerOfAPodWithTwoSlices(t *testing.T) {
	for about, c := range map[string]struct {
		together      bool
		other         []float64 // GiB in the other container after twenty minutes, by turns
		server, wants answer
	}{
		"one pod, and 30 GiB that change": {true, []float64{30, 24}, answer{ActionKeep, ReasonPreallocated, ""},
			answer{Action: ActionKeep}},
		"one pod, and 10 GiB": {true, []float64{10}, answer{ActionKeep, ReasonPreallocated, ""},
			answer{ActionShrink, ReasonNone, "1g.20gb"}},
		"two pods": {false, []float64{30, 24}, answer{ActionShrink, ReasonNone, "1g.10gb"}, answer{Action: ActionKeep}},
	} {
		server := pod("ml", "Deployment/a")

		other := pod("ml", "Deployment/a")
		if other.Name = "reranker"; !c.together {
			other = pod("ml", "Deployment/b")
		}

		server.Rightsizing, other.Rightsizing = modelMemory(4), modelMemory(4)
		g := slicedGPU(t, "H100-80GB", "3g.40gb", load{busy: 0.5, sm: 0.05}, server)
		second := slicedGPU(t, "H100-80GB", "3g.40gb", load{busy: 0.5, sm: 0.05}, other).Instances[0]
		second.ID++
		g.Instances = append(g.Instances, second)

		a := New(fastOptions())
		start38 := memoryOf(held(1, 3), held(6, 4), held(1, 38))
		var s *gpu.Snapshot

		for i := range int(longEnough.Minutes()) {
			at := start().Add(time.Duration(i) * time.Minute)

			now := g
			if i == 0 {
				now = unheld([]gpu.GPU{g})[0]
			} else {
				now.Instances = append([]gpu.GPUInstance(nil), g.Instances...)
				now.Instances[0].Memory.Used = gpu.Some(uint64(start38[min(i-1, len(start38)-1)] * (1 << 30)))

				now.Instances[1].Memory.Used = gpu.Some[uint64](2 << 30)
				if i > 20 {
					now.Instances[1].Memory.Used = gpu.Some(uint64(c.other[i%len(c.other)] * (1 << 30)))
				}
			}

			s = &gpu.Snapshot{Time: at, Hostname: "node-a", GPUs: []gpu.GPU{now},
				Servers: []gpu.PodServer{{PodUID: "uid-a", Time: at, ServerFigures: usesCache(0.05)}}}
			a.Observe(s)
		}

		devices := recommend(a, s).Devices
		for i, want := range []answer{c.server, c.wants} {
			r := &devices[i]
			cmptest.Equal(t, about, answer{r.Action, r.Reason, r.Recommended}, want)
		}
	}
}
