package capture

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

// What a sample holds is the driver's own affair. So the samples of a recording are empty, and what is written down is the
// metrics of windows, with the entity that the window's last sample was taken of: like fields, the call and each metric
// apart.

// gpmSample is a sample, with what it was last taken of. It belongs to one reading at a time.
type gpmSample struct {
	real     nvmlsrc.GPMSample // nil in a replay
	of       *entity
	instance uint64 // the GPU instance of it, wholeEntity for the entity itself
}

// wholeEntity is no GPU instance.
const wholeEntity = nvmlsrc.NoInstance

func (s *gpmSample) Free() nvml.Return {
	if s.real == nil {
		return nvml.SUCCESS
	}
	return s.real.Free()
}

func (l *library) GpmSampleAlloc() (nvmlsrc.GPMSample, nvml.Return) {
	s := &gpmSample{}
	_, ret := ask(l.node, "nvmlGpmSampleAlloc", func() (none, nvml.Return) {
		var ret nvml.Return
		s.real, ret = l.real.GpmSampleAlloc()
		return none{}, ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return s, ret
}

func (l *library) GpmMetricsGet(before, after nvmlsrc.GPMSample, metrics []nvmlsrc.GPMMetric) nvml.Return {
	from, ok := before.(*gpmSample)
	to, ok2 := after.(*gpmSample)
	if !ok || !ok2 || from.of == nil || to.of == nil {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	of := gpmArg().name(to.instance)
	_, ret := ask(to.of, "nvmlGpmMetricsGet("+of+")", func() (none, nvml.Return) {
		return none{}, l.real.GpmMetricsGet(from.real, to.real, metrics)
	})
	if ret != nvml.SUCCESS {
		return ret
	}
	for i := range metrics {
		m := &metrics[i]
		question := fmt.Sprintf("nvmlGpmMetricsGet(%s, %s)", of, metricArg().name(uint64(m.ID)))
		m.Value, m.Return = ask(to.of, question, func() (float64, nvml.Return) { return m.Value, m.Return })
	}
	return nvml.SUCCESS
}

// sampleOf takes a sample of an entity, or of a GPU instance of it.
func sampleOf(e *entity, question string, instance uint64, into nvmlsrc.GPMSample, take func(nvmlsrc.GPMSample) nvml.Return) nvml.Return {
	s, ok := into.(*gpmSample)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	_, ret := ask(e, question, func() (none, nvml.Return) { return none{}, take(s.real) })
	if ret == nvml.SUCCESS {
		s.of, s.instance = e, instance
	}
	return ret
}

func (d *device) GpmSampleGet(into nvmlsrc.GPMSample) nvml.Return {
	return sampleOf(d.entity, "nvmlGpmSampleGet", wholeEntity, into, func(s nvmlsrc.GPMSample) nvml.Return { return d.real.GpmSampleGet(s) })
}

func (m migDevice) GpmSampleGet(into nvmlsrc.GPMSample) nvml.Return {
	return sampleOf(m.entity, "nvmlGpmSampleGet", wholeEntity, into, func(s nvmlsrc.GPMSample) nvml.Return { return m.real.GpmSampleGet(s) })
}

func (d *device) GpmMigSampleGet(instance int, into nvmlsrc.GPMSample) nvml.Return {
	question := fmt.Sprintf("nvmlGpmMigSampleGet(%d)", instance)
	return sampleOf(d.entity, question, uint64(instance), into, func(s nvmlsrc.GPMSample) nvml.Return {
		return d.real.GpmMigSampleGet(instance, s)
	})
}

func (d *device) GpmQueryDeviceSupport() (bool, nvml.Return) {
	return of(d, "nvmlGpmQueryDeviceSupport", nvmlsrc.Device.GpmQueryDeviceSupport)
}

// GetProcessUtilization is recorded without the time since which samples are asked for: a replay asks for those of the
// same polls.
func (d *device) GetProcessUtilization(lastSeen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return of(d, "nvmlDeviceGetProcessUtilization", func(h nvmlsrc.Device) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		return h.GetProcessUtilization(lastSeen)
	})
}
