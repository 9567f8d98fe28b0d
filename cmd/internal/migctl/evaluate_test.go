package migctl

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// evaluation is what the exporter of a simulated node answers.
func evaluation() sim.Evaluation {
	at := time.Date(2026, 1, 8, 16, 0, 0, 0, time.UTC)
	predicted := &sim.Prediction{Time: at, Profile: "2g.20gb", Low: 1.56, Middle: 1.98, High: 2.69, Throughput: 1}

	return sim.Evaluation{APIVersion: "mig-exporter/v1", Time: at, Node: "h100-a", Processes: []sim.Outcome{
		{
			GPU: "GPU-0a6d6b1e-7d1c-5e0e-9f5a-20b1f0c1a000", Index: 0, Namespace: "search", Pod: "embedder-0",
			Owner: "StatefulSet/embedder", Throughput: 1, Stretch: sim.Quantiles{P50: 1, P95: 1}, Predicted: predicted,
		},
		{
			Index: 1, Profile: "2g.20gb", Namespace: "search", Pod: "reranker-0", Owner: "StatefulSet/reranker",
			Throughput: 0.914, Stretch: sim.Quantiles{P50: 1.56, P95: 1.9}, Predicted: predicted,
			Requests: &sim.RequestOutcome{
				PerSecond: 36.6, AlonePerSecond: 40, Latency: sim.Quantiles{P50: 0.0312, P95: 86400},
				AloneLatency: sim.Quantiles{P50: 0.02, P95: 12},
			},
		},
		{
			Index: 1, Profile: "2g.20gb", Namespace: "a-namespace-with-a-long-name", Pod: "p-0", Throughput: 1,
			Stretch: sim.Quantiles{P50: 1.56, P95: 2.8}, Predicted: predicted,
		},
		{
			Index: 1, Profile: "2g.20gb", Namespace: "speech", Pod: "asr-0", Owner: "Deployment/asr", Throughput: 1,
			Stretch: sim.Quantiles{P50: 1.85, P95: 1.85}, Predicted: &sim.Prediction{Profile: "2g.20gb", Low: 1.5, Middle: 1.9,
				High: 2.42, LatencyLow: 1.5, LatencyHigh: 7.9, Throughput: 1},
			Requests: &sim.RequestOutcome{
				PerSecond: 8, AlonePerSecond: 8, Latency: sim.Quantiles{P50: 0.2, P95: 0.339},
				AloneLatency: sim.Quantiles{P50: 0.07, P95: 0.1},
			},
		},
		{Index: 2, PID: 4711, Throughput: 1, Stretch: sim.Quantiles{P50: 1, P95: 1}},
		{
			Index: 2, Profile: "1g.10gb", Namespace: "ml", Pod: "leak-0", Owner: "Deployment/leak",
			Failed: "out of memory on GPU 2: it wants 12288 MiB of 9979", FailedAt: at.Add(-time.Hour),
		},
	}}
}

// exporterWith returns the address of a server with one path.
func exporterWith(t *testing.T, path string, handler http.Handler) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	return server.URL
}

func TestEvaluate(t *testing.T) {
	url := exporterWith(t, "GET /-/sim/truth", answer(evaluation()))

	got := runner{}.run(t, "unix:///none", "evaluate", "--url="+url)
	if got.code != exitOK {
		t.Fatalf("%+v", got)
	}

	golden(t, "evaluate.txt", got.out)
	fits(t, got.out)

	colored := runner{terminal: true, env: map[string]string{"LANG": "C.UTF-8", "TERM": "xterm"}}.
		run(t, "unix:///none", "evaluate", "--url="+url, "--color=always", "1")
	cmptest.HasTexts(t, colored.out, "\x1b[32m  1 search/reranker", "\x1b[31m  1 a-namespace-with")
	cmptest.LacksTexts(t, colored.out, "embedder", "leak")

	json := runner{}.run(t, "unix:///none", "evaluate", "--url="+url, "-o", "json", "2")
	cmptest.HasTexts(t, json.out, `"pid": 4711`, `"failed": "out of memory on GPU 2`, `"node": "h100-a"`)
	cmptest.LacksTexts(t, json.out, "embedder", "reranker")
	yaml := runner{}.run(t, "unix:///none", "evaluate", "--url="+url, "-o", "yaml")
	cmptest.HasTexts(t, yaml.out, "stretchExpected: 1.98", "alonePerSecond: 40", "pod: embedder-0")
}

// TestEvaluateNothing: a node on which nothing runs.
func TestEvaluateNothing(t *testing.T) {
	url := exporterWith(t, "GET /-/sim/truth", answer(sim.Evaluation{Node: "n"}))
	got := runner{}.run(t, "unix:///none", "evaluate", "--url="+url)
	cmptest.HasTexts(t, got.out, "No process runs on a GPU.", "No process was killed.")
	cmptest.LacksTexts(t, got.out, "WORK is")
}

// TestEvaluateOfARealNode: only the simulated node knows the truth; the error says so.
func TestEvaluateOfARealNode(t *testing.T) {
	broken := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	for _, c := range []struct {
		about, url string
		code       int
		text       string
	}{
		{"a real node", exporterWith(t, "GET /metrics", broken), exitFailed, "serves a real node"},
		{"another server", exporterWith(t, "/", broken), exitUnreachable, "502 Bad Gateway"},
		{"no document", exporterWith(t, "/", raw("<html>")), exitUnreachable, "is not what migctl"},
		{"nothing", "http://127.0.0.1:1", exitUnreachable, "--web.listen-address"},
		{"the control socket", "unix:///run/x", exitUsage, "expected http://HOST:PORT"},
		{"a path", "http://localhost:9401/metrics", exitUsage, "expected http://HOST:PORT"},
	} {
		got := runner{}.run(t, "unix:///none", "evaluate", "--url="+c.url)
		if got.code != c.code || got.out != "" {
			t.Errorf("%s: code %d, want %d; %s", c.about, got.code, c.code, got.out)
		}

		cmptest.HasTexts(t, flat(got.err), c.text)
	}
}
