package fleet

import (
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// dialect has the names and PromQL expressions for one exporter. Expressions are templates: $sel
// stands for label matchers, $w for the window. All but inventory and holders have one result for
// each GPU.
type dialect struct {
	name        string // of the exporter
	family      string // a metric that every GPU has
	uuid, model model.LabelName

	// inventory counts samples by GPU, model, and the labels that say where the GPU is.
	inventory string
	// holders has a value for each cluster whose history says what holds GPUs.
	holders string
	// At the end of the window. total is memory in bytes, nvlink the largest rate in bytes per
	// second. media is, by engine, the largest use, mediaSeen the share of scrapes that have it.
	// mig has a value if MIG mode was ever on.
	total, nvlink, media, mediaSeen, mig string
	// told has a value for each GPU if the exporter knew at any time of the window whether anything
	// holds it. It is empty if the exporter's series don't show whether it knows.
	told string
	// engines and enginesMost are, at steps of five minutes and by engine, the mean and the largest
	// use of the media engines that were used at all.
	engines, enginesMost string
	// advised has the right-sizing advisor's result at the end of the window: the profile of a
	// candidate, or the reason why the GPU is none.
	advised string
	// At steps of five minutes: means of busy time, of utilization for the steps without busy time,
	// and of the use of SMs and memory bandwidth by kernels.
	busy, utilization, sms, bandwidth measure
	// held are series of what holds the GPU, at the same steps. If there is none, used says whether
	// anything does.
	held []string
	used string
	// memory is the largest use in each hour, in bytes.
	memory string
}

// measure is a gauge whose means we query.
type measure struct {
	family, selector string // the selector begins with $sel
	factor           string // from the gauge to a ratio
}

// perSeries returns an expression for the mean of each series.
func (m measure) perSeries() string {
	return "avg_over_time(" + m.family + "{" + m.selector + "}[5m])" + m.factor
}

// perGPU returns an expression for the mean of all samples of each GPU.
func (m measure) perGPU(uuid model.LabelName) string {
	sum := func(function string) string {
		return "sum by (" + string(uuid) + ") (" + function +
			"(" + m.family + "{" + m.selector + "}[5m]))"
	}

	return sum("sum_over_time") + " / " + sum("count_over_time") + m.factor
}

// We query means over a step, and maxima of memory over an hour.
const (
	step = 5 * time.Minute
	hour = time.Hour
)

// placeLabels returns the labels that may name a GPU's node, the best first.
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

// dialects returns the exporters that we know. If two of them serve a GPU, we query the first.
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
			"present_over_time(nvidia_gpu_hpc_job_info{$sel}[$w]) or " +
			"present_over_time(nvidia_gpu_processes{$sel}[$w]))",
		told: "max by (uuid) (present_over_time(nvidia_gpu_allocated{$sel}[$w]) or " +
			"present_over_time(nvidia_gpu_processes{$sel}[$w]))",
		total: most("nvidia_gpu_memory_total_bytes"),
		nvlink: rate("nvidia_gpu_nvlink_transmit_bytes_total") + " + " +
			rate("nvidia_gpu_nvlink_receive_bytes_total"),
		media: "max by (uuid, engine) (max_over_time(nvidia_gpu_media_activity_ratio{$sel}[$w]))",
		mediaSeen: "sum by (uuid, engine) (count_over_time(nvidia_gpu_media_activity_ratio{$sel}[$w])) " +
			"/ on (uuid) group_left () sum by (uuid) (count_over_time(nvidia_gpu_memory_used_bytes{$sel}[$w]))",
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

// dcgmNames has what differs between the releases of dcgm-exporter: metrics and units.
type dcgmNames struct {
	release                                   string
	used, free, utilization, encoder, decoder string
	busy, sms, bandwidth, nvlink              string
	mebibytes, percent, megabytes             string // factors to bytes, ratios and bytes; empty if not needed
}

func oldNames() dcgmNames {
	return dcgmNames{
		release:     "dcgm-exporter",
		used:        "DCGM_FI_DEV_FB_USED",
		free:        "DCGM_FI_DEV_FB_FREE",
		utilization: "DCGM_FI_DEV_GPU_UTIL",
		encoder:     "DCGM_FI_DEV_ENC_UTIL",
		decoder:     "DCGM_FI_DEV_DEC_UTIL",
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
		decoder:     "DCGM_FI_DEV_DEC_UTIL_RATIO",
		busy:        "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
		sms:         "DCGM_FI_PROF_SM_UTIL_RATIO",
		bandwidth:   "DCGM_FI_PROF_DRAM_UTIL_RATIO",
		nvlink:      "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
	}
}

// dcgm returns the dialect of a release. dcgm-exporter puts a pod on the series of its GPUs, which
// end with the pod. To series without a pod Prometheus may add the exporter's own, which is no
// holder.
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
			return `label_replace(` + function + `(` + family + `{$sel,GPU_I_ID=""}[5m])` + n.percent +
				` > 0, "engine", "` + name + `", "", "")`
		}

		return of("encoder", n.encoder) + " or " + of("decoder", n.decoder)
	}
	exported := n.used + `{$sel,GPU_I_ID="",exported_pod!=""}`
	own := n.used + `{$sel,GPU_I_ID="",exported_pod="",pod!="",pod!~".*exporter.*"}`

	return dialect{
		name:      n.release,
		family:    n.used,
		uuid:      "UUID",
		model:     "modelName",
		inventory: "sum by (UUID, modelName, $places) (count_over_time(" + n.used + "{$sel}[$w]))",
		holders: "group by ($places) (present_over_time(" + exported + "[$w]) or " +
			"present_over_time(" + own + "[$w]))",
		total: `max by (UUID) (last_over_time(` + n.used + `{$sel,GPU_I_ID=""}[$w]) + last_over_time(` + n.free +
			`{$sel,GPU_I_ID=""}[$w]))` + n.mebibytes,
		nvlink:      most(n.nvlink) + n.megabytes + " or on (UUID) " + most("DCGM_FI_PROF_NVLINK_TX_BYTES"),
		media:       engine("encoder", n.encoder) + " or " + engine("decoder", n.decoder),
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

// render fills in an expression of a dialect.
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
