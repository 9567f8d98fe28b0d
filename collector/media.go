package collector

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// groupMedia is the collector of media engines, which are read only if it is switched on.
const groupMedia = "media"

func newMedia(c *catalog) collectFunc {
	const help = "Part of the time in which the media engines of a kind (encoder, decoder, jpeg, or " +
		"ofa for the optical flow accelerator) were busy, "
	gpuFamily := c.newFamily(
		"nvidia_gpu_media_activity_ratio",
		help+"by the driver's own utilization of the GPU, 0-1.",
		"Absent while MIG is on: the driver reports none. See those of the GPU instances.",
		"engine",
	)
	instance := c.newFamily(
		"nvidia_mig_gpu_instance_media_activity_ratio",
		help+"the mean over the GPU instance's engines of the kind, 0-1.",
		"Relative to the GPU instance: 1 is all of its own engines of the kind. By GPM: absent before "+
			"Hopper, and for kinds that its profile does not have. Its compute instances share the engines.",
		"engine",
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			writeMedia(w, gpuFamily, g.use, &g.Readings.Media)
		}

		for gi, dev := range v.instances() {
			writeMedia(w, instance, dev.use, &gi.Media)
		}
	}
}

func writeMedia(w *metricWriter, f *family, l labels, m *gpu.Media) {
	for _, one := range [...]struct {
		engine string
		ratio  gpu.Opt[float64]
	}{{"encoder", m.Encoder}, {"decoder", m.Decoder}, {"jpeg", m.JPEG}, {"ofa", m.OFA}} {
		if one.ratio.Present() {
			addOpt(w, f, l.extend("engine", one.engine), one.ratio)
		}
	}
}

// Serves reports whether a collector is switched on. It is safe for concurrent use.
func (c *Collector) Serves(name string) bool {
	return slices.ContainsFunc(c.groups, func(g enabledGroup) bool { return g.name == name })
}

// ServesMedia reports whether a collector or a counter under dcgm-exporter's names serves the media
// engines. It is safe for concurrent use.
func (c *Collector) ServesMedia() bool {
	return c.Serves(groupMedia) || c.dcgm != nil && c.dcgm.servesMedia()
}
