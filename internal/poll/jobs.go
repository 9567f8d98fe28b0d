package poll

import (
	"maps"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// jobState is the call that reads the batch jobs, and its last result.
type jobState struct {
	sourceStatus
	call      asyncCall[gpu.Jobs]
	requested bool      // the call was started in this cycle
	last      gpu.Jobs  // nil if there is no current result
	readAt    time.Time // when the call that returned last was started
}

// request starts to read the jobs of devices, unless an earlier call has not returned.
func (s *jobState) request(now time.Time, jobs Jobs, devices []gpu.JobDevice) {
	s.receive(nil) // the result of an earlier cycle's call
	s.requested = s.call.start(now, func() (gpu.Jobs, error) { return jobs.Jobs(devices) })
}

// jobDevices returns the GPUs and GPU instances of the last readings.
func (p *Poller) jobDevices() []gpu.JobDevice {
	known := map[gpu.JobDevice]bool{}
	for _, t := range p.gpus {
		known[gpu.JobDevice{Index: t.last.Index}] = true
		for i := range t.last.Instances {
			known[gpu.JobDevice{Index: t.last.Index, Instance: gpu.Some(t.last.Instances[i].ID)}] = true
		}
	}

	for index := range p.missing {
		known[gpu.JobDevice{Index: index}] = true
	}

	return slices.Collect(maps.Keys(known))
}

// collect receives the result. It waits until expired is closed, but not for the call of an earlier
// cycle. If the call hangs there are no jobs: an outdated mapping would credit one job's work to
// another.
func (s *jobState) collect(now time.Time, expired <-chan struct{}, timeout time.Duration) {
	if !s.requested {
		expired = nil
	}

	if !s.receive(expired) && s.call.isHung(now, timeout) {
		s.err = gpu.ErrTimeout
		s.last = nil
	}
}

// receive stores the result, if there is one, and reports whether there was. It waits like
// asyncCall.receive. A result with an error may have the jobs of some devices.
func (s *jobState) receive(expired <-chan struct{}) bool {
	r, ok := s.call.receive(expired)
	if !ok {
		return false
	}

	s.readAt = r.started
	s.last = r.value
	s.err = r.err

	if r.err == nil {
		s.success = r.started
	}

	return true
}

// attachJobs stores the jobs that we read at readAt in their devices. Those of an instance that we first
// saw later are unknown: the ones of its id are of an earlier instance.
func attachJobs(gpus []gpu.GPU, jobs gpu.Jobs, readAt time.Time) {
	for i := range gpus {
		g := &gpus[i]
		if i > 0 && gpus[i-1].Index == g.Index {
			g.JobsUnknown = true // it is lost, and another GPU has its index
			for k := range g.Instances {
				g.Instances[k].JobsUnknown = true
			}

			continue
		}

		list, known := jobs[gpu.JobDevice{Index: g.Index}]
		g.Jobs = list
		g.JobsUnknown = !known

		for k := range g.Instances {
			gi := &g.Instances[k]

			list, known := jobs[gpu.JobDevice{Index: g.Index, Instance: gpu.Some(gi.ID)}]
			if gi.Since.After(readAt) {
				list, known = nil, false
			}

			// A job of the whole GPU, if there is one or may be, has any of its parts.
			gi.Jobs = list
			gi.JobsUnknown = !known || len(list) == 0 && (g.JobsUnknown || len(g.Jobs) > 0)
		}
	}
}
