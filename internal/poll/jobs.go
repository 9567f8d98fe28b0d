package poll

import (
	"maps"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// jobState is the last mapping of devices to batch jobs.
type jobState struct {
	sourceStatus
	call      asyncCall[gpu.Jobs]
	requested bool // in this cycle
	last      gpu.Jobs
	readAt    time.Time // when reading last began
}

// request starts to read the jobs of devices, unless an earlier call has not returned.
func (s *jobState) request(now time.Time, jobs Jobs, devices []gpu.JobDevice) {
	s.receive(nil) // the result of a call that outlasted its cycle
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

// collect receives the result, waiting until expired is closed. There are no jobs without a result:
// an outdated mapping would credit one job's work to another. A result with an error may have the
// jobs of some devices.
func (s *jobState) collect(now time.Time, expired <-chan struct{}, timeout time.Duration) {
	if !s.requested {
		expired = nil
	}

	if !s.receive(expired) && s.call.isHung(now, timeout) {
		s.err = gpu.ErrTimeout
		s.last = nil
	}
}

// receive stores the result, if there is one, and reports whether there was. It waits until expired
// is closed.
func (s *jobState) receive(expired <-chan struct{}) bool {
	r, ok := s.call.receive(expired)
	if !ok {
		return false
	}

	s.readAt = r.started
	if s.err, s.last = r.err, r.value; r.err == nil {
		s.success = r.started
	}

	return true
}

// attachJobs writes the jobs that were read at a time to their devices. Those of an instance that
// was first seen later are another instance's of the same id.
func attachJobs(gpus []gpu.GPU, jobs gpu.Jobs, readAt time.Time) {
	if len(jobs) == 0 {
		return
	}

	for i := range gpus {
		g := &gpus[i]
		if i > 0 && gpus[i-1].Index == g.Index {
			continue // it is lost, and another GPU has its index
		}

		g.Jobs = jobs[gpu.JobDevice{Index: g.Index}]
		for k := range g.Instances {
			gi := &g.Instances[k]
			if gi.Since.After(readAt) {
				continue
			}

			gi.Jobs = jobs[gpu.JobDevice{Index: g.Index, Instance: gpu.Some(gi.ID)}]
		}
	}
}
