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

// Media has a number for each kind of media engine. For a device the number says how busy its
// engines of the kind are: the mean over them, 0-1. For a task it says how many engines it wants.
type Media [mediaEngines]float64

// MediaUtilization is the utilization in percent that the driver reports.
type MediaUtilization [mediaEngines]uint32

// mediaCounts returns how many media engines of each kind there are.
func mediaCounts(e gpu.Engines) [mediaEngines]int {
	return [...]int{e.Encoder, e.Decoder, e.JPEG, e.OFA}
}

// killWithoutMedia kills the processes that want a media engine of a kind that their device does not
// have.
func (n *Node) killWithoutMedia(g *simGPU) {
	for _, t := range slices.Clone(g.tasks) {
		if t.workload == nil || len(t.proc.tasks) == 0 || t.media(n) == (Media{}) {
			continue
		}

		available := g.engines()
		deviceName := g.mig.Name

		if i := t.on.instance; i != nil {
			available = i.Profile.Engines.Or(gpu.Engines{})
			deviceName = i.Profile.Name
		}

		for kind, count := range mediaCounts(available) {
			if count == 0 && t.media(n)[kind] > 0 {
				n.kill(t.proc, fmt.Sprintf("%s has no %s", deviceName, MediaEngine(kind)))
				break
			}
		}
	}
}

// media returns how many media engines of each kind a task wants to keep busy now.
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

// useMedia sets how busy the media engines of a GPU and of its GPU instances are. A task keeps as
// many engines busy as it wants, times its speed. Tasks that want more than there are keep all of
// them busy.
func (n *Node) useMedia(g *simGPU) {
	wanted := make(map[*Instance]Media) // the sum over the tasks; by nil for a GPU without MIG

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

// busyMedia returns how busy the engines of each kind are, if tasks want so many of them and so many
// exist.
func busyMedia(wanted Media, counts [mediaEngines]int) Media {
	var busy Media

	for kind, count := range counts {
		if count > 0 {
			busy[kind] = min(wanted[kind]/float64(count), 1)
		}
	}

	return busy
}

// engines returns the GPU's engines: those of an instance that has all its slices. It returns none
// if they are unknown.
func (g *simGPU) engines() gpu.Engines {
	for _, f := range g.mig.Profiles {
		if all, known := f.Engines.Get(); known && f.ComputeSlices == g.mig.ComputeSlices &&
			f.MemorySlices == g.mig.AxisUnits {
			return all
		}
	}

	return gpu.Engines{}
}

// mediaMetric returns the kind of media engine that a GPM metric belongs to, and which engine of
// that kind it is (nvml.h, nvmlGpmMetricId_t). ok is false for other metrics.
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

// percents returns the ratios in whole percent.
func (m Media) percents() MediaUtilization {
	var u MediaUtilization
	for kind, ratio := range m {
		u[kind] = percent(ratio)
	}

	return u
}
