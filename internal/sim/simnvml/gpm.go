package simnvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// gpmSample holds the counters of one entity.
type gpmSample struct {
	counters sim.Counters
	filled   bool
}

func (s *gpmSample) Free() nvml.Return { return nvml.SUCCESS }

func (l *library) GpmSampleAlloc() (nvmlsource.GPMSample, nvml.Return) {
	if err := l.node.Driver(); err != nil {
		return nil, returnOf(err)
	}

	return &gpmSample{}, nvml.SUCCESS
}

// fillSample stores counters that were read, or failed to be, in a sample. GPUs before Hopper have no
// GPM.
func (d *gpuHandle) fillSample(
	into nvmlsource.GPMSample,
	counters sim.Counters,
	err error,
) nvml.Return {
	s, ok := into.(*gpmSample)
	switch {
	case err != nil:
		return returnOf(err)
	case !ok:
		return nvml.ERROR_INVALID_ARGUMENT
	case !d.node.HasGPM(d.index):
		return nvml.ERROR_NOT_SUPPORTED
	}

	*s = gpmSample{counters: counters, filled: true}

	return nvml.SUCCESS
}

func (d *gpuHandle) GpmSampleGet(s nvmlsource.GPMSample) nvml.Return {
	counters, err := d.node.MonitorGPU(d.index)
	return d.fillSample(s, counters, err)
}

func (d *gpuHandle) GpmMigSampleGet(gpuInstance int, s nvmlsource.GPMSample) nvml.Return {
	counters, err := d.node.InstanceCounters(d.index, gpu.InstanceID(gpuInstance))
	return d.fillSample(s, counters, err)
}

func (m *migDevice) GpmSampleGet(s nvmlsource.GPMSample) nvml.Return {
	counters, err := m.gpu.node.ComputeCounters(m.gpu.index, m.instance, m.compute)
	return m.gpu.fillSample(s, counters, err)
}

func (d *gpuHandle) GpmQueryDeviceSupport() (bool, nvml.Return) {
	return readFact(d, gpu.ReadingActivity, func(*sim.GPUState) bool { return d.node.HasGPM(d.index) })
}

// GpmMetricsGet computes metrics over the time between two samples, which must be of one entity.
func (l *library) GpmMetricsGet(
	before, after nvmlsource.GPMSample,
	metrics []nvmlsource.GPMMetric,
) nvml.Return {
	from, isOurs := before.(*gpmSample)

	to, isOursToo := after.(*gpmSample)
	if !isOurs || !isOursToo || !from.filled || !to.filled || from.counters.Of != to.counters.Of {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	if err := l.node.Driver(); err != nil {
		return returnOf(err)
	}

	for i := range metrics {
		value, has := sim.GPM(from.counters, to.counters, metrics[i].ID)
		metrics[i].Value = value
		metrics[i].Return = nvml.SUCCESS

		if !has {
			metrics[i].Value = 0
			metrics[i].Return = nvml.ERROR_NOT_SUPPORTED
		}
	}

	return nvml.SUCCESS
}

func (d *gpuHandle) GetEncoderUtilization() (uint32, nvml.Return) { return d.media(sim.MediaEncoder) }
func (d *gpuHandle) GetDecoderUtilization() (uint32, nvml.Return) { return d.media(sim.MediaDecoder) }
func (d *gpuHandle) GetJpgUtilization() (uint32, nvml.Return)     { return d.media(sim.MediaJPEG) }
func (d *gpuHandle) GetOfaUtilization() (uint32, nvml.Return)     { return d.media(sim.MediaOFA) }

// media returns the utilization of a kind of engine. The driver does not report it while MIG is on
// (nvml.h).
func (d *gpuHandle) media(kind sim.MediaEngine) (uint32, nvml.Return) {
	all, ret := readOptional(
		d,
		gpu.ReadingMedia,
		func(s *sim.GPUState) gpu.Opt[sim.MediaUtilization] { return s.Media },
	)

	return all[kind], ret
}

// GetProcessUtilization returns the present SM use of each process. It is not supported with MIG on.
func (d *gpuHandle) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return read(
		d,
		gpu.ReadingProcesses,
		func(s *sim.GPUState) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			if s.MIGEnabled {
				return nil, nvml.ERROR_NOT_SUPPORTED
			}

			if len(s.Processes) == 0 {
				return nil, nvml.ERROR_NOT_FOUND
			}

			list := make([]nvml.ProcessUtilizationSample, 0, len(s.Processes))
			for _, p := range s.Processes {
				list = append(list, nvml.ProcessUtilizationSample{
					Pid:       p.PID,
					TimeStamp: uint64(s.Time.UnixMicro()),
					SmUtil:    uint32(100*p.SMShare + 0.5),
				})
			}

			return list, nvml.SUCCESS
		},
	)
}
