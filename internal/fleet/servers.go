package fleet

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// serverMetrics are the names of the metrics that a kind of inference server serves, for servers
// whose pods Prometheus scrapes. Package inference names their sources. A name is empty if the
// server has no such metric.
type serverMetrics struct {
	kind    gpu.ServerKind
	any     string   // a metric that every such server has
	cache   []string // how much of the cache is used, 0-1; also under older names
	tokens  string   // for how many tokens the cache has room
	running string   // requests that are being served
	waiting string   // requests that wait
}

func knownServers() []serverMetrics {
	// Triton has a cache only with TensorRT-LLM. Its other backends take memory as they need it.
	const trt = "nv_trt_llm_kv_cache_block_metrics"
	state := func(s string) string { return `nv_trt_llm_request_metrics{request_type="` + s + `"}` }

	return []serverMetrics{
		{
			kind: gpu.ServerVLLM,
			any:  "vllm:num_requests_running",
			cache: []string{
				"vllm:kv_cache_usage_perc",
				"vllm:gpu_cache_usage_perc",
			},
			running: "vllm:num_requests_running",
			waiting: "vllm:num_requests_waiting",
		},
		{
			kind:    gpu.ServerSGLang,
			any:     "sglang:num_running_reqs",
			cache:   []string{"sglang:token_usage"},
			tokens:  "sglang:max_total_num_tokens",
			running: "sglang:num_running_reqs",
			waiting: "sglang:num_queue_reqs",
		},
		{
			kind:    gpu.ServerTGI,
			any:     "tgi_queue_size",
			running: "tgi_batch_current_size",
			waiting: "tgi_queue_size",
		},
		{
			kind:    gpu.ServerTriton,
			any:     trt + `{kv_cache_block_type="max"}`,
			running: state("scheduled"),
			waiting: state("waiting"),
		},
	}
}

// One query asks for all figures of a server. The label "figure" of a result says which one it is.
const (
	figureSeen    = "seen" // there is a server
	figureCache   = "cache"
	figureSteps   = "steps" // number of steps in which the use of the cache has a sample
	figureTokens  = "tokens"
	figureRunning = "running"
	figureWaiting = "waiting"
)

// query returns one expression for all figures of the servers of a kind: their largest values in the
// window, by the labels in by, which name a pod.
func (s *serverMetrics) query(by string) string {
	most := func(selector string) string { return "max by (" + by + ") (max_over_time(" + selector + "[$w]))" }
	var parts []string
	add := func(figure, expression string) {
		parts = append(parts, `label_replace(`+expression+`, "figure", "`+figure+`", "", "")`)
	}

	add(figureSeen, most(s.any))

	for _, selector := range s.cache {
		add(figureCache, most(selector))
		// A pod can have several series after one another. Prometheus 2 counts both ends of a window of whole
		// steps, Prometheus 3 one.
		add(figureSteps, "count_over_time(max by ("+by+") ("+selector+")[$inside:5m])")
	}

	for _, optional := range []struct{ figure, selector string }{
		{figureTokens, s.tokens}, {figureRunning, s.running}, {figureWaiting, s.waiting},
	} {
		if optional.selector != "" {
			add(optional.figure, most(optional.selector))
		}
	}

	return strings.Join(parts, " or ")
}

// weightsQuery has the annotation mig-exporter.io/model-memory of pods, if kube-state-metrics
// serves it (--metric-annotations-allowlist=pods=[mig-exporter.io/model-memory]), and the one under
// its former domain.
//
// https://github.com/kubernetes/kube-state-metrics/blob/main/docs/metrics/workload/pod-metrics.md
const (
	weightsLabel       = "annotation_mig_exporter_io_model_memory"
	formerWeightsLabel = "annotation_mig_exporter_dev_model_memory"

	weightsQuery = "group by ($places, namespace, pod, " + weightsLabel + ", " + formerWeightsLabel + ") (" +
		"last_over_time(kube_pod_annotations{" + weightsLabel + `!=""}[$w])` +
		" or last_over_time(kube_pod_annotations{" + formerWeightsLabel + `!=""}[$w]))`
)

// podKey names a pod of a cluster.
type podKey struct{ cluster, namespace, pod string }

// queryServers queries what inference servers report in the window.
func (a *analysis) queryServers(ctx context.Context) error {
	a.servers = map[podKey]*advise.ServerHistory{}
	by := a.options.ClusterLabel + ", namespace, pod"

	for _, s := range knownServers() {
		if err := a.queryKind(ctx, &s, by); err != nil {
			return err
		}
	}

	if len(a.servers) == 0 {
		return nil
	}

	rows, err := a.client.vector(
		ctx,
		render(weightsQuery, "", a.options.Window, a.options.ClusterLabel),
		a.end,
	)
	if err != nil && !isTooMuch(err) {
		return err
	}

	a.serversRefused = a.serversRefused || err != nil

	// We read the current name last: it wins, also over a series that a pod had earlier in the
	// window.
	for _, label := range []model.LabelName{formerWeightsLabel, weightsLabel} {
		for _, row := range rows {
			if s := a.servers[a.podOf(row)]; s != nil && row.Metric[label] != "" {
				bytes, _ := gpu.ParseModelMemory(string(row.Metric[label]))
				s.Weights = float64(bytes)
			}
		}
	}

	return nil
}

// queryKind queries what the servers of a kind report, a day at a time, or half as much after each query
// that is too much for Prometheus. If it refuses even an hour, we don't ask for the rest of the window,
// in which all servers of the kind then count as silent.
func (a *analysis) queryKind(ctx context.Context, s *serverMetrics, by string) error {
	query := s.query(by)
	size := 24 * time.Hour

	for from := time.Duration(0); from < a.options.Window; {
		window := min(size, a.options.Window-from)

		rows, err := a.client.vector(ctx, render(query, "", window, by), a.end.Add(-from))

		if isTooMuch(err) {
			if size = (window / 2).Truncate(step); size < hour {
				a.serversRefused = true
				return nil
			}

			continue
		}

		if err != nil {
			return err
		}

		for _, row := range rows {
			a.addServer(s.kind, row)
		}

		from += window
	}

	return nil
}

func (a *analysis) podOf(row *model.Sample) podKey {
	return podKey{
		string(row.Metric[model.LabelName(a.options.ClusterLabel)]),
		string(row.Metric["namespace"]),
		string(row.Metric["pod"]),
	}
}

// addServer adds a figure of a server.
func (a *analysis) addServer(kind gpu.ServerKind, row *model.Sample) {
	key := a.podOf(row)

	value := float64(row.Value)
	if key.pod == "" || !(value >= 0) {
		return
	}

	s := a.servers[key]
	if s == nil {
		s = &advise.ServerHistory{Kind: kind}
		a.servers[key] = s
	}

	if s.Kind != kind {
		s.Kind = "" // with two servers we don't know which one holds the cache
	}

	switch string(row.Metric["figure"]) {
	case figureCache:
		s.CacheUse = max(s.CacheUse, min(value, 1))
	case figureSteps:
		s.CacheHours += value * step.Hours()
	case figureTokens:
		s.CacheTokens = max(s.CacheTokens, value)
	case figureRunning:
		s.Running = max(s.Running, value)
	case figureWaiting:
		s.Waiting = max(s.Waiting, value)
	}
}

// addServerOf adds to f the reports of the servers in all pods that held a GPU. isMixed is true if a
// pod without a server held it, too, or if the servers are of several kinds: then their reports don't
// say how much memory all of the pods need.
func (a *analysis) addServerOf(g *fleetGPU, f *advise.Facts) (isMixed bool) {
	var all *advise.ServerHistory

	unnamed := g.history.unnamedSteps()

	for pod, steps := range g.history.pods {
		pod.cluster = g.cluster
		server := a.servers[pod]

		if server != nil {
			copied := *server
			copied.HeldHours = (time.Duration(steps+unnamed) * step).Hours()
			server = &copied
		}

		switch {
		case server == nil:
			isMixed = true
		case all == nil:
			all = server
		default:
			isMixed = isMixed || server.Kind != all.Kind
			all.Add(server)
		}
	}

	switch {
	case all == nil:
		return false
	case isMixed:
		f.Preallocated = true
	default:
		f.AddServer(all, a.options.Advise)
	}

	return isMixed
}

// mayHideServer reports whether one of the pods that held a GPU may have an inference server that Prometheus
// has refused to answer about: what it holds may be a reservation.
func (a *analysis) mayHideServer(h *history, f *advise.Facts) bool {
	return a.serversRefused && f.Evidence.Server == nil && len(h.pods) > 0
}

// unnamedSteps returns in how many steps something without a name held the GPU, or may have: each of the
// pods that we know may have been that.
func (h *history) unnamedSteps() int {
	unnamed := 0
	for at, held := range h.held {
		unnamed += boolToInt(held && h.holders[at] == 0)
	}

	return unnamed
}

// mixedText explains why a GPU stays whole if one pod's server says nothing about the others.
const mixedText = "an inference server reserves memory, and held it for only a part of the " +
	"window: what the others need cannot be told from what it reserves"
