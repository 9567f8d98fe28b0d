package nvmlsrc

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readProcessUse tells how busy each process keeps the SMs, by the driver's newest sample of it since the last reading.
// The driver has samples of processes that did something; it has none under MIG.
func (r *round) readProcessUse(list []gpu.Process) {
	const question = "nvmlDeviceGetProcessUtilization"
	if !r.source.opts.ProcessUtilization || r.board.mode.enabled.Or(false) || !r.may(question, gpu.ReadingProcesses) {
		return
	}
	if r.board.processesSeen > uint64(r.now.UnixMicro()) {
		r.board.processesSeen = 0 // the clock was set back: nothing would ever be newer
	}
	samples, ret := r.dev.GetProcessUtilization(r.board.processesSeen)
	if ret == nvml.ERROR_NOT_FOUND { // nothing did anything
		samples, ret = nil, nvml.SUCCESS
	}
	if !r.took(question, gpu.ReadingProcesses, ret) {
		return
	}
	for i := range list {
		p := &list[i]
		var newest uint64
		p.SM = gpu.Some(0.0)
		for _, s := range samples {
			if s.Pid == p.PID && s.TimeStamp >= newest && s.SmUtil <= 100 {
				newest, p.SM = s.TimeStamp, gpu.Some(float64(s.SmUtil)/100)
			}
		}
	}
	for _, s := range samples {
		r.board.processesSeen = max(r.board.processesSeen, s.TimeStamp)
	}
}
