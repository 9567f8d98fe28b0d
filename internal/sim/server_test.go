package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// serverScenario has a server of 14 GiB of weights on a device of an H100.
const serverScenario = `version: 1
gpus: [{model: H100-80GB%MIG%}]
workloads:
- {name: chat, width: 6, busy: 0.4, server: {kind: %KIND%, weights: 14GiB, tokens: 100000, active: 10, rate: 2}}
pods: [{name: chat-0, resource: %RESOURCE%, workload: chat}]
`

func serverNode(t *testing.T, kind, mig, resource string) *Node {
	t.Helper()
	text := strings.NewReplacer("%MIG%", mig, "%KIND%", kind, "%RESOURCE%", resource).Replace(serverScenario)

	s, err := Parse("servers.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	return startScenario(t, s)
}

// podUID returns the UID of a pod.
func podUID(t *testing.T, n *Node, name string) string {
	t.Helper()

	for _, c := range n.Containers() {
		if c.Pod == name {
			return c.PodUID
		}
	}

	t.Fatalf("no pod %s", name)

	return ""
}

// TestServerTakesAFraction: it loads its weights, is flat, and takes a fraction of its device.
func TestServerTakesAFraction(t *testing.T) {
	n := serverNode(t, "vllm", "", "nvidia.com/gpu")
	used := func() float64 {
		state, err := n.Read(0, gpu.ReadingDevice)
		if err != nil {
			t.Fatal(err)
		}

		return float64(state.MemoryUsed) / (1 << 30)
	}

	uid := podUID(t, n, "chat-0")
	for _, c := range []struct {
		at       time.Duration
		from, to float64 // GiB
		serves   bool
	}{{30 * time.Second, 7, 8, false}, {70 * time.Second, 14.4, 14.6, false}, {95 * time.Second, 14.4, 14.6, false},
		{105 * time.Second, 70, 73, true}, {5 * time.Hour, 70, 73, true}} {
		if err := n.Advance(c.at - n.Now().Sub(n.start)); err != nil {
			t.Fatal(err)
		}

		if gib := used(); gib < c.from || gib > c.to {
			t.Errorf("after %s it holds %.1f GiB; expected %.1f to %.1f", c.at, gib, c.from, c.to)
		}

		_, serves := n.ServerMetrics(uid)
		cmptest.Equal(t, "serves after "+c.at.String(), serves, c.serves)
	}

	text, _ := n.ServerMetrics(uid)
	cmptest.HasTexts(t, text, "vllm:num_requests_running 10\n", "vllm:num_requests_waiting 0\n",
		`gpu_memory_utilization="0.9"`)
	_, ok := n.ServerMetrics("another")
	cmptest.Equal(t, "of another pod", ok, false)
}

// TestServerOnASlice: the cache that a slice leaves is smaller, and requests wait; where the
// weights do not fit, the server is killed.
func TestServerOnASlice(t *testing.T) {
	const sliced = ", mig: true, layout: [2g.20gb@0, 1g.10gb@2]"
	n := serverNode(t, "sglang", sliced, "nvidia.com/mig-2g.20gb")

	uid := podUID(t, n, "chat-0")
	if err := n.Advance(2 * time.Minute); err != nil {
		t.Fatal(err)
	}

	text, _ := n.ServerMetrics(uid)
	cmptest.HasTexts(t, text, "sglang:token_usage 1\n", "sglang:num_running_reqs 2\n", "sglang:num_queue_reqs 8\n")

	n = serverNode(t, "sglang", sliced, "nvidia.com/mig-1g.10gb")

	uid = podUID(t, n, "chat-0")
	if err := n.Advance(2 * time.Minute); err != nil {
		t.Fatal(err)
	}

	_, serves := n.ServerMetrics(uid)
	cmptest.Equal(t, "serves on a slice without room for its weights", serves, false)

	if truth := n.Truth(); len(truth) != 1 || truth[0].Failed == "" {
		t.Errorf("%+v; expected that it was killed", truth)
	}
}

// TestServerScenarios: what a server cannot be is an error that says what was expected.
func TestServerScenarios(t *testing.T) {
	for server, want := range map[string]string{
		"{kind: triton, weights: 1GiB}": "vllm", "{fraction: 0.9}": "weights",
		"{weights: 1GiB, fraction: 2}": "a number from 0 to 1",
	} {
		_, err := Parse("servers.yaml", []byte("version: 1\ngpus: [{model: H100-80GB}]\nworkloads:\n- {name: chat, width: 6, "+
			"busy: 0.4, server: "+server+"}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v; expected %q in it", server, err, want)
		}
	}

	_, err := Parse("servers.yaml", []byte("version: 1\ngpus: [{model: H100-80GB}]\nworkloads:\n- {name: chat, width: 6, "+
		"busy: 0.4, memory: 1GiB, server: {weights: 1GiB}}\n"))
	if err == nil || !strings.Contains(err.Error(), "memory: is set together with server") {
		t.Errorf("memory and server: error %v", err)
	}
}
