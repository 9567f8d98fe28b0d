package promtest

import (
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"
)

// rollout is a simulated node that outlives its exporters, and a Prometheus that scrapes those that
// run, each as a target of its own.
type rollout struct {
	*Prometheus
	*ruler
	t         *testing.T
	env, args []string
	elapsed   time.Duration
	behind    time.Duration // by which the node's clock, which exporters move, is behind
	exporters []*exporter
	firing    []map[string]int // at each minute, by what an alert is about
	ahead     *rangeQueries    // of a long run
}

type exporter struct {
	*scrapedNode
	stop   func()
	target *scrapeTarget
}

func newRollout(t *testing.T, scenario string, args ...string) *rollout {
	t.Helper()
	e := NewPrometheus(t)

	return &rollout{
		Prometheus: e, ruler: newRuler(t, e.db, scraped(), rules.EngineQueryFunc(e.promql, e.db)), t: t,
		env:  []string{"MIG_SIM_STATE=" + filepath.Join(t.TempDir(), "node.json")},
		args: append([]string{"--sim.scenario=" + scenarioFile(t, scenario)}, args...),
	}
}

// start starts an exporter in a pod, with the labels that a PodMonitor gives its target. Those that
// have ended are no targets any more.
func (r *rollout) start(instance, pod string) {
	r.t.Helper()
	r.exporters = slices.DeleteFunc(r.exporters, func(x *exporter) bool { return x.stop == nil })
	url, stop := launch(r.t, r.env, r.args...)
	r.exporters = append(r.exporters, &exporter{
		scrapedNode: &scrapedNode{Prometheus: r.Prometheus, t: r.t, url: url}, stop: stop,
		target: &scrapeTarget{engine: r.Prometheus, target: target{keep: ruledFamilies(r.t), labels: labels.FromStrings(
			"instance", instance, "job", "monitoring/mig-exporter", "namespace", "monitoring", "pod", pod, "container",
			"mig-exporter", "endpoint", "metrics")}},
	})
}

// stopPod stops the oldest exporter. Service discovery drops its target, or keeps it, so that
// scrapes fail.
func (r *rollout) stopPod(keepTarget bool) {
	r.t.Helper()
	x := r.exporters[0]
	x.stop()
	x.stop = nil

	if !keepTarget {
		r.dropTarget()
	}
}

// dropTarget has service discovery drop the target of the oldest exporter, which has stopped.
func (r *rollout) dropTarget() {
	r.exporters[0].target.remove(r.t, r.now().Add(time.Second)) // Prometheus does so at the next scrape that there is not
	r.exporters = r.exporters[1:]
}

func (r *rollout) now() time.Time { return r.ruler.start.Add(r.elapsed) }

// run runs the node until then, scraped every 30 seconds, with the rules evaluated every minute.
func (r *rollout) run(until time.Duration) {
	r.t.Helper()

	for r.elapsed < until {
		r.elapsed += scrapeInterval

		r.behind += scrapeInterval
		for _, x := range r.exporters {
			if x.stop == nil {
				x.target.failScrape(r.t, r.now())
				continue
			}

			x.request(http.MethodPost, "/-/sim/advance?by="+r.behind.String()) // the clock is that of the node
			r.behind = 0
			x.target.scrape(r.t, r.now(), Text, x.request(http.MethodGet, "/metrics"))
		}

		if r.elapsed%time.Minute == 0 {
			r.eval(r.now())
			r.noteFiring()
		}
	}
}

// noteFiring counts the alerts that fire by what they are about, which is never the exporter.
func (r *rollout) noteFiring() {
	now := map[string]int{}
	for name, story := range r.fired {
		for _, a := range story.now {
			about := name
			for _, label := range []string{"gpu", "uuid", "gpu_instance", "xid", "kind", "source", "reason", "action",
				"sensor"} {
				about += " " + a.Labels.Get(label)
			}

			now[strings.Join(strings.Fields(about), " ")]++
		}
	}

	r.firing = append(r.firing, now)
}

// ailing has a lasting story for every level: a GPU that has to be reset, idle devices that are
// held, a slice that is saturated and one whose memory is full, a layout that wastes slices, and
// XIDs shortly before the exporter is replaced at 75m.
const ailing = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB, count: 4}
  - {model: H100-80GB, mig: true, layout: ["1g.20gb@0", "1g.20gb@2", "1g.20gb@4", "1g.10gb@6"]}
workloads:
  - {name: train, memory: 60GiB, sm: 100, dram: 0.3, tensor: 0.3}
  - {name: notebook, memory: 600MiB}
  - {name: greedy, memory: 4GiB, sm: 132, dram: 0.3, tensor: 0.3}
  - {name: full, memory: 19456MiB, sm: 4}
pods:
  - {namespace: ml, name: train-0, resource: nvidia.com/gpu, device: "0", workload: train}
  - {namespace: ml, name: sick-0, resource: nvidia.com/gpu, device: "1", workload: train}
  - {namespace: ml, name: idle-0, resource: nvidia.com/gpu, device: "2", workload: notebook}
  - {namespace: ml, name: bug-0, resource: nvidia.com/gpu, device: "3", workload: train}
  - {namespace: ml, name: idle-1, resource: nvidia.com/mig-1g.20gb, device: "4/1g.20gb@0", workload: notebook}
  - {namespace: ml, name: greedy-0, resource: nvidia.com/mig-1g.20gb, device: "4/1g.20gb@2", workload: greedy}
  - {namespace: ml, name: full-0, resource: nvidia.com/mig-1g.20gb, device: "4/1g.20gb@4", workload: full}
faults:
  - {at: 10m, gpu: 1, kind: xid, xid: 63, recovery: reset}
  - {at: 72m, gpu: 3, kind: xid, xid: 31}
  - {at: 72m, gpu: 3, kind: xid, xid: 48}
`

// TestRulesWhileAnExportersPodIsReplaced: what fires goes on, once, whether the pods overlap or
// not; nothing fires that would not have fired without.
func TestRulesWhileAnExportersPodIsReplaced(t *testing.T) {
	t.Parallel()
	undisturbed := newRollout(t, ailing)
	undisturbed.start("gpu-node-1", "mig-exporter-a")
	undisturbed.run(95 * time.Minute)
	undisturbed.log()

	if len(undisturbed.fired) < 9 {
		t.Errorf("only %d alerts fire", len(undisturbed.fired))
	}

	for _, overlap := range []time.Duration{2 * time.Minute, 0} {
		t.Run("overlap of "+overlap.String(), func(t *testing.T) {
			r := newRollout(t, ailing)
			r.start("gpu-node-1", "mig-exporter-a")
			r.run(75 * time.Minute)

			if overlap == 0 {
				r.stopPod(false)
			}

			r.start("gpu-node-1", "mig-exporter-b")
			r.run(75*time.Minute + overlap)

			if overlap > 0 {
				r.stopPod(false)
			}

			r.run(95 * time.Minute)

			for m, want := range undisturbed.firing {
				if !maps.Equal(r.firing[m], want) {
					t.Fatalf("after %d minutes: firing %v, want %v", m+1, r.firing[m], want)
				}
			}

			for name, f := range r.fired {
				for alert := range f.alerts {
					if strings.Contains(alert, "monitoring") {
						t.Errorf("%s has labels of the exporter's pod: %s", name, alert)
					}
				}
			}
		})
	}
}

// TestRulesWhereInstanceIsAnAddress: each pod of the exporter has another instance. No rule fails,
// and no alert fires that would not have fired without.
func TestRulesWhereInstanceIsAnAddress(t *testing.T) {
	t.Parallel()
	r := newRollout(t, ailing)
	r.start("10.0.0.1:9401", "mig-exporter-a")
	r.run(75 * time.Minute)
	before := slices.Sorted(maps.Keys(r.fired))
	r.start("10.0.0.2:9401", "mig-exporter-b")
	r.run(77 * time.Minute)
	r.stopPod(false)
	r.run(130 * time.Minute)

	if after := slices.Sorted(maps.Keys(r.fired)); !slices.Equal(before, after) {
		t.Errorf("%s fired before the exporter was replaced, %s in all", before, after)
	}

	for _, name := range []string{"GpuRecoveryActionRequired", "MigSliceSaturated", "MigSliceMemoryNearlyFull"} {
		if now := r.firingNow(name); len(now) != 1 || now[0].Labels.Get("instance") != "10.0.0.2:9401" {
			t.Errorf("%s: firing in the end: %v", name, now)
		}
	}
}
