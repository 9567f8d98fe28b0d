package fleet

import (
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// dialect is how an exporter names what is asked. Expressions are templates: $sel are label matchers, $w is the
// window. All but inventory and holders are by GPU.
type dialect struct {
	name        string // of the exporter
	family      string // what every GPU has a series of
	uuid, model model.LabelName

	// inventory counts samples by GPU, model, and the labels that say where it is.
	inventory string
	// holders has a value for each cluster of which it is known what holds GPUs.
	holders string
	// At the end of the window: total memory in bytes; the largest NVLink rate in bytes per second; the largest use of
	// media engines and the share of the scrapes that have it, by engine; and what has a value only if it was so at any
	// time, MIG mode.
	total, nvlink, media, mediaSeen, mig string
	// told has a value for each GPU of which it was known at any time of the window whether anything holds it; empty if
	// the exporter does not say that it isn't.
	told string
	// engines are, at steps of five minutes, how busy media engines were that were used at all, by engine: means, and
	// the largest samples.
	engines, enginesMost string
	// What the right-sizing advisor says at the end of the window: the profile of a candidate, or the reason for which the
	// GPU is none.
	advised string
	// At steps of five minutes: means of busy time, of utilization for the steps without it, and of what kernels use of
	// SMs and memory bandwidth.
	busy, utilization, sms, bandwidth measure
	// held are series of what holds the GPU, at the same steps; used one that says that something does, if nothing else
	// is known.
	held []string
	used string
	// memory is the largest use of an hour in bytes, at steps of an hour.
	memory string
}

// measure is a gauge of which means are asked.
type measure struct {
	family, selector string // the selector begins with $sel
	factor           string // to a ratio
}

// perSeries is an expression for the mean of each series.
func (m measure) perSeries() string {
	return "avg_over_time(" + m.family + "{" + m.selector + "}[5m])" + m.factor
}

// perGPU is an expression for the mean of all samples of a GPU.
func (m measure) perGPU(uuid model.LabelName) string {
	sum := func(function string) string {
		return "sum by (" + string(uuid) + ") (" + function +
			"(" + m.family + "{" + m.selector + "}[5m]))"
	}

	return sum("sum_over_time") + " / " + sum("count_over_time") + m.factor
}

// step is the time of which means are asked, hour the one of maxima of memory.
const (
	step = 5 * time.Minute
	hour = time.Hour
)

// placeLabels are those that may name a GPU's node, the best first.
func placeLabels() []model.LabelName {
	return []model.LabelName{
		"node",
		"Hostname",
		"hostname",
		"kubernetes_node",
		"nodename",
		"instance",
	}
}

// dialects are the exporters that are known. A GPU that two of them serve is asked for under the first one's names.
func dialects() []dialect {
	return []dialect{native(), dcgm(oldNames()), dcgm(newNames())}
}

func native() dialect {
	mean := func(family string) measure { return measure{family: family, selector: "$sel"} }
	most := func(family string) string { return "max by (uuid) (max_over_time(" + family + "{$sel}[$w]))" }
	rate := func(family string) string { // of the busiest hour's bytes, as if they were one minute's
		return "max by (uuid) (max_over_time(increase(" + family + "{$sel}[1h])[$w:1h])) / 60"
	}

	return dialect{
		name:      "mig-exporter",
		family:    "nvidia_gpu_info",
		uuid:      "uuid",
		model:     "name",
		inventory: "sum by (uuid, name, $places) (count_over_time(nvidia_gpu_info{$sel}[$w]))",
		holders: "group by ($places) (present_over_time(nvidia_gpu_pod_info{$sel}[$w]) or " +
			"present_over_time(nvidia_gpu_hpc_job_info{$sel}[$w]) or present_over_time(nvidia_gpu_processes{$sel}[$w]))",
		told: "max by (uuid) (present_over_time(nvidia_gpu_allocated{$sel}[$w]) or " +
			"present_over_time(nvidia_gpu_processes{$sel}[$w]))",
		total:  most("nvidia_gpu_memory_total_bytes"),
		nvlink: rate("nvidia_gpu_nvlink_transmit_bytes_total") + " + " + rate("nvidia_gpu_nvlink_receive_bytes_total"),
		media:  "max by (uuid, engine) (max_over_time(nvidia_gpu_media_activity_ratio{$sel}[$w]))",
		mediaSeen: "sum by (uuid, engine) (count_over_time(nvidia_gpu_media_activity_ratio{$sel}[$w])) / on (uuid) " +
			"group_left () sum by (uuid) (count_over_time(nvidia_gpu_memory_used_bytes{$sel}[$w]))",
		engines:     "avg_over_time(nvidia_gpu_media_activity_ratio{$sel}[5m]) > 0",
		enginesMost: "max_over_time(nvidia_gpu_media_activity_ratio{$sel}[5m]) > 0",
		mig:         most("nvidia_gpu_mig_enabled") + " > 0",
		advised: "max by (uuid, recommended_profile) (nvidia_gpu_rightsizing_candidate{$sel}) or on (uuid) " +
			"max by (uuid, reason) (nvidia_gpu_rightsizing_rejected{$sel})",
		busy:        mean("nvidia_gpu_graphics_engine_activity_ratio"),
		utilization: mean("nvidia_gpu_utilization_ratio"),
		sms:         mean("nvidia_gpu_sm_activity_ratio"),
		bandwidth:   mean("nvidia_gpu_dram_activity_ratio"),
		held: []string{"present_over_time(nvidia_gpu_pod_info{$sel}[5m])",
			"present_over_time(nvidia_gpu_hpc_job_info{$sel}[5m])"},
		used:   "max_over_time(nvidia_gpu_processes{$sel}[5m]) > 0",
		memory: "max by (uuid) (max_over_time(nvidia_gpu_memory_used_bytes{$sel}[1h]))",
	}
}

// dcgmNames are what differs between the releases of dcgm-exporter.
type dcgmNames struct {
	release                                  string
	used, free, utilization, encoder, decode string
	busy, sms, bandwidth, nvlink             string
	mebibytes, percent, megabytes            string // factors to bytes, ratios and bytes
}

func oldNames() dcgmNames {
	return dcgmNames{
		release:     "dcgm-exporter",
		used:        "DCGM_FI_DEV_FB_USED",
		free:        "DCGM_FI_DEV_FB_FREE",
		utilization: "DCGM_FI_DEV_GPU_UTIL",
		encoder:     "DCGM_FI_DEV_ENC_UTIL",
		decode:      "DCGM_FI_DEV_DEC_UTIL",
		busy:        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
		sms:         "DCGM_FI_PROF_SM_ACTIVE",
		bandwidth:   "DCGM_FI_PROF_DRAM_ACTIVE",
		nvlink:      "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
		mebibytes:   " * 1048576",
		percent:     " / 100",
		megabytes:   " * 1e6",
	}
}

func newNames() dcgmNames {
	return dcgmNames{
		release:     "dcgm-exporter 4.9",
		used:        "DCGM_FI_DEV_FB_USED_BYTES",
		free:        "DCGM_FI_DEV_FB_FREE_BYTES",
		utilization: "DCGM_FI_DEV_GPU_UTIL_RATIO",
		encoder:     "DCGM_FI_DEV_ENC_UTIL_RATIO",
		decode:      "DCGM_FI_DEV_DEC_UTIL_RATIO",
		busy:        "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
		sms:         "DCGM_FI_PROF_SM_UTIL_RATIO",
		bandwidth:   "DCGM_FI_PROF_DRAM_UTIL_RATIO",
		nvlink:      "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
	}
}

// dcgm makes the dialect of a release. There pods are on the series of their GPUs, which end with them; the pod of
// the exporter itself, which Prometheus adds to series that have none, is no holder.
func dcgm(n dcgmNames) dialect {
	mean := func(family, factor string) measure { return measure{family, `$sel,GPU_I_ID=""`, factor} }
	most := func(family string) string {
		return `max by (UUID) (max_over_time(` + family + `{$sel,GPU_I_ID=""}[$w]))`
	}
	engine := func(name, family string) string {
		return `label_replace(` + most(family) + n.percent + `, "engine", "` + name + `", "", "")`
	}
	engines := func(function string) string {
		of := func(name, family string) string {
			return `label_replace(` + function + `(` + family + `{$sel,GPU_I_ID=""}[5m])` + n.percent + ` > 0, "engine", "` +
				name + `", "", "")`
		}

		return of("encoder", n.encoder) + " or " + of("decoder", n.decode)
	}
	exported := n.used + `{$sel,GPU_I_ID="",exported_pod!=""}`
	own := n.used + `{$sel,GPU_I_ID="",exported_pod="",pod!="",pod!~".*exporter.*"}`

	return dialect{
		name:      n.release,
		family:    n.used,
		uuid:      "UUID",
		model:     "modelName",
		inventory: "sum by (UUID, modelName, $places) (count_over_time(" + n.used + "{$sel}[$w]))",
		holders:   "group by ($places) (present_over_time(" + exported + "[$w]) or present_over_time(" + own + "[$w]))",
		total: `max by (UUID) (last_over_time(` + n.used + `{$sel,GPU_I_ID=""}[$w]) + last_over_time(` + n.free +
			`{$sel,GPU_I_ID=""}[$w]))` + n.mebibytes,
		nvlink:      most(n.nvlink) + n.megabytes + " or on (UUID) " + most("DCGM_FI_PROF_NVLINK_TX_BYTES"),
		media:       engine("encoder", n.encoder) + " or " + engine("decoder", n.decode),
		engines:     engines("avg_over_time"),
		enginesMost: engines("max_over_time"),
		mig:         `max by (UUID) (present_over_time(` + n.used + `{$sel,GPU_I_ID!=""}[$w]))`,
		busy:        mean(n.busy, ""),
		utilization: mean(n.utilization, n.percent),
		sms:         mean(n.sms, ""),
		bandwidth:   mean(n.bandwidth, ""),
		held: []string{
			"present_over_time(" + exported + "[5m])",
			"present_over_time(" + own + "[5m])",
		},
		memory: "max by (UUID) (max_over_time(" + n.used + `{$sel,GPU_I_ID=""}[1h]))` + n.mebibytes,
	}
}

// render fills in a template.
func render(template, selectors string, window time.Duration, places string) string {
	if selectors == "" {
		template = strings.ReplaceAll(template, "$sel,", "")
	}

	values := strings.NewReplacer(
		"$sel", selectors,
		"$w", model.Duration(window).String(),
		"$places", places,
	)

	return values.Replace(template)
}
