package promtest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// queuedNode returns the node of nearlyAdvised, with other pods on its first GPU: those of a queue,
// each for eight of ten minutes.
func queuedNode(t *testing.T, length time.Duration) string {
	t.Helper()

	const alone = `  - {namespace: a, name: seen-0, owner: StatefulSet/seen, resource: nvidia.com/gpu, device: "0", workload: seen}
`
	var queue strings.Builder

	for at := time.Duration(0); at < length; at += 10 * time.Minute {
		fmt.Fprintf(&queue, "  - {namespace: a, name: seen-%d, owner: CronJob/seen, resource: nvidia.com/gpu, device: \"0\", "+
			"workload: seen, at: %s, for: 8m}\n", at/(10*time.Minute), at)
	}

	scenario := nearlyAdvised(true)
	if !strings.Contains(scenario, alone) {
		t.Fatal("nearlyAdvised is not what this test expects")
	}

	return strings.Replace(scenario, alone, queue.String(), 1)
}

// TestUnderusedByAQueueOfPods: a GPU on which pods of a few minutes follow each other is underused as
// one that a single pod has. The alert is one, and goes on over the gaps.
func TestUnderusedByAQueueOfPods(t *testing.T) {
	t.Parallel()

	const (
		polls   = 2 * time.Minute
		watched = 36 * time.Hour // before there is a Prometheus
		ends    = watched + 80*time.Minute
	)

	n := newRollout(t, queuedNode(t, ends), "--poll.interval="+polls.String())
	n.start("gpu-node-1:9401", "mig-exporter-a")

	for ; n.elapsed < watched; n.elapsed += polls {
		n.exporters[0].request(http.MethodPost, "/-/sim/advance?by="+polls.String())
	}

	n.run(ends)

	held := n.valueNow(`sum(count_over_time(nvidia_gpu_pod_info{gpu="0"}[80m]))`)
	answered := n.valueNow(`sum(count_over_time(nvidia_gpu_rightsizing_rejected{gpu="0",reason="provisional"}[80m]))`)

	if held < 120 || held > 140 || answered != held {
		t.Errorf("of 160 scrapes a pod has the GPU in %v, and the advisor an answer in %v", held, answered)
	}

	n.run(ends + 30*time.Minute)

	for i, firing := range n.firing {
		minute := i + 1
		got := 0

		for about, alerts := range firing {
			if strings.HasPrefix(about, "GpuUnderused 0 ") {
				got += alerts
			}
		}

		// The last pod ends after 78 minutes.
		if minute < 15 && got != 0 || minute >= 30 && minute <= 78 && got != 1 || minute >= 105 && got != 0 {
			t.Fatalf("after %d minutes there are %d alerts", minute, got)
		}
	}
}
