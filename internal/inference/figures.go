// Package inference reads the metrics of inference servers, in Prometheus' text format: vLLM,
// SGLang, text-generation-inference and Triton. It makes no calls.
//
// The names come from the servers' sources and documentation:
//
//	vLLM     vllm/v1/metrics/loggers.py and vllm/engine/metrics.py of https://github.com/vllm-project/vllm
//	SGLang   python/sglang/srt/metrics/collector.py of https://github.com/sgl-project/sglang
//	TGI      docs/source/reference/metrics.md of https://github.com/huggingface/text-generation-inference
//	Triton   docs/user_guide/metrics.md of https://github.com/triton-inference-server/server, and
//	         for its TensorRT-LLM backend README.md of
//	         https://github.com/triton-inference-server/tensorrtllm_backend
package inference

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// figure is a quantity that metrics report.
type figure int

const (
	running figure = iota
	waiting
	cacheUse    // a share, 0-1
	cacheTokens // how many tokens the cache has room for
	promptTokens
	generatedTokens
	requests       // how many have ended
	requestSeconds // the sum of their duration
	waitedSeconds  // the part of requestSeconds in which they waited
	servedSeconds  // the rest of requestSeconds
	usedBlocks     // of the cache
	maxBlocks
	blockTokens
	figureCount
)

// metric is a metric of a server. If its samples mean different things by a label, label and value
// say which of them count.
type metric struct {
	name         string
	label, value string // empty: all samples count
	figure       figure
	factor       float64 // converts to the unit of the figure; 0 means 1
}

// server is a program and its metrics. If several metrics report a figure, we use the first one
// that there is.
type server struct {
	kind    gpu.ServerKind
	metrics []metric
	// info is a metric whose labels say how the cache is configured; blockTokens and blocks are its
	// labels with the tokens of a block and the number of blocks.
	info, blockTokens, blocks string
}

// servers returns the known servers. Triton can run vLLM and then has vLLM's metrics, too: we use
// the first server whose metrics there are.
func servers() []server {
	return []server{vllm(), sglang(), tgi(), triton()}
}

// vllm returns vLLM's metrics. Version 1 renamed gpu_cache_usage_perc to kv_cache_usage_perc, and
// served both for a while.
func vllm() server {
	return server{
		kind:        gpu.ServerVLLM,
		info:        "vllm:cache_config_info",
		blockTokens: "block_size",
		blocks:      "num_gpu_blocks",
		metrics: []metric{
			{name: "vllm:num_requests_running", figure: running},
			{name: "vllm:num_requests_waiting", figure: waiting},
			{name: "vllm:kv_cache_usage_perc", figure: cacheUse},
			{name: "vllm:gpu_cache_usage_perc", figure: cacheUse},
			{name: "vllm:prompt_tokens_total", figure: promptTokens},
			{name: "vllm:generation_tokens_total", figure: generatedTokens},

			{name: "vllm:request_inference_time_seconds_count", figure: requests},
			{name: "vllm:e2e_request_latency_seconds_count", figure: requests},
			{name: "vllm:request_inference_time_seconds_sum", figure: servedSeconds},
			{name: "vllm:e2e_request_latency_seconds_sum", figure: requestSeconds},
			{name: "vllm:request_queue_time_seconds_sum", figure: waitedSeconds},
		},
	}
}

// sglang returns SGLang's metrics. Releases differ in where they say how large the cache is.
func sglang() server {
	return server{
		kind:        gpu.ServerSGLang,
		info:        "sglang:cache_config_info",
		blockTokens: "page_size",
		blocks:      "num_pages",
		metrics: []metric{
			{name: "sglang:num_running_reqs", figure: running},
			{name: "sglang:num_queue_reqs", figure: waiting},
			{name: "sglang:token_usage", figure: cacheUse},
			{name: "sglang:max_total_num_tokens", figure: cacheTokens},
			{name: "sglang:prompt_tokens_total", figure: promptTokens},
			{name: "sglang:generation_tokens_total", figure: generatedTokens},
			{name: "sglang:e2e_request_latency_seconds_count", figure: requests},
			{name: "sglang:e2e_request_latency_seconds_sum", figure: requestSeconds},
			{name: "sglang:queue_time_seconds_sum", figure: waitedSeconds},
		},
	}
}

// tgi returns the metrics of text-generation-inference. It does not say how much of its cache is
// used.
func tgi() server {
	return server{
		kind: gpu.ServerTGI,
		metrics: []metric{
			{name: "tgi_batch_current_size", figure: running},
			{name: "tgi_queue_size", figure: waiting},
			{name: "tgi_request_input_length_sum", figure: promptTokens},
			{name: "tgi_request_generated_tokens_sum", figure: generatedTokens},
			{name: "tgi_request_inference_duration_count", figure: requests},
			{name: "tgi_request_inference_duration_sum", figure: servedSeconds},
		},
	}
}

// triton returns Triton's metrics, those of its TensorRT-LLM backend first. The backend's
// "fraction" of blocks is not read: in the sample of its documentation it is not the share of those
// that are used.
func triton() server {
	const blocks, kind = "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type"
	const count, state = "nv_trt_llm_request_metrics", "request_type"

	return server{
		kind: gpu.ServerTriton,
		metrics: []metric{
			{name: count, label: state, value: "scheduled", figure: running},
			{name: count, label: state, value: "active", figure: running},
			{name: count, label: state, value: "waiting", figure: waiting},
			{name: "nv_inference_pending_request_count", figure: waiting},
			{name: blocks, label: kind, value: "used", figure: usedBlocks},
			{name: blocks, label: kind, value: "max", figure: maxBlocks},
			{name: blocks, label: kind, value: "tokens_per", figure: blockTokens},
			{name: "nv_inference_request_success", figure: requests},
			{name: "nv_inference_request_duration_us", figure: requestSeconds, factor: 1e-6},
			{name: "nv_inference_queue_duration_us", figure: waitedSeconds, factor: 1e-6},
		},
	}
}

// isMaximum reports whether the largest of several values counts, instead of their sum.
func (f figure) isMaximum() bool { return f == cacheUse || f == blockTokens }

// isUsable reports whether a value can be that of a figure: a tenant can write anything.
func (f figure) isUsable(v float64) bool {
	limit := 1e15 // more tokens than a server makes in a hundred years
	if f == cacheUse {
		limit = 1
	}

	return v >= 0 && v <= limit // NaN is not
}

// sums are the figures of a server. Over its models and engines we add them up, or take the largest
// (isMaximum).
type sums [figureCount]gpu.Opt[float64]

func (s *sums) add(f figure, v float64) {
	if !f.isUsable(v) {
		return
	}

	before, ok := s[f].Get()
	switch {
	case !ok:
		s[f] = gpu.Some(v)
	case f.isMaximum():
		s[f] = gpu.Some(max(before, v))
	default:
		s[f] = gpu.Some(before + v)
	}
}

// serverFigures returns what the sums say of a server.
func (s *sums) serverFigures(kind gpu.ServerKind) gpu.ServerFigures {
	s.addBlocks()

	return gpu.ServerFigures{
		Kind:             kind,
		Running:          s[running],
		Waiting:          s[waiting],
		CacheUse:         s[cacheUse],
		CacheTokens:      s[cacheTokens],
		PromptTokens:     s[promptTokens],
		GeneratedTokens:  s[generatedTokens],
		FinishedRequests: s[requests],
		ServiceSeconds:   s.serviceSeconds(),
	}
}

// addBlocks adds what follows from the blocks of the cache, unless a metric reports it.
func (s *sums) addBlocks() {
	all, allOK := s[maxBlocks].Get()
	used, usedOK := s[usedBlocks].Get()
	tokens, tokensOK := s[blockTokens].Get()

	if allOK && usedOK && all > 0 && !s[cacheUse].Present() {
		s.add(cacheUse, used/all)
	}

	if allOK && tokensOK && all*tokens > 0 && !s[cacheTokens].Present() {
		s.add(cacheTokens, all*tokens)
	}
}

// serviceSeconds returns how long requests took without the time in which they waited; absent if
// that is unknown.
func (s *sums) serviceSeconds() gpu.Opt[float64] {
	if s[servedSeconds].Present() {
		return s[servedSeconds]
	}

	all, allOK := s[requestSeconds].Get()

	wait, waitOK := s[waitedSeconds].Get()
	if !allOK || !waitOK || wait > all {
		return gpu.None[float64]()
	}

	return gpu.Some(all - wait)
}

// Names returns the names of the metrics that are read, sorted.
func Names() []string {
	var names []string

	for _, s := range servers() {
		for _, m := range s.metrics {
			names = append(names, m.name)
		}

		if s.info != "" {
			names = append(names, s.info)
		}
	}

	slices.Sort(names)

	return slices.Compact(names)
}
