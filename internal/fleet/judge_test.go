package fleet

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// analysisOf returns the analysis of one cluster of which it is known what holds GPUs.
func analysisOf(o Options) *analysis {
	return &analysis{options: o, end: o.End, models: models{}, holdersKnown: map[string]bool{"a": true}}
}

// narrow returns an H100 that was held for the window and ran narrow kernels for a part of the
// time.
func narrow(o Options) *fleetGPU {
	h := newHistory(o.End.Add(-o.Window), o.Window)
	for i := range h.busy {
		h.busy[i], h.sms[i], h.bandwidth[i], h.held[i] = 0.2, 0.016, 0.01, true
	}

	for i := range h.memory {
		h.memory[i] = 6 << 30
	}

	h.total, h.nvlink, h.namespaces["vision"] = 81559<<20, 0, len(h.held)
	h.nvlinkRead.complete = true
	h.memoryRead.complete = true
	h.arrived = true
	h.stayed = true
	d := native()

	return &fleetGPU{uuid: "GPU-1", place: place{cluster: "a", node: "n"}, name: "NVIDIA H100 80GB HBM3", modelCount: 1, dialect: &d,
		history: h}
}

// judgment is a change of a narrow GPU's history and what follows: action, reason, profile.
type judgment struct {
	change func(*fleetGPU, *history)
	want   string
}

// hours calls f for the steps of some hours.
func hours(from, to int, f func(at int)) {
	for at := from * 12; at < to*12; at++ {
		f(at)
	}
}

// lose drops what we know of some hours.
func lose(h *history, from, to int) {
	nan := float32(math.NaN())
	hours(from, to, func(at int) { h.busy[at], h.sms[at], h.bandwidth[at], h.held[at] = nan, nan, nan, false })
}

// judgmentsOfHistories are about what we know of a GPU.
func judgmentsOfHistories() map[string]judgment {
	return map[string]judgment{
		"as it is":        {func(*fleetGPU, *history) {}, "slice  1g.10gb"},
		"MIG mode":        {func(_ *fleetGPU, h *history) { h.mig = true }, "keep mig-mode "},
		"another model":   {func(d *fleetGPU, _ *history) { d.modelCount = 2 }, "keep model-changed "},
		"no model":        {func(d *fleetGPU, _ *history) { d.name = "" }, "keep model-unknown "},
		"a V100":          {func(d *fleetGPU, _ *history) { d.name = "Tesla V100-SXM2-32GB" }, "keep mig-not-supported "},
		"no total":        {func(_ *fleetGPU, h *history) { h.total = 0 }, "slice  1g.10gb"},
		"another size":    {func(_ *fleetGPU, h *history) { h.total = 64 << 30 }, "keep model-unknown "},
		"profiles unsaid": {func(d *fleetGPU, _ *history) { d.name = "NVIDIA B300" }, "keep model-unknown "},

		"held since before the window": {func(_ *fleetGPU, h *history) { h.arrived, h.stayed = false, false },
			"keep start-unseen "},
		"a new pod, of half an hour": {func(_ *fleetGPU, h *history) { h.stayed = false }, "keep start-unseen "},
		"at a context's size for an hour": {func(_ *fleetGPU, h *history) {
			h.arrived = false
			h.memory[70] = 600 << 20
		}, "slice  1g.10gb"},
		"without memory for an hour": {func(_ *fleetGPU, h *history) { h.arrived, h.memory[70] = false, 0 },
			"slice  1g.10gb"},
		"at a context's size in the end": {func(_ *fleetGPU, h *history) {
			h.arrived = false
			h.memory[167] = 600 << 20
		}, "keep start-unseen "},
		"small all the time": {func(_ *fleetGPU, h *history) {
			h.arrived = false
			for at := range h.memory {
				h.memory[at] = 900 << 20
			}
		}, "keep start-unseen "},
		"without memory": {func(_ *fleetGPU, h *history) {
			for at := range h.memory {
				h.memory[at] = 9 << 20
			}
		}, "keep start-unseen "},

		"no busy time": {func(_ *fleetGPU, h *history) { lose(h, 0, 168) }, "keep no-history "},
		"no memory": {func(_ *fleetGPU, h *history) {
			for at := range h.memory {
				h.memory[at] = math.NaN()
			}
		}, "keep memory-unread "},
		"memory of a few hours": {func(_ *fleetGPU, h *history) {
			for at := range h.memory[10:] {
				h.memory[10+at] = math.NaN()
			}
		}, "keep memory-unread "},
		"held on two days of a week": {func(_ *fleetGPU, h *history) {
			hours(1, 120, func(at int) { h.held[at], h.busy[at] = false, 0 })
		}, "slice  1g.10gb"},
		"gone": {func(_ *fleetGPU, h *history) { lose(h, 166, 168) }, "keep gone "},
		"free": {func(_ *fleetGPU, h *history) { hours(0, 168, func(at int) { h.held[at] = false }) }, "free  "},
		"held briefly": {func(_ *fleetGPU, h *history) { hours(0, 150, func(at int) { h.held[at] = false }) },
			"keep little-evidence "},
		"a gap": {func(_ *fleetGPU, h *history) { lose(h, 50, 60) }, "keep low-coverage "},
		"a gap while it is free": {func(_ *fleetGPU, h *history) {
			hours(48, 62, func(at int) { h.held[at], h.busy[at] = false, 0 })
			lose(h, 50, 60)
		}, "slice  1g.10gb"},
		"a gap from when it is free": {func(_ *fleetGPU, h *history) {
			hours(48, 62, func(at int) { h.held[at], h.busy[at] = false, 0 })
			lose(h, 50, 64)
		}, "keep low-coverage "},
		"a short gap": {func(_ *fleetGPU, h *history) { lose(h, 50, 55) }, "slice  1g.10gb"},
		"new":         {func(_ *fleetGPU, h *history) { lose(h, 0, 100) }, "slice  1g.10gb"},
		"free for a time": {func(_ *fleetGPU, h *history) {
			hours(50, 100, func(at int) { h.held[at], h.busy[at] = false, 0 })
		}, "slice  1g.10gb"},
	}
}

// halfBusy makes kernels of 40 % of the SMs run for half of the time.
func halfBusy(h *history) {
	hours(0, 168, func(at int) { h.busy[at], h.sms[at], h.bandwidth[at] = 0.5, 0.5*0.4, 0 })
}

// judgmentsOfLoads are about what ran on a GPU.
func judgmentsOfLoads() map[string]judgment {
	return map[string]judgment{
		"shared":    {func(_ *fleetGPU, h *history) { h.shared = true }, "keep shared-device "},
		"multi-GPU": {func(_ *fleetGPU, h *history) { h.multi = true }, "keep multi-gpu "},
		"NVLink":    {func(_ *fleetGPU, h *history) { h.nvlink = 2 << 20 }, "keep nvlink "},
		"no NVLink": {func(_ *fleetGPU, h *history) { h.nvlink, h.nvlinkRead.complete = math.NaN(), false }, "slice  1g.10gb"},
		"all memory": {func(_ *fleetGPU, h *history) {
			for at := range h.memory {
				h.memory[at] = 75 << 30
			}
		}, "keep preallocated "},
		"all memory after a day": {func(_ *fleetGPU, h *history) {
			for at := range h.memory[24:] {
				h.memory[24+at] = 75 << 30
			}
		}, "keep memory "},
		"two fifths of the memory, but for a start": {func(_ *fleetGPU, h *history) {
			for at := range h.memory {
				h.memory[at], h.leastMemory[at] = 33<<30, 33<<30
			}

			for day := range 7 { // starts, with their peaks
				h.leastMemory[24*day], h.memory[24*day+1] = 5<<30, 34<<30
				h.leastMemory[24*day+1] = 5 << 30
			}
		}, "keep preallocated "},
		"two fifths of the memory, and less for six hours of a day": {func(_ *fleetGPU, h *history) {
			for at := range h.memory {
				h.memory[at], h.leastMemory[at] = 33<<30, 33<<30
				if at%24 < 6 {
					h.leastMemory[at] = 30 << 30
				}
			}
		}, "slice  3g.40gb"},
		"two fifths of the memory, of which the smallest use is unknown": {func(_ *fleetGPU, h *history) {
			for at := range h.memory {
				h.memory[at] = 33 << 30
			}
		}, "slice  3g.40gb"},
		"all memory at first": {func(_ *fleetGPU, h *history) {
			for at := range h.memory[:24] {
				h.memory[at] = 75 << 30
			}
		}, "keep preallocated "},
		"memory that begins to grow": {func(_ *fleetGPU, h *history) {
			for at := range h.memory[120:] {
				h.memory[120+at] += float64(at) * (2 << 30) / 24
			}
		}, "slice  3g.40gb"},
		"wide for a twenty-fifth of the busy time": {func(_ *fleetGPU, h *history) {
			hours(0, 168, func(at int) {
				if at%25 == 0 {
					h.sms[at] = 0.19
				}
			})
		}, "share stretch "},
		"busy in turns": {func(_ *fleetGPU, h *history) {
			hours(0, 168, func(at int) { h.busy[at], h.sms[at], h.bandwidth[at] = 0.05, 0.05*0.4, 0 })
			h.busy[100], h.sms[100] = 0.9, 0.9*0.4
		}, "slice  2g.20gb"},
		"busy for half of the time": {func(_ *fleetGPU, h *history) { halfBusy(h) }, "slice  3g.40gb"},
		"busy for half of the time, a job": {func(_ *fleetGPU, h *history) {
			halfBusy(h)
			h.last = &lastHolder{named: &heldGPU{}, isJob: true, seen: 2016, mayBeSeen: 2016}
		}, "keep throughput "},
		"all memory for an hour": {func(_ *fleetGPU, h *history) { h.memory[77] = 75 << 30 }, "keep memory "},
		"growing memory": {func(_ *fleetGPU, h *history) {
			for at := range h.memory {
				h.memory[at] = float64(4<<30) + float64(at)*(2<<30)/24
			}
		}, "slice  3g.40gb"},
		"rare and wide": {func(_ *fleetGPU, h *history) {
			hours(0, 168, func(at int) { h.busy[at], h.sms[at], h.bandwidth[at] = 0.05, 0.049, 0.03 })
		}, "share stretch "},
		"wide": {func(_ *fleetGPU, h *history) {
			hours(0, 168, func(at int) { h.busy[at], h.sms[at], h.bandwidth[at] = 0.9, 0.88, 0.6 })
		}, "keep stretch "},
	}
}

// useEngines sets how busy the media engines of a kind were in one of so many steps: on average and
// at most.
func (h *history) useEngines(engine string, mean, most float64, oneOf int) {
	e := h.engineOf(engine)
	for at := 0; at < len(e.mean); at += oneOf {
		e.mean[at], e.most[at] = float32(mean), float32(most)
	}

	m := h.mediaOf(model.LabelValue(engine))
	m.most, m.read.complete = most, true
}

// judgmentsOfEngines are those of GPUs whose media engines are used.
func judgmentsOfEngines() map[string]judgment {
	return map[string]judgment{
		"a decoder":     {func(_ *fleetGPU, h *history) { h.useEngines("decoder", 0.1, 0.1, 1) }, "slice  1g.10gb"},
		"two decoders":  {func(_ *fleetGPU, h *history) { h.useEngines("decoder", 2./7, 2./7, 1) }, "slice  3g.40gb"},
		"five decoders": {func(_ *fleetGPU, h *history) { h.useEngines("decoder", 5./7, 5./7, 1) }, "keep media-engines "},

		"five decoders in a scrape of each half hour": {func(_ *fleetGPU, h *history) {
			h.useEngines("decoder", 1./7, 5./7, 6)
		}, "keep media-engines "},
		"five decoders for five minutes": {func(_ *fleetGPU, h *history) {
			h.useEngines("decoder", 0.05, 0.05, 1)
			h.engines["decoder"].mean[1000], h.engines["decoder"].most[1000] = 5./7, 5./7
		}, "keep media-engines "},

		"decoders of which the steps are unknown": {func(_ *fleetGPU, h *history) {
			m := h.mediaOf("decoder")
			m.most, m.read.complete = 0.1, true
		}, "keep media-engines "},
		"an encoder that is not read, and that the model does not have": {func(_ *fleetGPU, h *history) {
			delete(h.media, "encoder")
		}, "slice  1g.10gb"},
	}
}

// judgmentsOfActivity are about what we know of kernels.
func judgmentsOfActivity() map[string]judgment {
	nan := float32(math.NaN())

	return map[string]judgment{
		"utilization alone": {func(_ *fleetGPU, h *history) {
			hours(0, 168, func(at int) { h.sms[at], h.bandwidth[at] = nan, nan })
		}, "unknown no-activity "},
		"utilization alone, and idle": {func(_ *fleetGPU, h *history) {
			hours(0, 168, func(at int) { h.busy[at], h.sms[at], h.bandwidth[at] = 0, nan, nan })
		}, "unknown no-activity "},
		"utilization, and SM activity of the last six hours": {func(_ *fleetGPU, h *history) {
			hours(0, 162, func(at int) { h.sms[at], h.bandwidth[at] = nan, nan })
		}, "slice  1g.10gb"},
		"wide kernels by day, and SM activity at night": {func(_ *fleetGPU, h *history) {
			for day := range 7 {
				hours(24*day+8, 24*day+20, func(at int) {
					h.busy[at], h.sms[at], h.bandwidth[at] = 0.7, nan, nan
				})
			}
		}, "slice  1g.20gb"},
		"utilization, and SM activity of half an hour": {func(_ *fleetGPU, h *history) {
			hours(0, 168, func(at int) {
				if at < len(h.sms)-6 {
					h.sms[at], h.bandwidth[at] = nan, nan
				}
			})
		}, "unknown no-activity "},
		"idle": {func(_ *fleetGPU, h *history) {
			hours(0, 168, func(at int) { h.busy[at], h.sms[at], h.bandwidth[at] = 0, 0, 0 })
		}, "slice  1g.10gb"},
	}
}

func TestJudgment(t *testing.T) {
	all := judgmentsOfHistories()
	maps.Copy(all, judgmentsOfLoads())
	maps.Copy(all, judgmentsOfEngines())
	maps.Copy(all, judgmentsOfActivity())

	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			o := weekly()
			d := narrow(o)
			c.change(d, d.history)

			g := judgeOne(analysisOf(o), d)
			if got := string(g.Action) + " " + string(g.Reason) + " " + g.Profile; got != c.want {
				t.Errorf("%q, want %q: %+v", got, c.want, g)
			}

			provisional := []string{
				"new", "held on two days of a week", "utilization, and SM activity of the last six hours",
				"wide kernels by day, and SM activity at night",
			}
			if g.Provisional != slices.Contains(provisional, name) {
				t.Errorf("provisional: %v", g.Provisional)
			}

			if g.Reason != "" && ReasonText(g.Reason, o.Advise) == "" {
				t.Errorf("%s has no text", g.Reason)
			}
		})
	}
}

// judgeOne judges a GPU that is alone on its node.
func judgeOne(a *analysis, d *fleetGPU) GPU {
	a.judgeAll([]*fleetGPU{d})
	return d.answer
}

// judgeTogether judges GPUs of one node.
func judgeTogether(a *analysis, gpus ...*fleetGPU) {
	for i, g := range gpus {
		g.uuid = fmt.Sprintf("GPU-%d", i)
		g.history.place = g.cluster + "/" + g.node
	}

	a.judgeAll(gpus)
}

// readLinks puts NVLink traffic of nothing into the history, for the steps between two shares of the
// window.
func (h *history) readLinks(from, to float64) {
	h.nvlink = 0

	steps := float64(len(h.held))
	for at := int(from * steps); at < int(to*steps); at++ {
		h.nvlinkRead.add(at)
	}
}

// TestUnreadNVLinkIsNotNone: if another GPU of the node was held, NVLink traffic that is not in the
// history may have been exchanged with it.
func TestUnreadNVLinkIsNotNone(t *testing.T) {
	const h100 = "NVIDIA H100 80GB HBM3"

	for about, c := range map[string]struct {
		name   string
		change func(d, other *fleetGPU)
		want   string
	}{
		"another pod":       {h100, func(*fleetGPU, *fleetGPU) {}, "unknown nvlink-unread  false"},
		"read":              {h100, func(d, _ *fleetGPU) { d.history.readLinks(0, 1) }, "slice  1g.10gb false"},
		"nothing beside it": {h100, func(_, other *fleetGPU) { clear(other.history.held) }, "slice  1g.10gb false"},
		"a pod before it": {h100, func(d, other *fleetGPU) {
			for at := range d.history.held {
				d.history.held[at] = at >= 1000
				other.history.held[at] = at < 1001
			}
		}, "slice  1g.10gb true"},
		"read in the last four days of the week": {h100, func(d, _ *fleetGPU) { d.history.readLinks(0.43, 1) },
			"unknown nvlink-unread  false"},
		"read for nearly all of the week": {h100, func(d, _ *fleetGPU) { d.history.readLinks(0.005, 1) },
			"slice  1g.10gb false"},
		"read only before it was held": {h100, func(d, other *fleetGPU) {
			d.history.readLinks(0, 0.7)
			hours(0, 118, func(at int) { d.history.held[at], other.history.held[at] = false, false })
		}, "unknown nvlink-unread  false"},
		"read while it was held": {h100, func(d, other *fleetGPU) {
			d.history.readLinks(0.7, 1)
			hours(0, 118, func(at int) { d.history.held[at], other.history.held[at] = false, false })
		}, "slice  1g.10gb true"},
		"traffic in the part that was read": {h100, func(d, _ *fleetGPU) {
			d.history.readLinks(0.43, 1)
			d.history.nvlink = 2 << 20
		}, "keep nvlink  false"},
		"another node": {h100, func(_, other *fleetGPU) { other.node = "m" }, "slice  1g.10gb false"},
		"another cluster, of which no holder is known": {h100, func(d, other *fleetGPU) {
			d.cluster, other.cluster = "b", "b"
			clear(other.history.held)
			other.history.hideHolders()
		}, "unknown nvlink-unread  false"},
		"its holder is unknown": {h100, func(_, other *fleetGPU) {
			clear(other.history.held)
			other.history.hideHolders()
		}, "unknown nvlink-unread  false"},
		"it fills its memory": {h100, func(d, _ *fleetGPU) { d.history.memory[77] = 75 << 30 }, "keep memory  false"},
		"the advisor has read it": {h100, func(d, _ *fleetGPU) { d.history.advice = advice{at: weekly().End, profile: "1g.10gb"} },
			"slice  1g.10gb false"},
		"nor has the advisor": {h100, func(d, _ *fleetGPU) { d.history.advice = advice{at: weekly().End, reason: advise.ReasonNVLinkUnread} },
			"unknown nvlink-unread  false"},
		"a GPU that a bridge may connect": {"NVIDIA A100 80GB PCIe", func(*fleetGPU, *fleetGPU) {}, "slice  1g.10gb true"},
		"a model without NVLink": {"NVIDIA RTX PRO 6000 Blackwell Server Edition", func(d, _ *fleetGPU) {
			d.history.total = 97887 << 20
		}, "slice  1g.24gb false"},
	} {
		o := weekly()
		d, other := narrow(o), narrow(o)
		d.name = c.name
		d.history.nvlink = math.NaN()
		d.history.nvlinkRead = readings{steps: make([]bool, len(d.history.held))}
		c.change(d, other)
		judgeTogether(analysisOf(o), d, other)

		g := d.answer
		if got := fmt.Sprintf("%s %s %s %v", g.Action, g.Reason, g.Profile, g.Provisional); got != c.want {
			t.Errorf("%s: %q, want %q: %+v", about, got, c.want, g)
		}

		if g.Action == advise.ActionUnknown {
			cmptest.HasTexts(t, ReasonText(g.Reason, o.Advise), "NVLink", "DCGM_FI_PROF_NVLINK_TX_BYTES",
				"DCGM_FI_PROF_NVLINK_RX_BYTES")
		}
	}
}

// TestNeighborOfAnotherExporter: if two exporters serve GPUs of a node, those of the other one may have
// been held.
func TestNeighborOfAnotherExporter(t *testing.T) {
	for about, c := range map[string]struct {
		node string
		want advise.Reason
	}{"the same node": {"n", advise.ReasonNVLinkUnread}, "another node": {"m", advise.ReasonNone}} {
		o := weekly()
		d, other := narrow(o), narrow(o)
		d.history.nvlink = math.NaN()
		d.history.nvlinkRead.complete = false
		other.node = c.node
		old := dcgm(oldNames())
		other.dialect = &old

		a := analysisOf(o)
		a.gpus = []*fleetGPU{d, other}
		a.groupByNode()
		cmptest.Equal(t, about, judgeOne(a, d).Reason, c.want)
	}
}

// TestUnreadNVLinkIsCounted: how many GPUs lack the traffic is said, and nowhere that it is taken for
// none.
func TestUnreadNVLinkIsCounted(t *testing.T) {
	const says = "2 of the slices are provisional because NVLink bridges may connect their GPUs"

	for name, unknown := range map[string]int{"NVIDIA H100 80GB HBM3": 2, "NVIDIA A100 80GB PCIe": 0} {
		o := weekly()
		a := analysisOf(o)
		a.client = &Client{}
		a.gpus = []*fleetGPU{narrow(o), narrow(o)}

		for _, d := range a.gpus {
			d.name = name
			d.history.nvlink = math.NaN()
			d.history.nvlinkRead.complete = false
		}

		judgeTogether(a, a.gpus...)

		r := a.report()
		notes := strings.Join(r.Notes, "\n")
		cmptest.Equal(t, name, r.Fleet.Reasons[advise.ReasonNVLinkUnread], unknown)
		cmptest.Equal(t, name+": note on bridges", strings.Contains(notes, says), unknown == 0)
		cmptest.LacksTexts(t, notes, "taken for none")
	}
}

// TestDecodingIsNotIdle: a GPU that decodes without any kernel was not held in vain.
func TestDecodingIsNotIdle(t *testing.T) {
	o := weekly()
	for decoders, idle := range map[float64]bool{0: true, 0.05: false} {
		d := narrow(o)
		for at := range d.history.busy {
			d.history.busy[at], d.history.sms[at], d.history.bandwidth[at] = 0, 0, 0
		}

		d.history.useEngines("decoder", decoders, decoders, 1)
		cmptest.Equal(t, "idle", judgeOne(analysisOf(o), d).Idle, idle)
	}
}

// TestHoldersUnknown: in a cluster without any holder a GPU counts as held whenever it is seen.
func TestHoldersUnknown(t *testing.T) {
	o := weekly()
	d := narrow(o)
	d.cluster = "b"
	clear(d.history.held)
	clear(d.history.namespaces)
	d.history.arrived = false
	unseen := *d
	history := *d.history
	unseen.history = &history
	cmptest.Equal(t, "in use all the time", judgeOne(analysisOf(o), &unseen).Reason, advise.ReasonStartUnseen)

	d.history.memory[70] = 600 << 20
	g := judgeOne(analysisOf(o), d)
	cmptest.Equal(t, "action", g.Action, advise.ActionSlice)
	cmptest.Equal(t, "held hours per week", g.HeldHoursPerWeek, 168)
	cmptest.Equal(t, "namespace", g.Namespace, "")
}

// TestHeldHoursOfAShortHistory: what is not in the history says nothing of how long the GPU is held in a week.
func TestHeldHoursOfAShortHistory(t *testing.T) {
	for days, want := range map[int]float64{30: 168, 15: 168, 2: 48} {
		o := weekly()
		o.Window = 30 * 24 * time.Hour
		d := narrow(o)

		for at := range len(d.history.busy) - days*24*stepsPerHour {
			d.history.busy[at] = float32(math.NaN())
			d.history.held[at] = false
		}

		cmptest.Equal(t, fmt.Sprint(days, " days"), judgeOne(analysisOf(o), d).HeldHoursPerWeek, want)
	}
}

// hideHolders makes it unknown what holds the GPU.
func (h *history) hideHolders() {
	for at := range h.nameless {
		h.nameless[at] = namelessUnknown
	}
}

// TestHoldersUntold: a GPU of which the exporter can see neither pods nor processes is not free for
// lack of them, also if others of its cluster have some.
func TestHoldersUntold(t *testing.T) {
	for name, told := range map[string]bool{"told": true, "untold": false} {
		o := weekly()
		d := narrow(o)
		clear(d.history.held)
		clear(d.history.namespaces)

		if !told {
			d.history.hideHolders()
		}

		a := analysisOf(o)
		a.client = &Client{}
		a.gpus = []*fleetGPU{d}
		d.answer = judgeOne(a, d)

		want := advise.ActionSlice
		if told {
			want = advise.ActionFree
		}

		cmptest.Equal(t, name+": action", d.answer.Action, want)
		said := strings.Contains(strings.Join(a.notes(&Report{}), " "), "never has nvidia_gpu_allocated of them")
		cmptest.Equal(t, name+": it is said that this is not known", said, !told)
	}
}

// TestThresholds: thresholds of the operator are those of the choice.
func TestThresholds(t *testing.T) {
	o := weekly()
	d := narrow(o)
	want := d.history

	profiles := map[string]func(*advise.Options){
		"1g.10gb": func(*advise.Options) {}, "1g.20gb": func(a *advise.Options) { a.Headroom = 1 },
		"3g.40gb": func(a *advise.Options) { a.Headroom = 3 },
	}
	for profile, change := range profiles {
		o.Advise = advise.DefaultOptions()
		change(&o.Advise)

		d.history = want
		if g := judgeOne(analysisOf(o), d); g.Profile != profile {
			t.Errorf("%s, want %s", g.Profile, profile)
		}
	}
}

func TestModels(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA H100 80GB HBM3": "H100-80GB", "NVIDIA H100 PCIe": "H100-80GB", "NVIDIA H100 NVL": "H100-94GB",
		"NVIDIA H200": "H200-141GB", "NVIDIA B200": "B200-180GB", "NVIDIA GB200": "",
		"NVIDIA A100-SXM4-40GB": "A100-40GB", "NVIDIA A100-SXM4-80GB": "A100-80GB", "NVIDIA A100 80GB PCIe": "A100-80GB",
		"A100-PCIE-40GB": "A100-40GB",
		"NVIDIA A30":     "A30-24GB", "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell 96GB",
		"NVIDIA H100": "", "NVIDIA A100X": "", "NVIDIA L40S": "", "Tesla T4": "", "": "", "\x1b[31m": "",
	} {
		m, _, ok := models{}.find(name, 0)
		if m.Name != want || ok != (want != "") {
			t.Errorf("%q is %q, want %q", name, m.Name, want)
		}

		if ok && lacksMIG(name) {
			t.Errorf("%q has MIG", name)
		}
	}

	for name, want := range map[string]bool{
		"Tesla T4": true, "Tesla V100S-PCIE-32GB": true, "NVIDIA L40S": true, "NVIDIA A10G": true, "NVIDIA GeForce RTX 4090": true,
		"NVIDIA A100X": false, "NVIDIA GB200": false, "NVIDIA B300": false, "NVIDIA RTX PRO 5000 Blackwell": false, "": false,
	} {
		if lacksMIG(name) != want {
			t.Errorf("%q lacks MIG: %v, want %v", name, !want, want)
		}
	}

	m, _, _ := models{}.find("NVIDIA A100-SXM4-40GB", 0)
	if sms := gpuOf(&m, 40<<30).SMs.Or(0); sms != 108 {
		t.Errorf("an A100 has %d SMs", sms)
	}
}

func TestPacking(t *testing.T) {
	m, _ := mig.FindModel("H100-80GB")
	repeat := func(n int, name string) []string { return strings.Split(strings.Repeat(name+",", n-1)+name, ",") }

	join := func(lists ...[]string) (all []string) {
		for _, l := range lists {
			all = append(all, l...)
		}

		return all
	}
	for _, c := range []struct {
		wanted []string
		gpus   int
	}{
		{nil, 0},
		{repeat(7, "1g.10gb"), 1},
		{repeat(8, "1g.10gb"), 2},
		{repeat(4, "1g.20gb"), 1},
		{repeat(3, "2g.20gb"), 1},
		{repeat(4, "2g.20gb"), 2},
		{repeat(3, "3g.40gb"), 2},
		{[]string{"3g.40gb", "4g.40gb"}, 1},
		{[]string{"4g.40gb", "4g.40gb"}, 2},
		{join(repeat(4, "1g.10gb"), repeat(1, "3g.40gb")), 1},
		{join(repeat(3, "1g.20gb"), repeat(2, "1g.10gb")), 1},
		{repeat(2, "1g.10gb+me"), 2},
		{repeat(1600, "1g.10gb"), 229},
	} {
		if got := len(pack(m.Profiles, c.wanted)); got != c.gpus {
			t.Errorf("%d slices such as %v: %d GPUs, want %d", len(c.wanted), c.wanted[:min(len(c.wanted), 3)], got, c.gpus)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"--window is 30m":                   func(o *Options) { o.Window = 30 * time.Minute },
		"--window is 36d":                   func(o *Options) { o.Window = 36 * 24 * time.Hour },
		"--cluster-label is":                func(o *Options) { o.ClusterLabel = "a b" },
		"--match is \"cluster=a\"":          func(o *Options) { o.Match = []string{"cluster=a"} },
		"--match is \"a=\\\"b\\\"}":         func(o *Options) { o.Match = []string{`a="b"} or up{`} },
		"missing closing":                   func(o *Options) { o.Match = []string{`a=~"("`} },
		"--price is H100=NaN":               func(o *Options) { o.Prices = []Price{{Model: "H100", Hour: math.NaN()}} },
		"--price has \"H100\" and \"h100\"": func(o *Options) { o.Prices = []Price{{"H100", 1}, {"h100", 2}} },
		"--max-stretch=NaN: expected":       func(o *Options) { o.Advise.MaxStretch = math.NaN() },
		"min-evidence":                      func(o *Options) { o.Advise.MinEvidence = 0 },
	} {
		o := weekly()
		change(&o)

		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}

	o := weekly()

	o.Match = []string{`cluster="a"`, `env!~"test|\"dev\"" , region = "eu"`}
	if err := o.Validate(); err != nil {
		t.Error(err)
	}

	for _, text := range []string{"H100", "H100=", "=2", "H100=-1", "H100=NaN", "H100=Inf", "H100=2,50"} {
		if _, err := ParsePrice(text); err == nil {
			t.Errorf("%q is a price", text)
		}
	}
}

func TestPriceOfTheLongestName(t *testing.T) {
	prices := []Price{{"A100", 1}, {"A100-80GB", 2}, {"a100 80gb pcie", 3}, {"H100", 4}}
	for name, want := range map[string]float64{
		"A100-SXM4-40GB": 1, "A100-SXM4-80GB": 2, "A100 80GB PCIe": 3, "H100 80GB HBM3": 4, "L40S": 0,
	} {
		if p, _ := priceOf(prices, name, ""); p.Hour != want {
			t.Errorf("%s costs %v, want %v", name, p.Hour, want)
		}
	}
}

// TestEndedHistory: a history that ends before the last hour says when, if it does for all GPUs.
func TestEndedHistory(t *testing.T) {
	o := weekly()
	s := analysisOf(o)
	s.client = &Client{}

	for range 2 {
		d := narrow(o)
		for at := 160 * stepsPerHour; at < len(d.history.busy); at++ {
			d.history.busy[at] = float32(math.NaN())
		}

		d.answer = judgeOne(s, d)
		s.gpus = append(s.gpus, d)
	}

	cmptest.HasTexts(t, strings.Join(s.notes(&Report{}), "\n"),
		"--time="+o.End.Add(-8*time.Hour).UTC().Format(time.RFC3339))
	s.gpus[0] = narrow(o)
	s.gpus[0].answer = judgeOne(s, s.gpus[0])
	cmptest.LacksTexts(t, strings.Join(s.notes(&Report{}), "\n"), "--time=")
}
