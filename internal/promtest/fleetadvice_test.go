package promtest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// served is a node of ten whole GPUs. What runs on the sixth and the seventh, counted from 0, is
// what migctl fleet says that it cannot see: pods of two owners that follow each other, and wide
// kernels in one minute of five.
const served = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 3
gpus:
  - {model: H100-80GB, count: 10}
workloads:
  - {name: narrow, memory: 6GiB, width: 20, busy: {sine: {min: 0.1, max: 0.9, period: 24h}}, bandwidth: 0.06}
  - {name: medium, memory: 16GiB, width: 50, busy: 0.4, bandwidth: 0.152}
  - {name: wide, memory: 9GiB, width: 125, busy: {steps: [{at: 0s, value: 0.2}, {at: 5m, value: 0.01}], repeat: 10m}, bandwidth: 0.28}
  - {name: reserved, memory: 70GiB, width: 80, busy: 0.3, bandwidth: 0.364}
  - {name: growing, memory: {steps: [{at: 0s, value: 4GiB}, {at: 48h, value: 5GiB}, {at: 72h, value: 7GiB}, {at: 96h, value: 9GiB}, {at: 120h, value: 11GiB}, {at: 144h, value: 13GiB}]}, width: 10, busy: 0.5, bandwidth: 0.03}
  - {name: notebook, memory: 600MiB}
  - {name: large, memory: 30GiB, width: 20, busy: 0.5, bandwidth: 0.06}
  - {name: small, memory: 4GiB, width: 10, busy: 0.5, bandwidth: 0.03}
  - {name: bursts, memory: 4GiB, width: {steps: [{at: 0s, value: 132}, {at: 1m, value: 8}], repeat: 5m}, busy: 0.3, bandwidth: 0.03}
  - {name: decode, memory: 4GiB, width: 10, busy: 0.3, bandwidth: 0.03, decoder: 1.9}
  - {name: transcode, memory: 4GiB, width: 10, busy: 0.3, bandwidth: 0.03, decoder: 5}
pods:
  - {namespace: a, name: narrow-0, owner: StatefulSet/narrow, resource: nvidia.com/gpu, device: "0", workload: narrow, at: 10m}
  - {namespace: a, name: medium-0, owner: StatefulSet/medium, resource: nvidia.com/gpu, device: "1", workload: medium, at: 10m}
  - {namespace: a, name: wide-0, owner: StatefulSet/wide, resource: nvidia.com/gpu, device: "2", workload: wide, at: 10m}
  - {namespace: a, name: reserved-0, owner: StatefulSet/reserved, resource: nvidia.com/gpu, device: "3", workload: reserved, at: 10m}
  - {namespace: a, name: growing-0, owner: StatefulSet/growing, resource: nvidia.com/gpu, device: "4", workload: growing, at: 10m}
  - {namespace: a, name: notebook-0, owner: StatefulSet/notebook, resource: nvidia.com/gpu, device: "5", workload: notebook, at: 10m}
  - {namespace: a, name: large-0, owner: Job/large, resource: nvidia.com/gpu, device: "6", workload: large, at: 10m, for: 72h}
  - {namespace: a, name: small-0, owner: Job/small, resource: nvidia.com/gpu, device: "6", workload: small, at: 73h}
  - {namespace: a, name: bursts-0, owner: StatefulSet/bursts, resource: nvidia.com/gpu, device: "7", workload: bursts, at: 10m}
  - {namespace: a, name: decode-0, owner: StatefulSet/decode, resource: nvidia.com/gpu, device: "8", workload: decode, at: 10m}
  - {namespace: a, name: transcode-0, owner: StatefulSet/transcode, resource: nvidia.com/gpu, device: "9", workload: transcode, at: 10m}
`

// device is what both answers say of a GPU.
type device struct {
	Action, Reason, RecommendedProfile string
	Provisional, MediaNotChecked       bool
}

// The node is polled every quarter of an hour, which is stored as three scrapes, until it is polled
// and scraped every minute: the minutes of the last day are enough to decide. Polls are four
// minutes after each quarter, when the kernels of bursts are narrow.
const (
	coarse      = 15 * time.Minute
	firstPoll   = 4 * time.Minute
	coarseUntil = firstPoll + 144*time.Hour
)

// TestFleetAgreesWithTheAdvisor: a week after all pods have started, migctl fleet says of each GPU
// what the node's advisor says, which saw every poll, but for the differences that docs/fleet.md
// explains.
func TestFleetAgreesWithTheAdvisor(t *testing.T) {
	t.Parallel()
	n := startNode(t, served, advisorPolls, "--collectors=+media")
	target := scrapeTarget{engine: n.Prometheus, target: target{
		labels: labels.FromStrings("instance", "n:9401", "job", "gpus", "node", "n"),
	}}
	read := "/metrics?" + url.Values{"collect[]": {"info", "memory", "utilization", "activity", "media", "nvlink", "mig",
		"processes", "pods", "jobs"}}.Encode() // what migctl fleet reads is in these

	week := 7*24*time.Hour + 30*time.Minute // since the pods came
	for at, step := firstPoll, firstPoll; at <= week; at += step {
		n.request(http.MethodPost, "/-/sim/advance?by="+step.String())

		exposition := n.request(http.MethodGet, read)
		for before := step.Truncate(5 * time.Minute); before > 5*time.Minute; before -= 5 * time.Minute {
			target.scrape(t, scraped().Add(at-before+5*time.Minute), Text, exposition)
		}

		target.scrape(t, scraped().Add(at), Text, exposition)

		if step = coarse; at >= coarseUntil {
			step = time.Minute
		}
	}

	want := n.advice()
	_, server := serveAPI(t, n.Prometheus)
	r := askFleet(t, server, "8d", scraped().Add(week))
	explained := map[int]device{
		// the history of five-minute means knows no latency
		1: {Action: "slice", RecommendedProfile: "2g.20gb"},
		// a GPU is judged with all that ran on it, and is provisional for as long as the last owner is new
		6: {Action: "slice", RecommendedProfile: "3g.40gb", Provisional: true},
		// means over five minutes hide what lasts one
		7: {Action: "slice", RecommendedProfile: "1g.20gb"},
	}

	if len(r.GPUs) != len(want) {
		t.Fatalf("%d GPUs, the advisor has %d", len(r.GPUs), len(want))
	}

	for index, decodes := range map[int]device{
		8: {Action: "slice", RecommendedProfile: "3g.40gb"}, 9: {Action: "keep", Reason: "media-engines"},
	} {
		if got := byIndex(want, index); got != decodes {
			t.Errorf("GPU %d, which decodes: the advisor says %+v, want %+v", index, got, decodes)
		}
	}

	for _, g := range r.GPUs {
		advised := want[g.UUID]
		got := device{g.Action, g.Reason, g.RecommendedProfile, g.Provisional, g.MediaNotChecked}

		expect, differs := explained[advised.Index]
		if !differs {
			expect = advised.device
		} else if advised.device == expect {
			t.Errorf("GPU %d: the advisor says %+v, too", advised.Index, expect)
		}

		if got != expect {
			t.Errorf("GPU %d: %+v, want %+v; the advisor says %+v: %s", advised.Index, got, expect, advised, g.UUID)
		}
	}
}

// advised is what the advisor says of a GPU.
type advised struct {
	device
	Index int
}

// byIndex returns what the advisor says of the GPU of an index.
func byIndex(all map[string]advised, index int) device {
	for _, a := range all {
		if a.Index == index {
			return a.device
		}
	}

	return device{}
}

// advice returns what the advisor of the node says of its GPUs.
func (n *scrapedNode) advice() map[string]advised {
	n.t.Helper()

	var report struct {
		Devices []struct {
			GPU string
			advised
		}
	}
	if err := json.Unmarshal(n.request(http.MethodGet, "/api/v1/recommendations"), &report); err != nil {
		n.t.Fatal(err)
	}

	all := map[string]advised{}
	for _, d := range report.Devices {
		all[d.GPU] = d.advised
	}

	return all
}
