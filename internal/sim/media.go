package sim

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// MediaEngine is a kind of media engine.
type MediaEngine int

// The kinds of media engines.
const (
	MediaEncoder MediaEngine = iota
	MediaDecoder
	MediaJPEG
	MediaOFA
	mediaEngines
)

// Media has a number for each kind of media engine: of a device how busy its engines are, 0-1, the
// mean over them.
type Media [mediaEngines]float64

// MediaUtilization is the driver's own, in percent.
type MediaUtilization [mediaEngines]uint32

// mediaCounts are the media engines of a device.
func mediaCounts(e gpu.Engines) [mediaEngines]int {
	return [...]int{e.Encoder, e.Decoder, e.JPEG, e.OFA}
}

// needMedia kills the tasks that want a media engine that their device does not have.
func (n *Node) needMedia(g *simGPU) {
	for _, t := range slices.Clone(g.tasks) {
		if t.workload == nil || len(t.proc.tasks) == 0 || t.media(n) == (Media{}) {
			continue
		}

		have := g.engines()
		device := g.mig.Name

		if i := t.on.instance; i != nil {
			have = i.Profile.Engines.Or(gpu.Engines{})
			device = i.Profile.Name
		}

		for kind, count := range mediaCounts(have) {
			if count == 0 && t.media(n)[kind] > 0 {
				n.kill(t.proc, fmt.Sprintf("%s has no %s", device, MediaEngine(kind)))
				break
			}
		}
	}
}

// media returns the media engines that a task wants now.
func (t *task) media(n *Node) Media {
	var wanted Media
	for kind := range wanted {
		wanted[kind] = t.now(n, t.workload.Media[kind])
	}

	return wanted
}

// String names the kind of engine.
func (e MediaEngine) String() string {
	return [...]string{"encoder", "decoder", "JPEG engine", "optical flow accelerator"}[e]
}

// useMedia adds up the media engines that the tasks of each GPU instance, or of a GPU without MIG,
// keep busy: what they want, as far as they get on with their work. Tasks that want more than there
// are keep all of them busy.
func (n *Node) useMedia(g *simGPU) {
	wanted := make(map[*Instance]Media)

	for _, t := range g.tasks {
		if t.workload == nil {
			continue
		}

		sum := wanted[t.on.instance]
		for kind, demand := range t.media(n) {
			sum[kind] += demand * t.speed
		}

		wanted[t.on.instance] = sum
	}

	all := mediaCounts(g.engines())
	if !g.migOn {
		g.sample.activity.Media = busyMedia(wanted[nil], all)
		return
	}

	var total Media

	for _, i := range g.instances {
		own := mediaCounts(i.Profile.Engines.Or(gpu.Engines{}))
		i.Activity.Media = busyMedia(wanted[i], own)

		for kind, count := range own {
			total[kind] += i.Activity.Media[kind] * float64(count)
		}
	}

	g.sample.activity.Media = busyMedia(total, all)
}

// busyMedia is how busy engines are that are wanted for so much of the time, by how many there are.
func busyMedia(wanted Media, counts [mediaEngines]int) Media {
	var busy Media

	for kind, count := range counts {
		if count > 0 {
			busy[kind] = min(wanted[kind]/float64(count), 1)
		}
	}

	return busy
}

// engines are those of an instance of all the GPU's slices; none if they are unknown.
func (g *simGPU) engines() gpu.Engines {
	for _, f := range g.mig.Profiles {
		if all, known := f.Engines.Get(); known && f.ComputeSlices == g.mig.ComputeSlices &&
			f.MemorySlices == g.mig.AxisUnits {
			return all
		}
	}

	return gpu.Engines{}
}

// mediaMetric is what a metric of GPM is of, and which engine of the kind, if it is one of a media
// engine (nvml.h, nvmlGpmMetricId_t).
func mediaMetric(id uint32) (kind MediaEngine, engine int, ok bool) {
	for _, r := range [...]struct {
		kind        MediaEngine
		first, last uint32
	}{{MediaDecoder, 30, 37}, {MediaJPEG, 40, 47}, {MediaOFA, 50, 51}, {MediaEncoder, 166, 169}} {
		if id >= r.first && id <= r.last {
			return r.kind, int(id - r.first), true
		}
	}

	return 0, 0, false
}

// percents are a Media in whole percent.
func (m Media) percents() MediaUtilization {
	var u MediaUtilization
	for kind, ratio := range m {
		u[kind] = percent(ratio)
	}

	return u
}
