package capture

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// The contents of a sample are opaque. So the samples of a replay are empty, and the metrics of windows are recorded,
// with the entity of the window's last sample. As for fields, the call and each metric are recorded separately.

// gpmSample is a sample, with the entity that it was last taken of. It belongs to one reading at a time.
type gpmSample struct {
	driver nvmlsource.GPMSample // nil in a replay
	of     entity
	// the GPU instance of the entity, or the entity as a whole, as in a file; empty before a sample was taken
	window string
}

func (s *gpmSample) Free() nvml.Return {
	if s.driver == nil {
		return nvml.SUCCESS
	}

	return s.driver.Free()
}

func (l *library) GpmSampleAlloc() (nvmlsource.GPMSample, nvml.Return) {
	s := &gpmSample{}

	ret := queryCode(l.entity, "nvmlGpmSampleAlloc", func() (ret nvml.Return) {
		s.driver, ret = l.driver.GpmSampleAlloc()
		return ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	return s, ret
}

func (l *library) GpmMetricsGet(
	before, after nvmlsource.GPMSample,
	metrics []nvmlsource.GPMMetric,
) nvml.Return {
	from, ok := before.(*gpmSample)

	to, ok2 := after.(*gpmSample)
	if !ok || !ok2 || from.window == "" || to.window == "" {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	const function = "nvmlGpmMetricsGet"

	ret := queryCode(to.of, callOf(function, to.window), func() nvml.Return {
		return l.driver.GpmMetricsGet(from.driver, to.driver, metrics)
	})
	if ret != nvml.SUCCESS {
		return ret
	}

	for i := range metrics {
		m := &metrics[i]
		call := callOf(function, to.window, metricNames.name(uint64(m.ID)))
		m.Value, m.Return = query(
			to.of,
			call,
			func() (float64, nvml.Return) { return m.Value, m.Return },
		)
	}

	return nvml.SUCCESS
}

// sampleOf takes a sample of an entity, or of a GPU instance of it.
func sampleOf(e entity, call string, instance uint64, into nvmlsource.GPMSample,
	take func(nvmlsource.GPMSample) nvml.Return) nvml.Return {
	s, ok := into.(*gpmSample)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	ret := queryCode(e, call, func() nvml.Return { return take(s.driver) })
	if ret == nvml.SUCCESS {
		s.of = e
		s.window = windowNames.name(instance)
	}

	return ret
}

func (d *device) GpmSampleGet(into nvmlsource.GPMSample) nvml.Return {
	return sampleOf(d.entity, "nvmlGpmSampleGet", nvmlsource.NoInstance, into,
		func(s nvmlsource.GPMSample) nvml.Return { return d.driver.GpmSampleGet(s) })
}

func (m migDevice) GpmSampleGet(into nvmlsource.GPMSample) nvml.Return {
	return sampleOf(m.entity, "nvmlGpmSampleGet", nvmlsource.NoInstance, into,
		func(s nvmlsource.GPMSample) nvml.Return { return m.driver.GpmSampleGet(s) })
}

func (d *device) GpmMigSampleGet(instance int, into nvmlsource.GPMSample) nvml.Return {
	call := callOf("nvmlGpmMigSampleGet", numbers.name(uint64(instance)))

	return sampleOf(
		d.entity,
		call,
		uint64(instance),
		into,
		func(s nvmlsource.GPMSample) nvml.Return {
			return d.driver.GpmMigSampleGet(instance, s)
		},
	)
}
