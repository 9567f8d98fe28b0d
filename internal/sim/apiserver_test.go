package sim

import (
	"errors"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// apiNode has an outage of the API server from 10 s to 20 s.
const apiNode = `
version: 1
node: {hostname: n}
gpus: [{model: A30, count: 4}]
pods:
  - {name: early, owner: Job/early, labels: {app: e}, resource: nvidia.com/gpu}
  - {name: ends, owner: Job/ends, resource: nvidia.com/gpu, for: 12s}
  - {name: file, static: true, resource: nvidia.com/gpu}
  - {name: late, resource: nvidia.com/gpu, at: 12s}
  - {name: late-file, static: true, at: 12s}
faults:
  - {at: 10s, for: 10s, kind: api-server-down}
  - {at: 30s, for: 10s, kind: clock-jump, by: 1h}
`

func TestAPIServer(t *testing.T) {
	n := start(t, apiNode)
	began := n.Now()
	has := func(name string, since time.Time) bool {
		t.Helper()
		_, ok := n.PodByName("default", name, since)

		return ok
	}

	early, ok := n.PodByName("default", "early", began)
	if !ok || early.Ended {
		t.Errorf("early is known: %v, ended: %v; want true, false", ok, early.Ended)
	}

	cmptest.Equal(t, "owner, label and UID of early", [3]string{early.Owner, early.Labels["app"], early.UID},
		[3]string{"Job/early", "e", mustContainer(t, n, "early").PodUID})

	static, ok := n.PodByName("default", "file-n", began)
	if !ok || has("file", began) {
		t.Errorf("the static pod is known as file-n: %v, as file: %v; want true, false", ok, has("file", began))
	}

	cmptest.Equal(t, "owner of the static pod", static.Owner, "")
	cmptest.Equal(t, "length of its UID", len(static.UID), 32)
	ends, _ := n.PodByName("default", "ends", began)

	advance(t, n, 15*time.Second)

	if answered, up := n.APIServer(); up || !answered.Equal(began.Add(10*time.Second)) {
		t.Errorf("away: up %v, answered at %s", up, answered)
	}

	cmptest.Equal(t, "away: early as of before, early as of now, late, late-file-n are known",
		[4]bool{has("early", began.Add(10*time.Second)), has("early", n.Now()), has("late", began),
			has("late-file-n", began)}, [4]bool{true})

	if p, ok := n.PodByUID(ends.UID); !ok || p.Ended {
		t.Errorf("away: a pod that ended meanwhile is %+v, %v; want it known and not ended", p, ok)
	}

	cmptest.Equal(t, "away: ends, unknown are gone",
		[2]bool{n.PodGone("default", "ends", ends.UID), n.PodGone("default", "", "unknown")}, [2]bool{})

	advance(t, n, 5*time.Second)

	if answered, up := n.APIServer(); !up || !answered.Equal(n.Now()) {
		t.Errorf("back: up %v, answered at %s", up, answered)
	}

	cmptest.Equal(t, "back: early, late, late-file-n, ends are known",
		[4]bool{has("early", n.Now()), has("late", n.Now()), has("late-file-n", n.Now()), has("ends", n.Now())},
		[4]bool{true, true, true, false})

	for uid, gone := range map[string]bool{ends.UID: true, early.UID: false, "unknown": true} {
		if got := n.PodGone("default", "", uid); got != gone {
			t.Errorf("%s is gone: %v", uid, got)
		}
	}

	if n.PodGone("default", "early", "unknown") {
		t.Error("a pod is gone whose name another one has")
	}

	if !n.PodGone("default", "ends", "") || n.PodGone("default", "early", "") {
		t.Error("by name: early is gone, or ends is not")
	}

	advance(t, n, 10*time.Second)

	if answered, up := n.APIServer(); !up || !answered.Equal(began.Add(time.Hour+30*time.Second)) {
		t.Errorf("with a clock that is wrong: up %v, answered at %s", up, answered)
	}
}

func TestAPIServerThatNeverAnswered(t *testing.T) {
	n := start(t, "version: 1\ngpus: [{model: A30}]\nfaults: [{kind: api-server-down, for: 1s}]\n")
	if answered, up := n.APIServer(); up || !answered.IsZero() {
		t.Errorf("up %v, answered at %s", up, answered)
	}

	if _, ok := n.PodByName(OwnNamespace, OwnPod, time.Time{}); ok {
		t.Error("it knows of a pod")
	}

	advance(t, n, time.Second)

	if _, ok := n.PodByName(OwnNamespace, OwnPod, n.Now()); !ok {
		t.Error("the exporter's own pod is unknown")
	}
}

// TestEndWithoutAKubelet: the API server learns of it once the kubelet knows its pods again.
func TestEndWithoutAKubelet(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A30}]
pods: [{name: p, resource: nvidia.com/gpu, for: 10s}]
faults: [{at: 5s, for: 15s, kind: kubelet-down}]
`)

	uid := mustContainer(t, n, "p").PodUID
	for _, step := range []struct {
		to   time.Duration
		gone bool
	}{{10 * time.Second, false}, {22*time.Second - 1, false}, {22 * time.Second, true}} {
		advance(t, n, step.to-n.Now().Sub(StepStart()))

		if got := n.PodGone("default", "p", uid); got != step.gone {
			t.Errorf("after %s it is gone: %v", step.to, got)
		}
	}

	if h := n.Holdings(); len(h) != 0 {
		t.Errorf("it holds %+v", h)
	}
}

func TestSlowAPIServer(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A30, count: 3}]
pods:
  - {name: before, resource: nvidia.com/gpu}
  - {name: during, resource: nvidia.com/gpu, at: 2s}
  - {name: after, resource: nvidia.com/gpu, at: 4s}
faults: [{at: 1s, for: 2s, kind: api-server-slow, delay: 5s}]
`)

	for second, want := range []string{"before", "before", "before", "before", "before after", "before after",
		"before after", "before during after"} {
		got := ""

		for _, name := range []string{"before", "during", "after"} {
			if p, ok := n.PodByName("default", name, n.Now()); ok {
				if got += name + " "; n.PodGone("default", name, p.UID) {
					t.Errorf("after %d s %s is gone", second, name)
				}
			}
		}

		if got != want+" " {
			t.Errorf("after %d s: %q, want %q", second, got, want)
		}

		advance(t, n, time.Second)
	}

	if uid := mustContainer(t, n, "during").PodUID; n.PodGone("default", "during", uid) {
		t.Error("a pod that is not reported is gone")
	}
}

const monitored = `
version: 1
node: {hostname: n, allocator: dra}
gpus: [{model: H100-80GB, count: 2}]
pods:
  - {name: holder, resource: nvidia.com/gpu, device: "0"}
  - {name: monitor, resource: nvidia.com/gpu, count: 2, admin: true}
  - {name: pinned, resource: nvidia.com/gpu, device: "0", admin: true}
  - {name: other, resource: nvidia.com/gpu}
  - {name: greedy, resource: nvidia.com/gpu, count: 3, admin: true}
faults: [{at: 1s, for: 1s, kind: api-server-down}]
`

func TestAdminAccess(t *testing.T) {
	n := start(t, monitored)
	for pod, devices := range map[string][]string{"holder": {"gpu-0"}, "monitor": {"gpu-0", "gpu-1"}, "pinned": {"gpu-0"},
		"other": {"gpu-1"}} {
		c := mustContainer(t, n, pod)
		if len(c.Claims) != len(devices) {
			t.Fatalf("%s has %+v, want %v", pod, c.Claims, devices)
		}

		for i, claim := range c.Claims {
			admin, err := n.AdminAccess(gpu.ClaimDevice{
				Namespace: claim.Namespace, Claim: claim.Name, Driver: claim.Driver, Pool: claim.Pool, Device: claim.Device,
			})
			if err != nil {
				t.Errorf("%s: admin access: %v", pod, err)
			}

			want := pod == "monitor" || pod == "pinned"
			cmptest.Equal(t, pod+": device", claim.Device, devices[i])
			cmptest.Equal(t, pod+": admin access of the claim and at the API server", [2]bool{claim.Admin, admin},
				[2]bool{want, want})
		}
	}

	if !recorded(n, "default/greedy: refused") {
		t.Error("three of two devices were given")
	}

	holdings := map[string]gpu.UUID{}
	for _, h := range n.Holdings() {
		holdings[h.Pod] = h.GPU
	}

	cmptest.Equal(t, "held GPUs", holdings,
		map[string]gpu.UUID{"holder": state(t, n, 0).UUID, "other": state(t, n, 1).UUID})

	if _, err := n.AdminAccess(gpu.ClaimDevice{Namespace: "default", Claim: "none"}); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("a claim that does not exist: %v", err)
	}

	advance(t, n, time.Second)

	if _, err := n.AdminAccess(gpu.ClaimDevice{}); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("without an API server: %v", err)
	}
}
