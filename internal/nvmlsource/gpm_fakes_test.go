package nvmlsource_test

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// The spy's part of GPM: calls can be made to fail, and a sample can be of an entity by its number instead of its load.

// occupantFunc returns the number of what is an entity at this moment: a GPU (instance and compute -1), a GPU instance
// (compute -1), or a compute instance.
type occupantFunc func(instance, compute int) int

// always lets something happen before every call of a Read.
func (s *spy) always(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.every = f
}

type spySample struct {
	real nvmlsource.GPMSample
	spy  *spy
	of   int // what it was taken of
}

func (s *spySample) Free() nvml.Return {
	s.spy.passes("GpmSampleFree")
	return s.real.Free()
}

func (s *spy) GpmSampleAlloc() (nvmlsource.GPMSample, nvml.Return) {
	sample, ret := via(s, "GpmSampleAlloc", s.Library.GpmSampleAlloc)
	return &spySample{real: sample, spy: s}, ret
}

// mixed is the SM activity of a window that began at one instance and ended at another.
const mixed = 1e6

func (s *spy) GpmMetricsGet(before, after nvmlsource.GPMSample, metrics []nvmlsource.GPMMetric) nvml.Return {
	if ret, ok := s.passes("GpmMetricsGet"); !ok {
		return ret
	}

	if s.refuses != nil {
		if ret := s.refuses(metrics); ret != nvml.SUCCESS {
			return ret
		}
	}

	from := before.(*spySample)
	to := after.(*spySample)

	ret := s.Library.GpmMetricsGet(from.real, to.real, metrics)
	for i := range metrics {
		if s.occupant != nil {
			metrics[i].Value, metrics[i].Return = float64(to.of), nvml.SUCCESS
			if from.of != to.of {
				metrics[i].Value = mixed
			}
		}

		if lie, lies := s.metrics[metrics[i].ID]; lies {
			metrics[i].Value, metrics[i].Return = lie.Value, lie.Return
		}
	}

	return ret
}

func (s *spy) take(call string, into nvmlsource.GPMSample, instance, compute int,
	take func(nvmlsource.GPMSample) nvml.Return) nvml.Return {
	if ret, ok := s.passes(call); !ok {
		return ret
	}

	sample := into.(*spySample)

	ret := take(sample.real)
	if ret == nvml.SUCCESS && s.occupant != nil {
		sample.of = s.occupant(instance, compute)
	}

	return ret
}

func (d spyDevice) GpmSampleGet(into nvmlsource.GPMSample) nvml.Return {
	return d.spy.take("GpmSampleGet", into, -1, -1, d.Device.GpmSampleGet)
}

func (d spyDevice) GpmMigSampleGet(id int, into nvmlsource.GPMSample) nvml.Return {
	return d.spy.take("GpmMigSampleGet", into, id, -1, func(s nvmlsource.GPMSample) nvml.Return {
		return d.Device.GpmMigSampleGet(id, s)
	})
}

func (m spyMIG) GpmSampleGet(into nvmlsource.GPMSample) nvml.Return {
	instance, _ := m.MIGDevice.GetGpuInstanceId()
	compute, _ := m.MIGDevice.GetComputeInstanceId()

	return m.spy.take("MIG.GpmSampleGet", into, instance, compute, m.MIGDevice.GpmSampleGet)
}
