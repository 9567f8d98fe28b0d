package contract

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// profilingChecks are those of GPM, and of what processes use.
func profilingChecks() []checkOf {
	return []checkOf{
		{name: "Device.GpmQueryDeviceSupport", check: each(checkGPMSupport)},
		{
			name: "Library.GpmMetricsGet",
			methods: []string{
				"Library.GpmSampleAlloc", "GPMSample.Free", "Device.GpmSampleGet", "Device.GpmMigSampleGet",
				"MIGDevice.GpmSampleGet",
			},
			check: checkWindows,
		},
		{name: "Device.GetProcessUtilization", check: each(checkProcessUse)},
		{
			name:    "Device.GetDecoderUtilization",
			methods: []string{"Device.GetEncoderUtilization", "Device.GetJpgUtilization", "Device.GetOfaUtilization"},
			check:   each(checkMedia),
		},
	}
}

// supports reports whether a GPU has GPM.
func (s *subject) supports(d nvmlsource.Device) bool {
	supported, ret := d.GpmQueryDeviceSupport()
	return s.has("Device.GpmQueryDeviceSupport", ret) && supported
}

// checkGPMSupport: nothing before Hopper has it (nvml.h).
func checkGPMSupport(s *subject, d nvmlsource.Device) {
	major, _, ret := d.GetCudaComputeCapability()
	s.want(!s.supports(d) || ret != nvml.SUCCESS || major >= 9, "GPM with compute capability %d", major)
}

// profiled is an entity with the function that samples it.
type profiled struct {
	function string
	take     func(nvmlsource.GPMSample) nvml.Return
	samples  []nvmlsource.GPMSample
}

// profiles are the GPUs that have GPM, their GPU instances and compute instances.
func (s *subject) profiles() []*profiled {
	var list []*profiled

	for _, d := range s.devices() {
		if !s.supports(d) {
			continue
		}

		list = append(list, &profiled{function: "Device.GpmSampleGet", take: d.GpmSampleGet})
		for _, m := range s.migDevices(d) {
			list = append(list, &profiled{function: "MIGDevice.GpmSampleGet", take: m.GpmSampleGet})
			if id, ret := m.GetGpuInstanceId(); s.must("MIGDevice.GetGpuInstanceId", ret) {
				list = append(list,
					&profiled{function: "Device.GpmMigSampleGet", take: func(sample nvmlsource.GPMSample) nvml.Return {
						return d.GpmMigSampleGet(id, sample)
					}})
			}
		}
	}

	return list
}

// checkWindows takes two samples of everything, further apart than nvml.h asks for, and computes
// metrics of the windows.
func checkWindows(s *subject) {
	all := s.profiles()
	if len(all) == 0 {
		return
	}

	var made []nvmlsource.GPMSample
	defer func() {
		for _, sample := range made {
			s.must("GPMSample.Free", sample.Free())
		}
	}()

	for range 2 {
		for _, p := range all {
			if sample, ret := s.lib.GpmSampleAlloc(); s.must("Library.GpmSampleAlloc", ret) {
				made = append(made, sample)
				if s.has(p.function, p.take(sample)) {
					p.samples = append(p.samples, sample)
				}
			}
		}

		start := s.now()
		if s.pass(); s.now().Sub(start) < 200*time.Millisecond {
			time.Sleep(200 * time.Millisecond) // a real driver, whose clock is not ours
		}
	}

	for _, p := range all {
		if len(p.samples) == 2 {
			s.checkMetrics(p.samples[0], p.samples[1])
		}
	}
}

func (s *subject) checkMetrics(before, after nvmlsource.GPMSample) {
	metrics := []nvmlsource.GPMMetric{
		{ID: uint32(nvml.GPM_METRIC_SM_UTIL)}, {ID: uint32(nvml.GPM_METRIC_SM_OCCUPANCY)},
		{ID: uint32(nvml.GPM_METRIC_NVDEC_0_UTIL)},
		{ID: uint32(nvml.GPM_METRIC_NVENC_0_UTIL)}, {ID: uint32(nvml.GPM_METRIC_PCIE_RX_PER_SEC)},
	}
	if !s.must("Library.GpmMetricsGet", s.lib.GpmMetricsGet(before, after, metrics)) {
		return
	}

	for _, m := range metrics[:4] { // above 100 % has been seen, and NaN
		s.want(m.Return != nvml.SUCCESS || !(m.Value < 0 || m.Value > 1000), "metric %d is %g %%", m.ID, m.Value)
	}

	if m := metrics[4]; m.Return == nvml.SUCCESS {
		s.want(!(m.Value < 0 || m.Value > 1<<20), "metric %d is %g MiB/s", m.ID, m.Value)
	}
}

// checkProcessUse: if nothing did anything the driver says NOT_FOUND, or lists nothing.
func checkProcessUse(s *subject, d nvmlsource.Device) {
	samples, ret := d.GetProcessUtilization(0)
	if ret == nvml.ERROR_NOT_FOUND {
		return
	}

	if s.has("Device.GetProcessUtilization", ret) {
		for _, p := range samples {
			s.want(p.Pid > 0 && p.TimeStamp > 0, "sample %+v", p)
		}

		s.want(!migOn(d), "use by process of a GPU with MIG")
	}
}

// checkMedia: the driver reports nothing of media engines while MIG is on (nvml.h).
func checkMedia(s *subject, d nvmlsource.Device) {
	for function, read := range map[string]func() (uint32, nvml.Return){
		"Device.GetEncoderUtilization": d.GetEncoderUtilization,
		"Device.GetDecoderUtilization": d.GetDecoderUtilization,
		"Device.GetJpgUtilization":     d.GetJpgUtilization,
		"Device.GetOfaUtilization":     d.GetOfaUtilization,
	} {
		if percent, ret := read(); s.has(function, ret) {
			s.want(percent <= 100, "%s: %d %%", function, percent)
			s.want(!migOn(d), "%s of a GPU with MIG", function)
		}
	}
}

// lyingProfiler says of every GPU that it has GPM, and of every sample that it was taken; its
// metrics are below nothing.
type lyingProfiler struct {
	nvmlsource.Library
	lie string
}

func (l lyingProfiler) DeviceGetHandleByIndex(index int) (nvmlsource.Device, nvml.Return) {
	d, ret := l.Library.DeviceGetHandleByIndex(index)
	return lyingProfiled{d, l.lie}, ret
}

func (l lyingProfiler) GpmMetricsGet(before, after nvmlsource.GPMSample, metrics []nvmlsource.GPMMetric) nvml.Return {
	ret := l.Library.GpmMetricsGet(before, after, metrics)
	if l.lie == "metrics" {
		metrics[0].Value = -1
	}

	return ret
}

type lyingProfiled struct {
	nvmlsource.Device
	lie string
}

func (l lyingProfiled) GpmQueryDeviceSupport() (bool, nvml.Return) {
	return lying(l.lie == "support", true, l.Device.GpmQueryDeviceSupport)
}

func (l lyingProfiled) GpmMigSampleGet(id int, sample nvmlsource.GPMSample) nvml.Return {
	if l.lie == "no instance" {
		return nvml.ERROR_NOT_FOUND
	}

	return l.Device.GpmMigSampleGet(id, sample)
}

func (l lyingProfiled) GetOfaUtilization() (uint32, nvml.Return) {
	return lying(l.lie == "media", 101, l.Device.GetOfaUtilization)
}

func (l lyingProfiled) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return lying(l.lie == "processes", []nvml.ProcessUtilizationSample{{}},
		func() ([]nvml.ProcessUtilizationSample, nvml.Return) {
			return l.Device.GetProcessUtilization(0)
		})
}

func TestContractFindsLiesOfProfiling(t *testing.T) {
	for lie, c := range map[string]struct{ check, scenario string }{
		"support":     {"Device.GpmQueryDeviceSupport", "dgx-a100-mixed"},
		"metrics":     {"Library.GpmMetricsGet", "gke-h100-3g"},
		"no instance": {"Library.GpmMetricsGet", "gke-h100-3g"},
		"processes":   {"Device.GetProcessUtilization", "gke-h100-3g"},
		"media":       {"Device.GetDecoderUtilization", "gke-h100-3g"},
	} {
		s := simulated(t, scenarios+c.scenario+".yaml", filepath.Join(t.TempDir(), "state"))
		s.lib = lyingProfiler{s.lib, lie}
		s.hold(slices.DeleteFunc(contractTable(), func(o checkOf) bool { return o.name != c.check }))

		if len(s.broken) == 0 {
			t.Errorf("%s: %s does not find it out", lie, c.check)
		}
	}
}
