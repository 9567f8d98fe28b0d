package collector

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// jobNode has a GPU with one job, a GPU that two share, and a GPU whose GPU instances have one and
// two.
func jobNode() *gpu.Snapshot {
	whole := plainGPU(0)
	shared := plainGPU(1)
	split := migGPU()
	whole.Jobs = []string{"41"}
	shared.Jobs = []string{"42", "43"}
	whole.Totals.LayoutChanges = newCounter(3)
	split.Instances[0].Jobs = []string{"44"}
	split.Instances[0].ComputeInstances = split.Instances[0].ComputeInstances[:1]
	split.Instances = append(split.Instances, gpu.GPUInstance{ID: 2, Profile: "3g.20gb", Jobs: []string{"45", "46"}})

	return newNode(whole, shared, split)
}

// TestJobsOnSeries: in mode series the families of use name the job of a device that has one alone.
func TestJobsOnSeries(t *testing.T) {
	s := jobNode()
	for i := range s.GPUs {
		s.GPUs[i].Readings.Memory.Used = gpu.Some(uint64(i))
	}

	for i := range s.GPUs[2].Instances {
		s.GPUs[2].Instances[i].Memory.Used = gpu.Some(uint64(10 + i))
	}

	opts := fixedOptions("memory")
	opts.Jobs = true
	opts.PodLabels = PodLabelsSeries
	expectText(t, renderText(t, mustNew(t, opts), s), `# TYPE nvidia_gpu_memory_used_bytes gauge
		nvidia_gpu_memory_used_bytes{gpu="1",uuid="GPU-1"} 1
		nvidia_gpu_memory_used_bytes{gpu="2",uuid="GPU-2"} 2
		nvidia_gpu_memory_used_bytes{gpu="0",hpc_job="41",uuid="GPU-0"} 0
		# TYPE nvidia_mig_gpu_instance_memory_used_bytes gauge
		nvidia_mig_gpu_instance_memory_used_bytes{gpu="2",gpu_instance="2",mig_profile="3g.20gb",uuid="GPU-2"} 11
		nvidia_mig_gpu_instance_memory_used_bytes{gpu="2",gpu_instance="1",hpc_job="44",mig_profile="3g.20gb",uuid="GPU-2"} 10`)
}

func TestJobInfo(t *testing.T) {
	const info = `# TYPE nvidia_gpu_hpc_job_info gauge
		nvidia_gpu_hpc_job_info{gpu="0",hpc_job="41",uuid="GPU-0"} 1
		nvidia_gpu_hpc_job_info{gpu="1",hpc_job="42",uuid="GPU-1"} 1
		nvidia_gpu_hpc_job_info{gpu="1",hpc_job="43",uuid="GPU-1"} 1
		# TYPE nvidia_mig_gpu_instance_hpc_job_info gauge
		nvidia_mig_gpu_instance_hpc_job_info{gpu="2",gpu_instance="1",hpc_job="44",mig_profile="3g.20gb",uuid="GPU-2"} 1
		nvidia_mig_gpu_instance_hpc_job_info{gpu="2",gpu_instance="2",hpc_job="45",mig_profile="3g.20gb",uuid="GPU-2"} 1
		nvidia_mig_gpu_instance_hpc_job_info{gpu="2",gpu_instance="2",hpc_job="46",mig_profile="3g.20gb",uuid="GPU-2"} 1`

	for _, test := range []struct {
		mode PodLabelMode
		jobs bool
		want string
	}{
		{PodLabelsSeries, true, info}, {PodLabelsInfo, true, info}, {PodLabelsOff, true, ""}, {PodLabelsSeries, false, ""},
	} {
		opts := fixedOptions("jobs")
		opts.PodLabels = test.mode
		opts.Jobs = test.jobs
		expectText(t, renderText(t, mustNew(t, opts), jobNode()), test.want)
	}
}

// Only if they are asked for, and only in the mode that puts holders on series.
func TestJobsNotOnSeries(t *testing.T) {
	for _, opts := range []Options{{Jobs: true}, {Jobs: true, PodLabels: PodLabelsInfo},
		{Jobs: true, PodLabels: PodLabelsOff}, {PodLabels: PodLabelsSeries}} {
		opts.Disabled = onlyGroups("memory")

		families, err := mustNew(t, opts).Gather(jobNode())
		if err != nil {
			t.Fatal(err)
		}

		for _, f := range families {
			for _, m := range f.GetMetric() {
				if job := labelOf(m, "hpc_job"); job != "" {
					t.Errorf("%+v: %s has hpc_job %q", opts, f.GetName(), job)
				}
			}
		}
	}
}

// TestJobBesideAPod: with mode series the job and its pod are both on the device's series of use.
// We do not know when the job began, so a counter that is older has no beginning under its label.
func TestJobBesideAPod(t *testing.T) {
	g := migGPU()
	gi := &g.Instances[0]
	gi.Holders, gi.Jobs, gi.EnergyJoules = []gpu.Holder{exclusiveHolder("slurmd")}, []string{"41"}, gpu.Some(newCounter(3))
	opts := fixedOptions("power")
	opts.Jobs = true
	opts.PodLabels = PodLabelsSeries

	families, err := mustNew(t, opts).Gather(newNode(g))
	if err != nil {
		t.Fatal(err)
	}

	list := metricsOf(families, "nvidia_mig_gpu_instance_energy_estimate_joules_total")
	if len(list) != 1 {
		t.Fatalf("got %v, want one series", list)
	}

	cmptest.Equal(t, "pod", labelOf(list[0], "pod"), "slurmd")
	cmptest.Equal(t, "job", labelOf(list[0], "hpc_job"), "41")

	if created := list[0].GetCounter().GetCreatedTimestamp(); created != nil {
		t.Errorf("created %v, want none", created.AsTime())
	}
}
