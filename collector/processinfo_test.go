package collector

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestProcessInfo: names are served if processes are listed, users only if they are asked for, pods
// and jobs by the modes of all families.
func TestProcessInfo(t *testing.T) {
	s := processNode()
	whole, _ := s.GPUs[0].Readings.Processes.Get()
	whole[0].Name = "python3"
	whole[0].User = "ada"
	whole[1].Name = "sim\xff\n"
	whole[1].User = "4242"
	whole[1].Job = "90210"
	s.GPUs = s.GPUs[:1]

	opts := fixedOptions(GroupProcessInfo)
	opts.Jobs = true

	for _, s.Processes = range []gpu.ProcessDetail{"", gpu.ProcessesOff} {
		expectText(t, renderText(t, mustNew(t, opts), s), "")
	}

	const (
		begins = "# TYPE nvidia_gpu_process_info gauge\n"
		third  = `nvidia_gpu_process_info{gpu="0",pid="9",uuid="GPU-0"} 1
			`
	)

	s.Processes = gpu.ProcessNames
	expectText(t, renderText(t, mustNew(t, opts), s), begins+third+
		`nvidia_gpu_process_info{gpu="0",hpc_job="90210",name="sim`+"\uFFFD"+`\n",pid="8",uuid="GPU-0"} 1
		nvidia_gpu_process_info{container="main",gpu="0",name="python3",namespace="ml",pid="7",pod="a",uuid="GPU-0"} 1`)

	s.Processes = gpu.ProcessUsers
	opts.PodLabels = PodLabelsOff
	expectText(t, renderText(t, mustNew(t, opts), s), begins+third+
		`nvidia_gpu_process_info{gpu="0",name="python3",pid="7",user="ada",uuid="GPU-0"} 1
		nvidia_gpu_process_info{gpu="0",name="sim`+"\uFFFD"+`\n",pid="8",user="4242",uuid="GPU-0"} 1`)
}
