package nvmlsource

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A driver that leaves the counts of engines empty does not report them: nothing may be concluded
// from zeros.
func TestEnginesThatTheDriverDoesNotReport(t *testing.T) {
	if p := newProfileEntry(0, nvml.GpuInstanceProfileInfo_v3{Id: 19, SliceCount: 1}); p.Engines.Present() {
		t.Errorf("%+v", p.Engines)
	}

	info := nvml.GpuInstanceProfileInfo_v3{Id: 67, CopyEngineCount: 1}
	if got := newProfileEntry(13, info).Engines; got != gpu.Some(gpu.Engines{Copy: 1}) {
		t.Errorf("%+v: 1g.24gb-me has a copy engine alone", got)
	}

	info = nvml.GpuInstanceProfileInfo_v3{CopyEngineCount: 1, DecoderCount: 2, EncoderCount: 3, JpegCount: 4, OfaCount: 5}
	if got := newProfileEntry(0, info).Engines; got != gpu.Some(gpu.Engines{Copy: 1, Decoder: 2, Encoder: 3, JPEG: 4,
		OFA: 5}) {
		t.Errorf("%+v", got)
	}
}
