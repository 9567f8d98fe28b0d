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
	any     string // a metric that every such server has: it names the pods with a server
	cache   string // how much of the cache is used, 0-1
	former  string // a name that this had before
	blocks  string // or the same as an expression, of numbers of blocks
	tokens  string // for how many tokens the cache has room
	running string // requests that are being served
	waiting string // requests that wait
}

func knownServers() []serverMetrics {
	// Triton has a cache only with TensorRT-LLM. Its other backends take memory as they need it.
	blocks := func(which string) string {
		return `nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="` + which + `"}`
	}
	state := func(s string) string { return `nv_trt_llm_request_metrics{request_type="` + s + `"}` }

	return []serverMetrics{
		{
			kind:    gpu.ServerVLLM,
			any:     "vllm:num_requests_running",
			cache:   "vllm:kv_cache_usage_perc",
			former:  "vllm:gpu_cache_usage_perc",
			running: "vllm:num_requests_running",
			waiting: "vllm:num_requests_waiting",
		},
		{
			kind:    gpu.ServerSGLang,
			any:     "sglang:num_running_reqs",
			cache:   "sglang:token_usage",
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
			any:     blocks("max"),
			blocks:  blocks("used") + " / ignoring (kv_cache_block_type) " + blocks("max"),
			running: state("scheduled"),
			waiting: state("waiting"),
		},
	}
}

// serverList returns one expression for the pods with servers in the window, by the labels in by, which
// name a pod. The label "kind" of a result says of which kind its server is.
func serverList(by string) string {
	var parts []string

	for _, s := range knownServers() {
		parts = append(parts, `label_replace(group by (`+by+`) (present_over_time(`+s.any+`[$w])), "kind", "`+
			string(s.kind)+`", "", "")`)
	}

	return strings.Join(parts, " or ")
}

// One query asks for all figures of a server. The label "figure" of a result says which one it is.
const (
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

	addCache := func(use, largest string) {
		add(figureCache, "max by ("+by+") ("+largest+")")
		// A pod can have several series after one another. Prometheus 2 counts both ends of a window of whole
		// steps, Prometheus 3 one.
		add(figureSteps, "count_over_time(max by ("+by+") ("+use+")[$inside:5m])")
	}

	switch {
	case s.former != "": // an update of the server can change the name within the window
		addCache(eitherOf("name", s.cache, s.former),
			eitherOf("name", "max_over_time("+s.cache+"[$w])", "max_over_time("+s.former+"[$w])"))
	case s.cache != "":
		addCache(s.cache, "max_over_time("+s.cache+"[$w])")
	case s.blocks != "": // an expression has no samples of its own
		addCache(s.blocks, "max_over_time(("+s.blocks+")[$w:1m])")
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

// refusals are what Prometheus has refused to answer about inference servers, as too much, for some of
// the window.
type refusals struct {
	pods    bool                    // which pods have one
	weights bool                    // the memory of their models
	kinds   map[gpu.ServerKind]bool // what those of a kind report
}

// queryServers queries which pods have inference servers in the window, and what these report.
func (a *analysis) queryServers(ctx context.Context) error {
	const day = 24 * time.Hour // of all servers of a fleet: more could take longer than Prometheus allows

	a.servers = map[podKey]*advise.ServerHistory{}
	a.refused = refusals{kinds: map[gpu.ServerKind]bool{}}
	a.serverPart = a.options.Window
	by := a.options.ClusterLabel + ", namespace, pod"
	found := map[gpu.ServerKind]bool{}

	var err error

	a.refused.pods, err = a.queryParts(ctx, day, serverList(by), by, func(rows model.Vector) {
		for _, row := range rows {
			kind := gpu.ServerKind(row.Metric["kind"])
			found[kind] = a.addServer(kind, row) != nil || found[kind]
		}
	})
	if err != nil {
		return err
	}

	if len(a.servers) == 0 {
		return nil
	}

	if err := a.queryWeights(ctx); err != nil {
		return err
	}

	for _, s := range knownServers() {
		if !found[s.kind] {
			continue
		}

		a.refused.kinds[s.kind], err = a.queryParts(ctx, day, s.query(by), by, func(rows model.Vector) {
			for _, row := range rows {
				a.addFigure(s.kind, row)
			}
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// queryWeights queries the memory of the models of the servers. If the annotation of a pod has changed in
// the window, it has a series for each value, and the answer does not say which one is the last: the
// largest counts.
func (a *analysis) queryWeights(ctx context.Context) error {
	labels := []model.LabelName{weightsLabel, formerWeightsLabel}
	weights := map[model.LabelName]map[podKey]float64{weightsLabel: {}, formerWeightsLabel: {}}

	add := func(rows model.Vector) {
		for _, row := range rows {
			for _, label := range labels {
				if row.Metric[label] == "" {
					continue
				}

				pod := a.podOf(row)
				bytes, _ := gpu.ParseModelMemory(string(row.Metric[label]))
				weights[label][pod] = max(weights[label][pod], float64(bytes))
			}
		}
	}

	var err error

	a.refused.weights, err = a.queryParts(ctx, a.options.Window, weightsQuery, a.options.ClusterLabel, add)

	// The current name wins, also over a larger value under the former one.
	for pod, s := range a.servers {
		for _, label := range labels {
			if bytes, ok := weights[label][pod]; ok {
				s.Weights = bytes
				break
			}
		}
	}

	return err
}

// queryParts queries the window in parts, the latest first, and passes on the answer to each. A part is at
// most as long as serverPart, which is half as long after each query that is too much for Prometheus, also
// for later calls. If that refuses even an hour, the length is not what is wrong: serverPart is as long
// again as the first part that was answered, and we don't ask for the rest of the window.
func (a *analysis) queryParts(
	ctx context.Context, longest time.Duration, query, places string, use func(model.Vector),
) (isRefused bool, err error) {
	answered := a.serverPart

	for from := time.Duration(0); from < a.options.Window; {
		window := min(longest, a.serverPart, a.options.Window-from)

		rows, err := a.client.vector(ctx, render(query, "", window, places), a.end.Add(-from))

		if isTooMuch(err) {
			if a.serverPart = (window / 2).Truncate(step); a.serverPart < hour {
				a.serverPart = answered
				return true, nil
			}

			continue
		}

		if err != nil {
			return false, err
		}

		use(rows)

		if from == 0 {
			answered = a.serverPart
		}

		from += window
	}

	return false, nil
}

func (a *analysis) podOf(row *model.Sample) podKey {
	return podKey{
		string(row.Metric[model.LabelName(a.options.ClusterLabel)]),
		string(row.Metric["namespace"]),
		string(row.Metric["pod"]),
	}
}

// addServer returns what is known of the server that a row is about, nil if it is about none.
func (a *analysis) addServer(kind gpu.ServerKind, row *model.Sample) *advise.ServerHistory {
	key := a.podOf(row)
	if key.pod == "" {
		return nil
	}

	s := a.servers[key]
	if s == nil {
		s = &advise.ServerHistory{Kind: kind}
		a.servers[key] = s
	}

	if s.Kind != kind {
		s.Kind = "" // with two servers we don't know which one holds the cache
	}

	return s
}

// addFigure adds a figure of a server.
func (a *analysis) addFigure(kind gpu.ServerKind, row *model.Sample) {
	value := float64(row.Value)
	if !(value >= 0) {
		return
	}

	s := a.addServer(kind, row)
	if s == nil {
		return
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

// mayHideServer reports whether one of the pods that held a GPU may have an inference server of which we do
// not know, since Prometheus has refused to list them: what it holds may be a reservation.
func (a *analysis) mayHideServer(h *history, f *advise.Facts) bool {
	return a.refused.pods && f.Evidence.Server == nil && len(h.pods) > 0
}

// explainRefusal returns the explanation of why it is unknown what a server needs, with what Prometheus
// has refused to say of it. That replaces the explanation only if it is the cause: without the memory of
// the model, which no annotation names, we would not know the need whatever the server reported.
func (a *analysis) explainRefusal(s *advise.ServerEvidence, explanation string) string {
	const (
		reports = "Prometheus refused to answer what its inference server reported in some of the window, as too " +
			"much for it"
		annotations = "Prometheus refused to answer which annotations of pods say how large their models are, as " +
			"too much for it"
		unknown = ": what the server needs of what it reserves is unknown"
	)

	if s == nil || s.Need > 0 || s.Kind == "" {
		return explanation
	}

	switch lacksReports, lacksWeights := a.refused.kinds[s.Kind], a.refused.weights && s.Weights == 0; {
	case lacksReports && lacksWeights:
		return reports + ", and which annotations of pods say how large their models are" + unknown
	case lacksWeights:
		return annotations + unknown
	case lacksReports && s.Weights > 0:
		return reports + unknown
	case lacksReports:
		return explanation + ". " + reports
	}

	return explanation
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

// explainMixed returns why a GPU stays whole if one pod's server says nothing about the others.
func (a *analysis) explainMixed() string {
	const mixed = "an inference server reserves memory, and held it for only a part of the window: what the " +
		"others need cannot be told from what it reserves"

	if a.refused.pods {
		return mixed + ". They may have servers, too: Prometheus refused to answer which pods do in some of the " +
			"window, as too much for it"
	}

	return mixed
}
