package promtest

import (
	"fmt"
	"hash/fnv"
	"math"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
)

// A history of GPUs that is made up, sample by sample, so that what follows from it can be computed
// without PromQL.

// unit is a GPU of the history.
type unit struct {
	node, index int
	kind        string
}

// reading is what a scrape finds of a GPU.
type reading struct {
	up, held           bool
	busy, sms, dram    float64
	memory             float64 // bytes
	nvlink             float64 // counter, bytes
	namespace, pod     string
	model              string
	mig                bool
	utilizationPercent float64
}

const (
	h100         = "NVIDIA H100 80GB HBM3"
	h100Bytes    = 81559 << 20
	unitsPerNode = 8
)

// kindOf is what a GPU is used for. Of ten nodes one trains on all its GPUs, one has slices, and
// the others serve.
func kindOf(node, index int) string {
	switch node % 10 {
	case 8:
		return "training"
	case 9:
		return "sliced"
	}

	if node%10 == 5 && index == 6 {
		return "nvlink"
	}

	if node%10 == 6 && index == 2 {
		return "changed"
	}

	if node%10 == 3 && index == 0 {
		return "gaps"
	}

	return []string{"narrow", "rare", "idle", "preallocated", "free", "visitor", "large", "narrow"}[index]
}

func (u unit) uuid() string {
	return fmt.Sprintf("GPU-%08x-%04x-4000-8000-00000000%04x", 0xabc00000+u.node, u.index, u.node*unitsPerNode+u.index)
}

// noise is between 0 and 1, the same each time.
func (u unit) noise(minute int, of string) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%d/%d/%s", u.node, u.index, minute, of)

	return float64(h.Sum64()>>11) / (1 << 53)
}

// at returns what is true in a minute of the history, which has so many minutes.
func (u unit) at(minute, minutes int) reading {
	r := reading{up: true, held: true, namespace: "serving", model: h100, memory: 6 << 30, nvlink: 1000 * float64(minute)}
	r.pod = u.podAt(minute, minutes)
	wave := 0.5 + 0.5*math.Sin(float64(minute)/1440*2*math.Pi+float64(u.index))
	noise := u.noise(minute, "load")
	load := func(busy, width, bandwidth float64) {
		r.busy = min(1, busy)
		r.sms = r.busy * width
		r.dram = r.busy * bandwidth
	}

	switch u.kind {
	case "narrow":
		load(0.3+0.5*wave+0.2*noise, 0.06+0.02*noise, 0.04)
	case "gaps":
		load(0.3+0.2*noise, 0.08, 0.05)

		r.up = minute%10 != 0 || minute > minutes/2
		if minute > minutes/4 && minute < minutes/4+minutes/10 {
			r.up = false
		}
	case "rare":
		load(0.02+0.04*noise, 0.9, 0.5)
	case "idle":
		r.memory = 2 << 30
	case "preallocated":
		load(0.4*wave, 0.3, 0.3)
		r.memory = 72 << 30
	case "free":
		r.held = false
		r.memory = 0
	case "visitor": // held for two thirds of the time only
		r.namespace = "research"
		if r.held = minute < minutes/2 || minute > minutes*5/6; r.held {
			load(0.2+0.1*noise, 0.1, 0.05)
		} else {
			r.memory = 0
		}
	case "large":
		load(0.6, 0.1, 0.1)
		r.memory = 10<<30 + 50<<30*wave
	case "training", "nvlink":
		load(0.9+0.1*noise, 0.9, 0.6)

		r.namespace, r.nvlink = "training", 1e9*float64(minute)
		if u.kind == "training" {
			r.pod = fmt.Sprintf("trainer-%d", u.node)
		}
	case "sliced":
		r.mig = true
	case "changed":
		load(0.1, 0.1, 0.05)

		if minute > minutes/2 {
			r.model = "NVIDIA A100-SXM4-80GB"
		}
	}

	if minute > minutes/3 { // a driver that was loaded again
		r.nvlink -= float64(1000 * (minutes / 3))
		if u.kind == "training" || u.kind == "nvlink" {
			r.nvlink = 1e9 * float64(minute-minutes/3)
		}
	}

	r.utilizationPercent = math.Round(100 * r.busy)

	return r
}

// podAt returns the name of the pod of a GPU. One follows another, so that its start is in the
// history.
func (u unit) podAt(minute, minutes int) string {
	name := fmt.Sprintf("%s-%d-%d", u.kind, u.node, u.index)
	if minute < minutes/4 {
		name += before
	}

	return name
}

// before ends the name of the pod that was there first.
const before = "-before"

// naming is how an exporter names what it serves.
type naming struct {
	dcgm    bool
	honored bool // labels of pods keep their names
	noSMs   bool // dcgm-exporter's default list
}

// seriesID names a series of a GPU briefly: making labels for each sample would take most of the
// time.
type seriesID struct {
	node, index        int
	family, model, pod string
}

// written is a series that was appended to.
type written struct {
	labels labels.Labels
	ref    storage.SeriesRef
	live   bool // in the last scrape
}

// writer appends a history.
type writer struct {
	app    storage.Appender
	series map[seriesID]*written
}

// add appends a sample. labels are asked for once.
func (w *writer) add(at int64, v float64, id seriesID, pairs func() []string) error {
	s := w.series[id]
	if s == nil {
		s = &written{labels: labels.FromStrings(pairs()...)}
		w.series[id] = s
	}

	var err error
	s.live = true
	s.ref, err = w.app.Append(s.ref, s.labels, at, v)

	return err
}

// end marks a series stale that was in the scrape before.
func (w *writer) end(at int64, id seriesID) error {
	s := w.series[id]
	if s == nil || !s.live {
		return nil
	}

	s.live = false
	_, err := w.app.Append(s.ref, s.labels, at, math.Float64frombits(value.StaleNaN))

	return err
}

// scrapedAt is when a node is scraped in a minute: in the middle of it, each node at its own
// second.
func scrapedAt(start time.Time, node, minute int) int64 {
	return start.Add(time.Duration(minute)*time.Minute + time.Duration(5+node*7%50)*time.Second).UnixMilli()
}

// scrape appends what a scrape of a GPU finds.
func (w *writer) scrape(u unit, start time.Time, minute, minutes int, n naming) error {
	r := u.at(minute, minutes)
	if !r.up {
		return nil
	}

	at := scrapedAt(start, u.node, minute)
	if n.dcgm {
		return w.dcgm(u, &r, at, n)
	}

	return w.native(u, &r, at)
}

func (w *writer) native(u unit, r *reading, at int64) error {
	var err error
	put := func(family string, v float64, more ...string) {
		if err == nil {
			err = w.add(at, v, seriesID{node: u.node, index: u.index, family: family, model: r.model}, func() []string {
				return append(u.target("9401", "uuid", "node"), append(more, "__name__", family)...)
			})
		}
	}
	put("nvidia_gpu_mig_enabled", boolValue(r.mig))
	put("nvidia_gpu_memory_total_bytes", h100Bytes)
	put("nvidia_gpu_memory_used_bytes", r.memory)
	put("nvidia_gpu_graphics_engine_activity_ratio", r.busy)
	put("nvidia_gpu_sm_activity_ratio", r.sms)
	put("nvidia_gpu_dram_activity_ratio", r.dram)
	put("nvidia_gpu_nvlink_transmit_bytes_total", r.nvlink)
	put("nvidia_gpu_nvlink_receive_bytes_total", r.nvlink/2)
	put("nvidia_gpu_processes", boolValue(r.held && r.busy > 0))
	put("nvidia_gpu_allocated", boolValue(r.held))
	put("nvidia_gpu_info", 1, "name", r.model, "architecture", "Hopper")

	if err != nil {
		return err
	}

	pod := seriesID{node: u.node, index: u.index, family: "nvidia_gpu_pod_info", pod: r.pod}
	earlier := pod

	earlier.pod += before
	if err := w.end(at, earlier); err != nil {
		return err
	}

	if !r.held || r.mig { // pods hold its slices
		return w.end(at, pod)
	}

	return w.add(at, 1, pod, func() []string {
		return append(u.target("9401", "uuid", "node"), "__name__", pod.family, "namespace", r.namespace, "pod", r.pod,
			"container", "main",
			"sharing", "exclusive", "confirmed", "true")
	})
}

// target are the labels that every series of a GPU has.
func (u unit) target(port, uuid, node string) []string {
	return []string{"cluster", "a", "instance", fmt.Sprintf("10.0.%d.%d:%s", u.node/250, u.node%250, port), "job", "gpus",
		node, fmt.Sprintf("node-%03d", u.node), uuid, u.uuid(), "gpu", fmt.Sprint(u.index)}
}

// dcgm appends the families of dcgm-exporter. Its pod is on the series that name no other, or on
// all as Prometheus renames the others.
func (w *writer) dcgm(u unit, r *reading, at int64, n naming) error {
	families := map[string]float64{
		"DCGM_FI_DEV_FB_USED": r.memory / (1 << 20), "DCGM_FI_DEV_FB_FREE": (h100Bytes - r.memory) / (1 << 20),
		"DCGM_FI_DEV_GPU_UTIL": r.utilizationPercent, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": r.busy,
		"DCGM_FI_PROF_DRAM_ACTIVE": r.dram, "DCGM_FI_PROF_SM_ACTIVE": r.sms, "DCGM_FI_DEV_ENC_UTIL": 0,
		"DCGM_FI_DEV_DEC_UTIL":               0,
		"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 0,
	}
	if u.kind == "training" || u.kind == "nvlink" {
		families["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"] = 16000
	}

	if n.noSMs {
		delete(families, "DCGM_FI_PROF_SM_ACTIVE")
	}

	for family, v := range families {
		held := seriesID{node: u.node, index: u.index, family: family, model: r.model, pod: r.pod}
		free := held
		free.pod = ""

		now := held

		before := free
		if !r.held {
			now = free
			before = held
		}

		if err := w.end(at, before); err != nil {
			return err
		}

		if err := w.add(at, v, now, func() []string { return u.dcgmLabels(r, family, n) }); err != nil {
			return err
		}
	}

	return nil
}

func (u unit) dcgmLabels(r *reading, family string, n naming) []string {
	pairs := append(u.target("9400", "UUID", "Hostname"), "__name__", family, "modelName", r.model)
	if r.mig {
		pairs = append(pairs, "GPU_I_ID", "1", "GPU_I_PROFILE", "1g.10gb")
	}

	if !r.held || !n.honored {
		pairs = append(pairs, "namespace", "gpu-operator", "pod", fmt.Sprintf("nvidia-dcgm-exporter-%d", u.node))
	}

	switch {
	case r.held && n.honored:
		pairs = append(pairs, "namespace", r.namespace, "pod", r.pod)
	case r.held:
		pairs = append(pairs, "exported_namespace", r.namespace, "exported_pod", r.pod)
	}

	return pairs
}

func boolValue(v bool) float64 {
	if v {
		return 1
	}

	return 0
}

// appendHistory appends the minutes of a history to a storage, so many at a time.
func appendHistory(open func() storage.Appender, units []unit, start time.Time, from, to, minutes int, n naming) error {
	w := &writer{series: map[seriesID]*written{}}
	for minute := from; minute < to; minute++ {
		if w.app == nil {
			w.app = open()
		}

		for _, u := range units {
			if err := w.scrape(u, start, minute, minutes, n); err != nil {
				return fmt.Errorf("minute %d of GPU %d of node %d: %w", minute, u.index, u.node, err)
			}
		}

		if (minute-from)%30 == 29 || minute == to-1 {
			if err := w.app.Commit(); err != nil {
				return err
			}

			w.app = nil
		}
	}

	return nil
}

// unitsOf are the GPUs of so many nodes.
func unitsOf(nodes int) []unit {
	var all []unit

	for node := range nodes {
		for index := range unitsPerNode {
			all = append(all, unit{node, index, kindOf(node, index)})
		}
	}

	return all
}
