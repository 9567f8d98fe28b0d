package nvmlface

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// gpmSample holds the counters of one entity.
type gpmSample struct {
	counters sim.Counters
	filled   bool
	kind     gpmKind
}

// gpmKind tells which metrics an entity has.
type gpmKind int

const (
	ofBoard gpmKind = iota
	ofInstance
	ofCompute
)

func (s *gpmSample) Free() nvml.Return { return nvml.SUCCESS }

func (l *library) GpmSampleAlloc() (nvmlsrc.GPMSample, nvml.Return) {
	if err := l.node.Driver(); err != nil {
		return nil, returnOf(err)
	}
	return &gpmSample{}, nvml.SUCCESS
}

// fill takes counters into a sample. Nothing before Hopper has GPM.
func (d *device) fill(into nvmlsrc.GPMSample, kind gpmKind, counters sim.Counters, err error) nvml.Return {
	s, ok := into.(*gpmSample)
	switch {
	case err != nil:
		return returnOf(err)
	case !ok:
		return nvml.ERROR_INVALID_ARGUMENT
	case !d.node.HasGPM(d.index):
		return nvml.ERROR_NOT_SUPPORTED
	}
	*s = gpmSample{counters: counters, filled: true, kind: kind}
	return nvml.SUCCESS
}

func (d *device) GpmSampleGet(s nvmlsrc.GPMSample) nvml.Return {
	counters, err := d.node.BoardCounters(d.index)
	return d.fill(s, ofBoard, counters, err)
}

func (d *device) GpmMigSampleGet(gpuInstance int, s nvmlsrc.GPMSample) nvml.Return {
	counters, err := d.node.InstanceCounters(d.index, gpu.InstanceID(gpuInstance))
	return d.fill(s, ofInstance, counters, err)
}

func (m *migDevice) GpmSampleGet(s nvmlsrc.GPMSample) nvml.Return {
	counters, err := m.device.node.ComputeCounters(m.device.index, m.instance, m.compute)
	return m.device.fill(s, ofCompute, counters, err)
}

func (d *device) GpmQueryDeviceSupport() (bool, nvml.Return) {
	return fact(d, gpu.ReadingActivity, func(*sim.State) bool { return d.node.HasGPM(d.index) })
}

// GpmMetricsGet divides by the time between the samples. Of two entities it makes numbers all the same, as the driver
// does (unverified).
func (l *library) GpmMetricsGet(before, after nvmlsrc.GPMSample, metrics []nvmlsrc.GPMMetric) nvml.Return {
	from, ok := before.(*gpmSample)
	to, ok2 := after.(*gpmSample)
	if !ok || !ok2 || !from.filled || !to.filled {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if err := l.node.Driver(); err != nil {
		return returnOf(err)
	}
	seconds := to.counters.Time.Sub(from.counters.Time).Seconds()
	for i := range metrics {
		value, has := metricOf(from, to, metrics[i].ID)
		metrics[i].Value, metrics[i].Return = value/seconds, nvml.SUCCESS
		if !has {
			metrics[i].Value, metrics[i].Return = 0, nvml.ERROR_NOT_SUPPORTED
		}
	}
	return nvml.SUCCESS
}

// metricOf is a metric times the seconds of the window: percent, MiB.
func metricOf(from, to *gpmSample, id uint32) (float64, bool) {
	const mebi = 1 << 20
	a, b := &from.counters.Activity, &to.counters.Activity
	switch nvml.GpmMetricId(id) {
	case nvml.GPM_METRIC_GRAPHICS_UTIL:
		return 100 * (b.Graphics - a.Graphics), true
	case nvml.GPM_METRIC_SM_UTIL:
		return 100 * (b.SM - a.SM), true
	case nvml.GPM_METRIC_SM_OCCUPANCY:
		return 100 * (b.Occupancy - a.Occupancy), true
	case nvml.GPM_METRIC_ANY_TENSOR_UTIL:
		return 100 * (b.Tensor - a.Tensor), true
	case nvml.GPM_METRIC_FP64_UTIL:
		return 100 * (b.FP64 - a.FP64), true
	case nvml.GPM_METRIC_FP32_UTIL:
		return 100 * (b.FP32 - a.FP32), true
	case nvml.GPM_METRIC_FP16_UTIL:
		return 100 * (b.FP16 - a.FP16), true
	case nvml.GPM_METRIC_DRAM_BW_UTIL:
		return 100 * (b.DRAM - a.DRAM), to.kind != ofCompute
	case nvml.GPM_METRIC_PCIE_RX_PER_SEC:
		return (to.counters.PCIeReceived - from.counters.PCIeReceived) / mebi, to.kind == ofBoard
	case nvml.GPM_METRIC_PCIE_TX_PER_SEC:
		return (to.counters.PCIeTransmitted - from.counters.PCIeTransmitted) / mebi, to.kind == ofBoard
	case nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC:
		return (to.counters.NVLinkReceived - from.counters.NVLinkReceived) / mebi, to.kind == ofBoard
	case nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC:
		return (to.counters.NVLinkTransmitted - from.counters.NVLinkTransmitted) / mebi, to.kind == ofBoard
	}
	return 0, false
}

// GetProcessUtilization tells the SM use of each process of a GPU without MIG, as of now.
func (d *device) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return read(d, gpu.ReadingProcesses, func(s *sim.State) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		if s.MIGEnabled {
			return nil, nvml.ERROR_NOT_SUPPORTED
		}
		list := []nvml.ProcessUtilizationSample{}
		for _, p := range s.Processes {
			list = append(list, nvml.ProcessUtilizationSample{
				Pid: p.PID, TimeStamp: uint64(s.Time.UnixMicro()), SmUtil: uint32(100*p.SMShare + 0.5),
			})
		}
		return list, nvml.SUCCESS
	})
}
