package sim

import (
	"fmt"
	"strings"
	"time"
)

// Server is an inference server: it loads the weights of a model, prepares, and then reserves a
// fraction of its device's memory, whether it needs that or not. What it reserves beside the weights
// is its cache.
type Server struct {
	// Kind decides the names of its metrics.
	Kind     string        `default:"vllm" oneof:"vllm sglang"`
	Weights  memorySize    `expected:"the memory of the model, such as 14GiB"`
	Fraction share         `default:"0.9"`
	Load     time.Duration `default:"1m" nonzero:"more than no time"`
	Prepare  time.Duration `default:"40s" nonzero:"more than no time"`
	// TokenBytes is the memory that a token takes in the cache. PresentTokens is how many tokens the
	// present requests have together.
	TokenBytes    memorySize           `yaml:"token" default:"128KiB"`
	PresentTokens signalOf[tokenCount] `yaml:"tokens,omitempty"`
	// PresentRequests is how many requests the server has: those that it runs and those that wait.
	PresentRequests signalOf[requestCount] `yaml:"active,omitempty"`
	// Rate is how many requests end in a second. Each takes RequestTime and has an answer of
	// AnswerTokens.
	Rate         requestsPerSec `default:"0"`
	RequestTime  time.Duration  `yaml:"each" default:"2s"`
	AnswerTokens tokenCount     `yaml:"answer" default:"200"`
}

// serverContext is the memory in bytes that a server takes before it loads anything (our
// choice, not measured).
const serverContext = 500 << 20

// memoryAfter returns the bytes of memory that a server wants some time after its start, on a device
// with size bytes. If the reserved fraction has no room for more than the weights, the server wants
// more than the device has: a real one fails then, too.
func (s *Server) memoryAfter(t time.Duration, size uint64) uint64 {
	loaded := serverContext + float64(s.Weights)
	switch reserved := float64(s.Fraction) * float64(size); {
	case t < s.Load:
		return uint64(serverContext + float64(s.Weights)*t.Seconds()/s.Load.Seconds())
	case t < s.Load+s.Prepare:
		return uint64(loaded)
	case reserved <= loaded:
		return size + 1
	default:
		return uint64(reserved)
	}
}

// cacheTokens returns how many tokens the cache has room for on a device with size bytes.
func (s *Server) cacheTokens(size uint64) float64 {
	cache := float64(s.Fraction)*float64(size) - serverContext - float64(s.Weights)
	return max(0, cache/float64(s.TokenBytes))
}

// ServerMetrics returns the metrics that the inference server of a running pod serves, in
// Prometheus' text format. It returns false if the pod has no server, or the server does not serve
// yet.
func (n *Node) ServerMetrics(podUID string) (text string, ok bool) {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	for _, g := range n.gpus {
		for _, t := range g.tasks {
			if t.workload == nil || t.workload.Server == nil || t.proc.pod == nil ||
				t.proc.pod.uid != podUID {
				continue
			}

			s := t.workload.Server

			serving := n.stateTime.Sub(t.started) - s.Load - s.Prepare
			if serving < 0 {
				return "", false
			}

			size := memoryDomain{g, t.on.instance}.usable()

			return s.metrics(
				serving,
				uint64(float64(size)*t.share),
				t.now(n, s.PresentTokens.Signal),
				t.now(n, s.PresentRequests.Signal),
			), true
		}
	}

	return "", false
}

// metrics returns the metrics of a server that has served for some time on a device with size bytes,
// and now has some present requests with some tokens. If the cache has no room for all tokens, a part
// of the requests waits. How long they wait is not simulated: the latency is RequestTime alone.
func (s *Server) metrics(serving time.Duration, size uint64, tokens, present float64) string {
	room := s.cacheTokens(size)
	fitting := 1. // the share of the tokens, and so of the requests, for which there is room

	if tokens > room {
		fitting = room / tokens
	}

	running := float64(int(present * fitting))
	waiting := float64(int(present)) - running
	ended := float64(int64(float64(s.Rate) * serving.Seconds()))
	use := min(1, tokens/max(room, 1))

	var b strings.Builder

	put := func(name string, value float64) { fmt.Fprintf(&b, "%s %v\n", name, value) }
	if s.Kind == "sglang" {
		put("sglang:num_running_reqs", running)
		put("sglang:num_queue_reqs", waiting)
		put("sglang:token_usage", use)
		put("sglang:max_total_num_tokens", room)
		put("sglang:generation_tokens_total", ended*float64(s.AnswerTokens))
		put("sglang:e2e_request_latency_seconds_count", ended)
		put("sglang:e2e_request_latency_seconds_sum", ended*s.RequestTime.Seconds())
		put("sglang:queue_time_seconds_sum", 0)

		return b.String()
	}

	put("vllm:num_requests_running", running)
	put("vllm:num_requests_waiting", waiting)
	put("vllm:kv_cache_usage_perc", use)
	put("vllm:generation_tokens_total", ended*float64(s.AnswerTokens))
	put("vllm:request_inference_time_seconds_count", ended)
	put("vllm:request_inference_time_seconds_sum", ended*s.RequestTime.Seconds())
	put(
		fmt.Sprintf(
			`vllm:cache_config_info{block_size="16",gpu_memory_utilization="%v",num_gpu_blocks="%d"}`,
			float64(s.Fraction),
			int64(room/16),
		),
		1,
	)

	return b.String()
}
