package nvmlsource_test

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// The spy's part of GPM: calls can be made to fail, and a sample can be of an entity by its number
// instead of its load.

// occupantFunc returns the number of what is an entity at this moment: a GPU (instance and compute
// -1), a GPU instance (compute -1), or a compute instance.
type occupantFunc func(instance, compute int) int

// always lets something happen before every call of a Read.
func (s *spy) always(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.every = f
}

type spySample struct {
	nvmlsource.GPMSample
	of int // what it was taken of
}

func (l spiedLibrary) GpmSampleAlloc() (nvmlsource.GPMSample, nvml.Return) {
	sample, ret := l.Library.GpmSampleAlloc()
	return &spySample{GPMSample: sample}, ret
}

// mixed is the SM activity of a window that began at one instance and ended at another.
const mixed = 1e6

func (l spiedLibrary) GpmMetricsGet(
	before, after nvmlsource.GPMSample,
	metrics []nvmlsource.GPMMetric,
) nvml.Return {
	s := l.spy
	if s.refuses != nil {
		if ret := s.refuses(metrics); ret != nvml.SUCCESS {
			return ret
		}
	}

	from := before.(*spySample)
	to := after.(*spySample)

	ret := l.Library.GpmMetricsGet(from.GPMSample, to.GPMSample, metrics)
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

func (s *spy) take(into nvmlsource.GPMSample, instance, compute int,
	take func(nvmlsource.GPMSample) nvml.Return) nvml.Return {
	sample := into.(*spySample)

	ret := take(sample.GPMSample)
	if ret == nvml.SUCCESS && s.occupant != nil {
		sample.of = s.occupant(instance, compute)
	}

	return ret
}

func (d spyDevice) GpmSampleGet(into nvmlsource.GPMSample) nvml.Return {
	return d.spy.take(into, -1, -1, d.Device.GpmSampleGet)
}

func (d spyDevice) GpmMigSampleGet(id int, into nvmlsource.GPMSample) nvml.Return {
	return d.spy.take(into, id, -1, func(s nvmlsource.GPMSample) nvml.Return {
		return d.Device.GpmMigSampleGet(id, s)
	})
}

func (m spyMIG) GpmSampleGet(into nvmlsource.GPMSample) nvml.Return {
	instance, _ := m.MIGDevice.GetGpuInstanceId()
	compute, _ := m.MIGDevice.GetComputeInstanceId()

	return m.spy.take(into, instance, compute, m.MIGDevice.GpmSampleGet)
}
