package fleet

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// dialect has the names and PromQL expressions for one exporter. Expressions are templates, see
// render: $sel stands for label matchers, $w for the window. An empty expression means that the
// exporter does not serve the value. All but inventory and holders have one result for each GPU.
type dialect struct {
	name        string // of the exporter
	family      string // a metric that every GPU has
	uuid, model model.LabelName

	// inventory counts samples by GPU, model, and the labels that say where the GPU is.
	inventory string
	// holders has a result for each cluster whose history shows what holds GPUs.
	holders string

	// We evaluate these once, at the end of the window:
	total string // memory in bytes
	// nvlink has the largest rate in bytes per second, of the directions that were read. nvlinkRead
	// says when both were.
	nvlink     string
	nvlinkRead presence
	media      string   // largest use of media engines, by the label engine
	mediaRead  presence // of that use, by the label engine
	mig        string   // has a result if MIG mode was ever on
	// advice has the right-sizing advisor's answers of the last 26 hours: the profile of a candidate, or the
	// reason why the GPU is none. The value is when it was scraped last, in Unix seconds.
	advice string

	// We evaluate these at steps of five minutes:
	busy, utilization measure  // we use utilization in steps without busy time
	sms, bandwidth    measure  // use of SMs and of memory bandwidth by kernels
	engines           string   // mean use of media engines that are used, by the label engine
	enginesMost       string   // their largest use
	held              []string // series with labels that say what holds the GPU
	// holding has series that are above 0 if anything holds the GPU, also what has no name, and 0 if
	// nothing else does. In a step without them, we don't know whether anything does. That no process
	// runs on the GPU says nothing: a container or a batch job can hold it without.
	holding []string

	memory      string // largest use in each hour, in bytes
	leastMemory string // smallest use in each hour, in bytes
	memoryRead  presence
}

// presence asks when the history has a reading.
type presence struct {
	complete string // at the end of the window: has a result if each scrape of the GPU has it
	steps    string // at steps of five minutes: has a result if the step has it
}

// measure is a gauge whose means we query.
type measure struct {
	family   string
	selector string // begins with $sel
	factor   string // makes a ratio of the gauge, such as " / 100"
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

// lesser returns an expression for the smaller value of two expressions, of GPUs that have both.
func lesser(a, b string) string { return a + " <= " + b + " or " + b + " < " + a }

// greater returns an expression for the larger value of two expressions, or for the only one.
func greater(a, b string) string { return a + " >= " + b + " or " + b + " or " + a }

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

// dialects returns the exporters that we know. If two of them serve a GPU at once, we query the first.
func dialects() []dialect {
	return []dialect{native(), dcgm(oldNames()), dcgm(newNames())}
}

// native returns the dialect of mig-exporter.
func native() dialect {
	mean := func(family string) measure { return measure{family: family, selector: "$sel"} }
	most := func(family string) string { return "max by (uuid) (max_over_time(" + family + "{$sel}[$w]))" }
	rate := func(family string) string { // at most: the busiest hour's bytes, as if in one minute
		hours := "max by (uuid) (max_over_time(increase(" + family + "{$sel}[1h])[$w:1h]))" // of the clock
		last := "max by (uuid) (increase(" + family + "{$sel}[1h]))"

		return "(" + greater(hours, last) + ") / 60"
	}
	count := func(family string) string { return "sum by (uuid) (count_over_time(" + family + "{$sel}[$w]))" }

	const (
		sent     = "nvidia_gpu_nvlink_transmit_bytes_total"
		received = "nvidia_gpu_nvlink_receive_bytes_total"
	)

	return dialect{
		name:      "mig-exporter",
		family:    "nvidia_gpu_info",
		uuid:      "uuid",
		model:     "name",
		inventory: "sum by (uuid, name, $places) (count_over_time(nvidia_gpu_info{$sel}[$w]))",
		holders: "group by ($places) (present_over_time(nvidia_gpu_pod_info{$sel}[$w]) or " +
			"present_over_time(nvidia_gpu_hpc_job_info{$sel}[$w]) or " +
			"present_over_time(nvidia_gpu_processes{$sel}[$w]))",
		total:  most("nvidia_gpu_memory_total_bytes"),
		nvlink: sumOfDirections("uuid", rate(sent), rate(received)),
		nvlinkRead: presence{
			complete: "(" + lesser(count(sent), count(received)) + ") >= " + count("nvidia_gpu_info"),
			steps: "present_over_time(" + sent + "{$sel}[5m]) and on (uuid) " +
				"present_over_time(" + received + "{$sel}[5m])",
		},
		media: "max by (uuid, engine) (max_over_time(nvidia_gpu_media_activity_ratio{$sel}[$w]))",
		mediaRead: presence{
			complete: "sum by (uuid, engine) (count_over_time(nvidia_gpu_media_activity_ratio{$sel}[$w])) " +
				">= on (uuid) group_left () " + count("nvidia_gpu_info"),
			steps: "present_over_time(nvidia_gpu_media_activity_ratio{$sel}[5m])",
		},
		engines:     "avg_over_time(nvidia_gpu_media_activity_ratio{$sel}[5m]) > 0",
		enginesMost: "max_over_time(nvidia_gpu_media_activity_ratio{$sel}[5m]) > 0",
		mig:         most("nvidia_gpu_mig_enabled") + " > 0",
		advice: "max by (uuid, recommended_profile, reason) (max_over_time(" +
			"timestamp(nvidia_gpu_rightsizing_candidate{$sel})[26h:5m]) or max_over_time(" +
			`timestamp(nvidia_gpu_rightsizing_rejected{$sel,reason!="little-evidence"})[26h:5m]))`,
		busy:        mean("nvidia_gpu_graphics_engine_activity_ratio"),
		utilization: mean("nvidia_gpu_utilization_ratio"),
		sms:         mean("nvidia_gpu_sm_activity_ratio"),
		bandwidth:   mean("nvidia_gpu_dram_activity_ratio"),
		held: []string{"present_over_time(nvidia_gpu_pod_info{$sel}[5m])",
			"present_over_time(nvidia_gpu_hpc_job_info{$sel}[5m])"},
		holding: []string{"max_over_time(nvidia_gpu_allocated{$sel}[5m])",
			"max_over_time(nvidia_gpu_processes{$sel}[5m]) > 0"},
		memory:      "max by (uuid) (max_over_time(nvidia_gpu_memory_used_bytes{$sel}[1h]))",
		leastMemory: "min by (uuid) (min_over_time(nvidia_gpu_memory_used_bytes{$sel}[1h]))",
		memoryRead: presence{
			complete: count("nvidia_gpu_memory_used_bytes") + " >= " + count("nvidia_gpu_info"),
			steps:    "present_over_time(nvidia_gpu_memory_used_bytes{$sel}[5m])",
		},
	}
}

// sumOfDirections returns an expression for the traffic of a link in both directions, or in the one
// that has a result.
func sumOfDirections(uuid model.LabelName, sent, received string) string {
	return "sum by (" + string(uuid) + ") (" + eitherOf("direction", sent, received) + ")"
}

// eitherOf returns an expression with the results of two others. Those of the second one get another
// label, so that they are kept beside those of the first.
func eitherOf(label, first, second string) string {
	return first + ` or label_replace(` + second + `, "` + label + `", "second", "", "")`
}

// dcgmNames are the names and units of metrics, which differ between releases of dcgm-exporter.
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

// dcgm returns the dialect of a release of dcgm-exporter. While a pod holds a GPU, the GPU's series
// have its name in a label pod. If Prometheus has put the exporter's own pod there, they have it in
// exported_pod; without a holder, the label pod then names the exporter.
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
	over := func(function, family, window string) string {
		return function + `(` + family + `{$sel,GPU_I_ID=""}[` + window + `])`
	}
	count := func(family string) string {
		return "sum by (UUID) (" + over("count_over_time", family, "$w") + ")"
	}

	const (
		sent     = "DCGM_FI_PROF_NVLINK_TX_BYTES"
		received = "DCGM_FI_PROF_NVLINK_RX_BYTES"
	)

	// In how many scrapes a GPU was. Not all exporters serve both, nor all the time.
	scrapes := greater(count(n.busy), count(n.utilization))

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
		nvlink: "max by (UUID) (" + eitherOf("family", most(n.nvlink)+n.megabytes,
			sumOfDirections("UUID", most(sent), most(received))) + ")",
		nvlinkRead: presence{
			complete: "(" + count(n.nvlink) + " or " + lesser(count(sent), count(received)) + ") >= (" + scrapes + ")",
			steps: over("present_over_time", n.nvlink, "5m") + " or on (UUID) (" +
				over("present_over_time", sent, "5m") + " and on (UUID) " +
				over("present_over_time", received, "5m") + ")",
		},
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
		// A holder would be on it, unless its name could not be read: then its memory shows it.
		holding: []string{over("max_over_time", n.used, "5m") + n.mebibytes + " > bool " +
			strconv.Itoa(advise.ContextBytes)},
		memory:      "max by (UUID) (max_over_time(" + n.used + `{$sel,GPU_I_ID=""}[1h]))` + n.mebibytes,
		leastMemory: "min by (UUID) (min_over_time(" + n.used + `{$sel,GPU_I_ID=""}[1h]))` + n.mebibytes,
		memoryRead: presence{
			complete: count(n.used) + " >= (" + scrapes + ")",
			steps:    over("present_over_time", n.used, "5m"),
		},
	}
}

// render fills in an expression of a dialect: $sel, $w, $inside, which is a second shorter than the window,
// and $places, the labels that say where a GPU is.
func render(template, selectors string, window time.Duration, places string) string {
	if selectors == "" {
		template = strings.ReplaceAll(template, "$sel,", "")
	}

	values := strings.NewReplacer(
		"$sel", selectors,
		"$w", model.Duration(window).String(),
		"$inside", model.Duration(window-time.Second).String(),
		"$places", places,
	)

	return values.Replace(template)
}
