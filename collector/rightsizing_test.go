package collector

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func adviseOptions(mode PodLabelMode, list ...Advice) Options {
	opts := fixedOptions("rightsizing")
	opts.PodLabels = mode
	opts.Advice = func() []Advice { return list }

	return opts
}

// wholeAdvice is about the whole GPU 2, which train holds.
func wholeAdvice() Advice {
	return Advice{
		GPU: "GPU-2", Holder: exclusiveHolder("train").Container, Action: "slice", Profile: "1g.5gb",
		Confidence:  gpu.Some(0.5),
		Reclaimable: gpu.Some(0.75), StretchLow: gpu.Some(1.0), StretchHigh: gpu.Some(1.5),
		LatencyLow: gpu.Some(1.0), LatencyHigh: gpu.Some(4.5),
		Figure: "memory", Deciding: gpu.Some(0.875), FreedGPUs: gpu.Some(0.5),
	}
}

func TestRightsizingOfWholeGPUs(t *testing.T) {
	held := plainGPU(2)
	held.Holders = []gpu.Holder{exclusiveHolder("train")}
	const others = `# TYPE nvidia_gpu_rightsizing_confidence_ratio gauge
		nvidia_gpu_rightsizing_confidence_ratio{gpu="2",uuid="GPU-2"} 0.5
		# TYPE nvidia_gpu_rightsizing_deciding_ratio gauge
		nvidia_gpu_rightsizing_deciding_ratio{figure="memory",gpu="2",uuid="GPU-2"} 0.875
		# TYPE nvidia_gpu_rightsizing_freed_gpus gauge
		nvidia_gpu_rightsizing_freed_gpus{gpu="2",uuid="GPU-2"} 0.5
		# TYPE nvidia_gpu_rightsizing_latency_ratio gauge
		nvidia_gpu_rightsizing_latency_ratio{bound="high",gpu="2",uuid="GPU-2"} 4.5
		nvidia_gpu_rightsizing_latency_ratio{bound="low",gpu="2",uuid="GPU-2"} 1
		# TYPE nvidia_gpu_rightsizing_reclaimable_ratio gauge
		nvidia_gpu_rightsizing_reclaimable_ratio{gpu="2",uuid="GPU-2"} 0.75
		# TYPE nvidia_gpu_rightsizing_stretch_ratio gauge
		nvidia_gpu_rightsizing_stretch_ratio{bound="high",gpu="2",uuid="GPU-2"} 1.5
		nvidia_gpu_rightsizing_stretch_ratio{bound="low",gpu="2",uuid="GPU-2"} 1`

	const named = `# TYPE nvidia_gpu_rightsizing_candidate gauge
		nvidia_gpu_rightsizing_candidate{container="main",gpu="2",namespace="ml",pod="train",recommended_profile="1g.5gb",uuid="GPU-2"} 1
		`
	for mode, want := range map[PodLabelMode]string{
		PodLabelsContainer: named + others, PodLabelsSeries: named + others, PodLabelsInfo: named + others,
		PodLabelsOff: `# TYPE nvidia_gpu_rightsizing_candidate gauge
			nvidia_gpu_rightsizing_candidate{gpu="2",recommended_profile="1g.5gb",uuid="GPU-2"} 1
			` + others,
	} {
		expectText(t, renderText(t, mustNew(t, adviseOptions(mode, wholeAdvice())), newNode(plainGPU(1), held)), want)
	}

	rejected := Advice{GPU: "GPU-2", Holder: exclusiveHolder("train").Container, Rejected: "nvlink"}
	expectText(t, renderText(t, mustNew(t, adviseOptions(PodLabelsContainer, rejected)), newNode(held)),
		`# TYPE nvidia_gpu_rightsizing_rejected gauge
		nvidia_gpu_rightsizing_rejected{gpu="2",reason="nvlink",uuid="GPU-2"} 1`)
}

// TestRightsizingOfAnotherHolder: advice that was computed before a device changed hands, or became
// another, is not shown.
func TestRightsizingOfAnotherHolder(t *testing.T) {
	held := func(change func(*gpu.GPU)) gpu.GPU {
		g := plainGPU(2)
		g.Holders = []gpu.Holder{exclusiveHolder("train")}
		change(&g)

		return g
	}
	for what, g := range map[string]gpu.GPU{
		"another pod":   held(func(g *gpu.GPU) { g.Holders[0].Pod = "next" }),
		"no pod":        held(func(g *gpu.GPU) { g.Holders = nil }),
		"two pods":      held(func(g *gpu.GPU) { g.Holders = append(g.Holders, exclusiveHolder("second")) }),
		"not described": held(func(g *gpu.GPU) { g.Holders[0].Undescribed = true }),
		"MIG mode":      held(func(g *gpu.GPU) { g.MIG.Enabled = gpu.Some(true) }),
		"another GPU":   held(func(g *gpu.GPU) { g.UUID = "GPU-3" }),
	} {
		if got := renderText(t, mustNew(t, adviseOptions(PodLabelsContainer, wholeAdvice())), newNode(g)); got != "" {
			t.Errorf("%s: %s", what, got)
		}
	}
}

func TestRightsizingOfInstances(t *testing.T) {
	place := gpu.Some(gpu.Placement{Start: 4, Size: 4})
	advice := Advice{GPU: "GPU-2", Instance: gpu.Some(gpu.InstanceID(1)), Placement: place, Action: "grow",
		Profile: "4g.20gb",
		Holder:  exclusiveHolder("train").Container}
	node := func(change func(*gpu.GPUInstance)) *gpu.Snapshot {
		g := migGPU()
		gi := &g.Instances[0]
		gi.Placement, gi.ComputeInstances, gi.Holders = place, gi.ComputeInstances[:1], []gpu.Holder{exclusiveHolder("train")}
		change(gi)

		return newNode(g)
	}

	const family = "# TYPE nvidia_mig_gpu_instance_rightsizing_candidate " +
		"gauge\nnvidia_mig_gpu_instance_rightsizing_candidate"
	for _, c := range []struct {
		what   string
		change func(*gpu.GPUInstance)
		want   string
	}{
		{"held", func(*gpu.GPUInstance) {},
			family + `{action="grow",container="main",gpu="2",gpu_instance="1",mig_profile="3g.20gb",` +
				`namespace="ml",pod="train",recommended_profile="4g.20gb",uuid="GPU-2"} 1`},
		{"split: others may have parts of it", func(gi *gpu.GPUInstance) {
			gi.ComputeInstances = append(gi.ComputeInstances, gpu.ComputeInstance{ID: 1})
			gi.Holders = nil
		}, family + `{action="grow",gpu="2",gpu_instance="1",mig_profile="3g.20gb",recommended_profile="4g.20gb",uuid="GPU-2"} 1`},
		{"another pod", func(gi *gpu.GPUInstance) { gi.Holders[0].Pod = "next" }, ""},
		{"another place", func(gi *gpu.GPUInstance) { gi.Placement = gpu.Some(gpu.Placement{Start: 0, Size: 4}) }, ""},
		{"another instance", func(gi *gpu.GPUInstance) { gi.ID = 2 }, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			expectText(t, renderText(t, mustNew(t, adviseOptions(PodLabelsContainer, advice)), node(c.change)), c.want)
		})
	}
}
