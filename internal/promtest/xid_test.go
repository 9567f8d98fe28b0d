package promtest

import (
	"testing"
	"time"
)

const (
	anyXID    = `increase(nvidia_gpu_xids_total[5m]) > 0`
	graveXIDs = `time() - nvidia_gpu_xid_last_timestamp_seconds{xid=~"48|63|64|74|79|94|95|119|120"} < 600`
)

// TestXIDThatEndsItsPod: an XID 43 on a GPU instance and one on a whole GPU end their pods between
// two scrapes, and successors have the devices two seconds later. The documented rule sees both,
// and the slice's XID joins to the pod that had it.
func TestXIDThatEndsItsPod(t *testing.T) {
	t.Parallel()
	n := startNode(t, `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
  - {model: H100-80GB, count: 2}
workloads:
  - {name: train, memory: 9GiB, sm: 24, dram: 0.3, tensor: 0.3}
pods:
  - {namespace: ml, name: slice-0, container: main, resource: nvidia.com/mig-3g.40gb, device: "0/3g.40gb@0", workload: train, for: 126s}
  - {namespace: ml, name: slice-1, container: main, resource: nvidia.com/mig-3g.40gb, device: "0/3g.40gb@0", workload: train, at: 128s}
  - {namespace: ml, name: other, container: main, resource: nvidia.com/mig-3g.40gb, device: "0/3g.40gb@4", workload: train}
  - {namespace: ml, name: whole-0, container: main, resource: nvidia.com/gpu, device: "1", workload: train, for: 126s}
  - {namespace: ml, name: whole-1, container: main, resource: nvidia.com/gpu, device: "1", workload: train, at: 128s}
faults:
  - {at: 125s, gpu: 0, kind: xid, xid: 43, gi: 1, ci: 0}
  - {at: 125s, gpu: 1, kind: xid, xid: 43}
`)
	fired := map[string]bool{}
	joined := 0
	n.run(8*time.Minute, func(at time.Time) {
		rule, err := n.EvalAt(anyXID, at)
		if err != nil {
			t.Fatal(err)
		}

		for _, s := range rule {
			fired[s.Metric.Get("gpu")] = true
			if n.elapsed < 125*time.Second {
				t.Errorf("%s: fires before the XID: %v", n.elapsed, s)
			}
		}

		pods, err := n.EvalAt(xidJoin, at)
		if err != nil {
			t.Fatalf("%s: %v", n.elapsed, err)
		}

		for _, s := range pods {
			if joined++; s.Metric.Get("pod") != "slice-0" || s.Metric.Get("xid") != "43" {
				t.Errorf("%s: the XID joins to %s", n.elapsed, s.Metric)
			}
		}
	})

	for gpu, want := range map[string]bool{"0": true, "1": true, "2": false} {
		if fired[gpu] != want {
			t.Errorf("the rule fired for GPU %s: got %t, want %t", gpu, fired[gpu], want)
		}
	}

	if joined == 0 {
		t.Error("the XID joins to no pod")
	}

	if v := n.Query(t, anyXID); len(v) != 0 {
		t.Errorf("the rule does not clear: %v", v)
	}

	if v := n.Query(t,
		`nvidia_mig_gpu_instance_pod_info{pod="slice-1"} and on (uuid, gpu_instance) nvidia_mig_gpu_instance_xid_errors_total`); len(v) != 1 {
		t.Errorf("the successor does not have the device: %v", v)
	}
}

// TestXIDThatLosesItsGPU: an XID 79 comes a second before the GPU falls off the bus, between two
// scrapes. Its counts stay.
func TestXIDThatLosesItsGPU(t *testing.T) {
	t.Parallel()
	n := startNode(t, `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus: [{model: H100-80GB, mig: true, layout: ["7g.80gb@0"]}, {model: H100-80GB, mig: true, layout: ["7g.80gb@0"]}]
workloads: [{name: w, memory: 1GiB, sm: 10}]
processes: [{device: "1/7g.80gb@0", workload: w}]
faults:
  - {at: 75s, gpu: 1, kind: xid, xid: 79}
  - {at: 76s, gpu: 1, kind: lost}
`)
	some := 0
	grave := 0
	n.run(16*time.Minute, func(at time.Time) {
		for alert, count := range map[string]*int{anyXID: &some, graveXIDs: &grave} {
			v, err := n.EvalAt(alert, at)
			if err != nil {
				t.Fatal(err)
			}

			if len(v) > 0 {
				*count++
			}
		}
	})
	// The rule's range is five minutes and the other's ten, but for the time until the next scrape.
	if some < 16 || some > 20 {
		t.Errorf("%s fired %d times, want 16 to 20", anyXID, some)
	}

	if grave < 36 || grave > 40 {
		t.Errorf("%s fired %d times, want 36 to 40", graveXIDs, grave)
	}

	for _, left := range []string{
		`nvidia_gpu_up{gpu="1"} == 0`, `nvidia_gpu_xids_total{gpu="1"} == 1`,
		`nvidia_gpu_xid_errors_total{gpu="1",xid="79"} == 1`,
		`nvidia_gpu_xid_last_timestamp_seconds{gpu="1",xid="79"}`, `nvidia_gpu_mig_layout_changes_total{gpu="1"} == 0`,
		`nvidia_gpu_read_errors_total{gpu="1",reading="device",reason="lost"} > 0`,
	} {
		if v := n.Query(t, left); len(v) != 1 {
			t.Errorf("after a quarter of an hour: %s: %v", left, v)
		}
	}
}
