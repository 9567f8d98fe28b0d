package collector

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// usedNode has a whole GPU that a pod holds, a GPU that two share, and a GPU with a split GPU
// instance, of which a pod holds a part, and one that is not split.
func usedNode() *gpu.Snapshot {
	whole := plainGPU(0)
	shared := plainGPU(1)
	split := migGPU()
	use := func(pod string, sharing gpu.Sharing) gpu.ContainerUse {
		return gpu.ContainerUse{Container: gpu.Container{Namespace: "ml", Pod: pod, Name: "main"}, Sharing: sharing}
	}
	busy := gpu.Activity{SM: gpu.Some(0.5), DRAM: gpu.Some(0.25), Tensor: gpu.Some(0.125)}
	whole.Activity = busy
	shared.Activity = busy
	all := use("whole", gpu.SharingExclusive)
	all.MemoryUsed, all.PowerWatts, all.EnergyJoules = gpu.Some[uint64](10), gpu.Some(200.0), gpu.Some(newCounter(70))
	whole.Containers = []gpu.ContainerUse{all}
	one := use("one", gpu.SharingTimeSlicing)
	two := use("two", gpu.SharingTimeSlicing)
	one.MemoryUsed, two.MemoryUsed = gpu.Some[uint64](11), gpu.Some[uint64](12)
	shared.Containers = []gpu.ContainerUse{one, two}

	busy.DRAM = gpu.None[float64]()
	split.Instances[0].ComputeInstances[0].Activity = busy
	left := use("left", gpu.SharingExclusive)
	left.Instance, left.Compute, left.MemoryUsed = gpu.Some(gpu.InstanceID(1)), gpu.Some(gpu.ComputeID(0)),
		gpu.Some[uint64](13)
	undivided := gpu.GPUInstance{ID: 5, Profile: "1g.5gb", ComputeInstances: []gpu.ComputeInstance{{ID: 0, UUID: "MIG-u"}}}
	undivided.Activity.DRAM = gpu.Some(0.75)
	split.Instances = append(split.Instances, undivided)
	small := use("small", gpu.SharingExclusive)
	small.Instance, small.Compute, small.PowerWatts = gpu.Some(gpu.InstanceID(5)), gpu.Some(gpu.ComputeID(0)),
		gpu.Some(30.0)
	gone := use("gone", gpu.SharingExclusive)
	gone.Instance, gone.PowerWatts = gpu.Some(gpu.InstanceID(9)), gpu.Some(1.0)
	job := gpu.ContainerUse{Job: "41", Sharing: gpu.SharingExclusive, Instance: gpu.Some(gpu.InstanceID(1)),
		PowerWatts: gpu.Some(60.0)}
	split.Containers = []gpu.ContainerUse{left, small, gone, job}

	return newNode(whole, shared, split)
}

func TestContainers(t *testing.T) {
	const left = `{compute_instance="0",container="main",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-a",namespace="ml",pod="left",sharing="exclusive",uuid="GPU-2"}`
	const small = `{compute_instance="0",container="main",gpu="2",gpu_instance="5",mig_profile="1g.5gb",mig_uuid="MIG-u",namespace="ml",pod="small",sharing="exclusive",uuid="GPU-2"}`
	const whole = `{container="main",gpu="0",namespace="ml",pod="whole",sharing="exclusive",uuid="GPU-0"}`
	const before = `# TYPE nvidia_gpu_container_dram_activity_ratio gauge
		nvidia_gpu_container_dram_activity_ratio` + whole + ` 0.25
		nvidia_gpu_container_dram_activity_ratio` + small + ` 0.75
		# TYPE nvidia_gpu_container_energy_estimate_joules_total counter
		nvidia_gpu_container_energy_estimate_joules_total` + whole + ` 70
		# TYPE nvidia_gpu_container_memory_used_bytes gauge
		nvidia_gpu_container_memory_used_bytes` + whole + ` 10
		nvidia_gpu_container_memory_used_bytes{container="main",gpu="1",namespace="ml",pod="one",sharing="time-slicing",uuid="GPU-1"} 11
		nvidia_gpu_container_memory_used_bytes{container="main",gpu="1",namespace="ml",pod="two",sharing="time-slicing",uuid="GPU-1"} 12
		nvidia_gpu_container_memory_used_bytes` + left + ` 13
		# TYPE nvidia_gpu_container_power_estimate_watts gauge
		`
	const after = `nvidia_gpu_container_power_estimate_watts` + whole + ` 200
		nvidia_gpu_container_power_estimate_watts` + small + ` 30
		# TYPE nvidia_gpu_container_sm_activity_ratio gauge
		nvidia_gpu_container_sm_activity_ratio` + whole + ` 0.5
		nvidia_gpu_container_sm_activity_ratio` + left + ` 0.5
		# TYPE nvidia_gpu_container_tensor_activity_ratio gauge
		nvidia_gpu_container_tensor_activity_ratio` + whole + ` 0.125
		nvidia_gpu_container_tensor_activity_ratio` + left + ` 0.125`

	const jobWatts = `nvidia_gpu_container_power_estimate_watts{gpu="2",gpu_instance="1",hpc_job="41",mig_profile="3g.20gb",sharing="exclusive",uuid="GPU-2"} 60
		`
	for _, tt := range []struct {
		mode PodLabelMode
		jobs bool
		want string
	}{
		{"", false, before + after},
		{PodLabelsContainer, true, before + jobWatts + after},
		{PodLabelsSeries, false, before + after},
		{PodLabelsInfo, true, ""},
		{PodLabelsOff, true, ""},
	} {
		t.Run(string(tt.mode), func(t *testing.T) {
			opts := fixedOptions("containers")
			opts.PodLabels = tt.mode
			opts.Jobs = tt.jobs
			expectText(t, renderText(t, mustNew(t, opts), usedNode()), tt.want)
		})
	}
}
