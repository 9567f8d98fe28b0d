package collector

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func mediaCases() []groupCase {
	return []groupCase{{groupMedia, func(g *gpu.GPU) {
		g.Readings.Media = gpu.Media{Encoder: gpu.Some(0.0), Decoder: gpu.Some(0.25), JPEG: gpu.Some(0.5), OFA: gpu.Some(1.0)}
		g.Instances[0].Media = gpu.Media{Decoder: gpu.Some(0.75)}
	}, `# TYPE nvidia_gpu_media_activity_ratio gauge
		nvidia_gpu_media_activity_ratio{engine="decoder",gpu="2",uuid="GPU-2"} 0.25
		nvidia_gpu_media_activity_ratio{engine="encoder",gpu="2",uuid="GPU-2"} 0
		nvidia_gpu_media_activity_ratio{engine="jpeg",gpu="2",uuid="GPU-2"} 0.5
		nvidia_gpu_media_activity_ratio{engine="ofa",gpu="2",uuid="GPU-2"} 1
		# TYPE nvidia_mig_gpu_instance_media_activity_ratio gauge
		nvidia_mig_gpu_instance_media_activity_ratio{engine="decoder",gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 0.75`}}
}

// Media engines are read only where something of them is served.
func TestServesMedia(t *testing.T) {
	for _, c := range []struct {
		about string
		opts  Options
		want  bool
	}{
		{"by default", Options{}, false},
		{"their collector", Options{Disabled: map[string]bool{groupMedia: false}}, true},
		{"their collector under names that it does not serve",
			Options{Names: NamesDCGM, Counters: newCounters("DCGM_FI_DEV_GPU_TEMP"),
				Disabled: map[string]bool{groupMedia: false}}, false},
		{"dcgm-exporter's own list", Options{Names: NamesDCGM}, true},
		{"both names", Options{Names: NamesBoth}, true},
		{"a counter", Options{Names: NamesDCGM, Counters: newCounters("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_DEC_UTIL")}, true},
		{"a counter under its new name", Options{Names: NamesDCGM, Counters: newCounters("DCGM_FI_DEV_ENC_UTIL_RATIO")},
			true},
		{"other counters", Options{Names: NamesDCGM, Counters: newCounters("DCGM_FI_DEV_FAN_SPEED", "DCGM_FI_DEV_PSTATE")},
			false},
	} {
		if got := mustNew(t, c.opts).ServesMedia(); got != c.want {
			t.Errorf("%s: %t, want %t", c.about, got, c.want)
		}
	}
}
