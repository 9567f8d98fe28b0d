package truth

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
	"github.com/mig-exporter/mig-exporter/internal/sim/requests"
)

// poller shows a node as polls see it: busy time between them is that of the requests that were
// served then.
type poller struct {
	n      *node
	hour   int // that was served last, from 1 on
	served [8]*servedHour
	work   [8]kernels.Result // of the minute
}

// minute calls observe after each poll of a minute on whole GPUs.
func (p *poller) minute(s *gpu.Snapshot, minute int, observe func(*gpu.Snapshot)) {
	on := requestsDevice(p.n.wholeDevice())
	p.begin(minute, len(p.n.gpus), func(i int) (*workload, requests.Device) { return p.n.gpus[i], on })

	for i, w := range p.n.gpus {
		p.work[i] = p.n.hold(&s.GPUs[i], w, minute)
	}

	for k := range polls {
		s.Time = pollTime(minute, k)
		for i, w := range p.n.gpus {
			p.n.work(&s.GPUs[i], w, p.at(i, minute, k), pollSeconds)
		}

		if k == 0 {
			p.n.answer(s, minute)
		}

		observe(s)
	}
}

// minuteIn calls observe after each poll of a minute in slices.
func (p *poller) minuteIn(s *gpu.Snapshot, slices []slice, minute int, observe func(*gpu.Snapshot)) {
	p.begin(minute, len(slices), func(i int) (*workload, requests.Device) {
		return slices[i].work, requestsDevice(p.n.device(slices[i].profile, slices[i].loss))
	})

	for i := range slices {
		p.work[i] = p.n.holdSlice(&s.GPUs[i].Instances[0], &slices[i], minute)
	}

	for k := range polls {
		s.Time = pollTime(minute, k)
		for i := range slices {
			r := p.at(i, minute, k)
			if _, alive := slices[i].uses(minute); !alive {
				r = kernels.Result{}
			}

			p.n.workIn(&s.GPUs[i].Instances[0], &slices[i], r)
		}

		if k == 0 {
			p.n.answerIn(s, slices, minute)
		}

		observe(s)
	}
}

func pollTime(minute, poll int) time.Time {
	return start().Add(time.Duration(minute)*time.Minute + time.Duration(poll+1)*pollSeconds*time.Second)
}

// begin serves the requests of the hour of a minute, if that was not done yet.
func (p *poller) begin(minute, devices int, of func(i int) (*workload, requests.Device)) {
	if p.hour == minute/60+1 {
		return
	}

	p.hour = minute/60 + 1
	p.served = [8]*servedHour{}

	for i := range devices {
		if w, on := of(i); w != nil && w.serves != nil {
			p.served[i] = w.serve(minute/60, on)
		}
	}
}

// at returns what the kernels of a device do between two polls of a minute.
func (p *poller) at(i, minute, poll int) kernels.Result {
	h := p.served[i]
	if h == nil {
		return p.work[i]
	}

	v := h.polls[minute%60*polls+poll]

	return kernels.Result{Busy: v.Busy, SMs: v.SMs, Bandwidth: v.Bandwidth, Throughput: 1}
}
