package fleet

import (
	"fmt"
	"testing"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestServersOfAHistory: what a pod's server says is the need of what held the GPU only if every
// pod that did has a server of that kind, of which the weights are known.
func TestServersOfAHistory(t *testing.T) {
	o := weekly()
	const gib = 1 << 30
	vllm := func(weights float64) *advise.ServerHistory {
		return &advise.ServerHistory{Kind: gpu.ServerVLLM, CacheUse: 0.05, CacheHours: 100, Weights: weights * gib}
	}
	sglang := vllm(14)
	sglang.Kind = gpu.ServerSGLang
	unclear := vllm(14)
	unclear.Kind = ""

	const unknown = "keep preallocated "
	for about, c := range map[string]struct {
		servers map[string]*advise.ServerHistory // by pod; nil of one that is no server
		job     bool                             // a batch job held the GPU, too
		want    string
		says    string
	}{
		"no server":               {map[string]*advise.ServerHistory{"a": nil}, false, "keep memory ", ""},
		"one":                     {map[string]*advise.ServerHistory{"a": vllm(14)}, false, "slice  3g.40gb", "vLLM says of itself"},
		"two":                     {map[string]*advise.ServerHistory{"a": vllm(14), "b": vllm(10)}, false, "slice  3g.40gb", "vLLM says of itself"},
		"a pod that is none":      {map[string]*advise.ServerHistory{"a": vllm(14), "b": nil}, false, unknown, "what the others need"},
		"a batch job":             {map[string]*advise.ServerHistory{"a": vllm(14)}, true, unknown, "what the others need"},
		"two kinds":               {map[string]*advise.ServerHistory{"a": vllm(14), "b": sglang}, false, unknown, "what the others need"},
		"two in a pod":            {map[string]*advise.ServerHistory{"a": unclear}, false, unknown, ""},
		"weights of one of three": {map[string]*advise.ServerHistory{"a": vllm(14), "b": vllm(0), "c": vllm(14)}, false, unknown, "model-memory"},
	} {
		d := narrow(o)
		s := analysisOf(o)

		for i := range d.history.memory {
			d.history.memory[i] = 60 * gib
		}

		d.history.memory[0] = gib // the framework of what is no server takes memory as it needs it
		s.servers = map[podKey]*advise.ServerHistory{}

		all := heldByHolder{}
		for pod, server := range c.servers {
			all.add(d.history, 0, model.Metric{"namespace": "ml", "pod": model.LabelValue(pod)}, 1)

			if server != nil {
				s.servers[podKey{"a", "ml", pod}] = server
			}
		}

		if c.job {
			all.add(d.history, 0, model.Metric{"hpc_job": "4711"}, 1)
		}

		answer := judgeOne(s, d)
		cmptest.Equal(t, about, fmt.Sprintf("%s %s %s", answer.Action, answer.Reason, answer.Profile), c.want)
		cmptest.HasTexts(t, answer.Explanation, c.says)
	}
}

// TestTwoServersInAPod: of two servers in a pod we do not know which one holds the cache.
func TestTwoServersInAPod(t *testing.T) {
	s := analysisOf(weekly())
	s.options.ClusterLabel = "cluster"
	s.servers = map[podKey]*advise.ServerHistory{}
	row := &model.Sample{Metric: model.Metric{"cluster": "a", "namespace": "ml", "pod": "p", "figure": figureSeen}}
	s.addServer(gpu.ServerVLLM, row)
	s.addServer(gpu.ServerVLLM, row)
	cmptest.Equal(t, "kind", s.servers[podKey{"a", "ml", "p"}].Kind, gpu.ServerVLLM)
	s.addServer(gpu.ServerTGI, row)
	s.addServer(gpu.ServerVLLM, row)
	cmptest.Equal(t, "kind of two", s.servers[podKey{"a", "ml", "p"}].Kind, "")
}
