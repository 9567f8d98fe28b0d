package capture

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

func (l *library) GpmSampleAlloc() (nvmlsrc.GPMSample, nvml.Return) {
	return nil, nvml.ERROR_FUNCTION_NOT_FOUND
}

func (l *library) GpmMetricsGet(_, _ nvmlsrc.GPMSample, _ []nvmlsrc.GPMMetric) nvml.Return {
	return nvml.ERROR_FUNCTION_NOT_FOUND
}

func (d *device) GpmSampleGet(nvmlsrc.GPMSample) nvml.Return { return nvml.ERROR_FUNCTION_NOT_FOUND }

func (d *device) GpmQueryDeviceSupport() (bool, nvml.Return) {
	return false, nvml.ERROR_FUNCTION_NOT_FOUND
}

func (d *device) GpmMigSampleGet(int, nvmlsrc.GPMSample) nvml.Return {
	return nvml.ERROR_FUNCTION_NOT_FOUND
}

func (d *device) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return nil, nvml.ERROR_FUNCTION_NOT_FOUND
}

func (m migDevice) GpmSampleGet(nvmlsrc.GPMSample) nvml.Return {
	return nvml.ERROR_FUNCTION_NOT_FOUND
}
