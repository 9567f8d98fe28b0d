package podresources

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	kubeletapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// livePod is a pod of the model node in TestChurn.
type livePod struct {
	name, uid, id string
	static, init  bool
	admitted      bool // by the kubelet, since it was started last
}

// modelNode is a node whose kubelet forgets: the truth is in live.
type modelNode struct {
	live    []livePod // the oldest first
	stored  []livePod // in the checkpoint: pruned when something is given out
	lists   int       // how many of nothing, static pods, all the kubelet lists: 0 to 2
	blocked int       // steps for which it admits no pod: the Allocate of a device plugin takes long
	api     bool
	number  int
	devices []string
}

// step lets something happen to the node.
func (n *modelNode) step(t *testing.T, r *rand.Rand, g *testLedger, c *fakeCluster) {
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		n.admitPod(t, r, g)
	case 4, 5:
		if len(n.live) > 0 {
			at := r.IntN(len(n.live))
			n.live = slices.Delete(n.live, at, at+1)
		}
	case 6:
		if r.IntN(2) == 0 {
			n.restart(r)
			g.resetForRestart(g.now)
		}
	case 7, 8, 9:
		if n.lists < 1 || n.api {
			n.lists = min(n.lists+1, 2)
		}
	case 10:
		n.api = !n.api
	}

	n.admitOldest(r)

	if c.silent = !n.api; c.silent {
		return
	}

	c.asked = g.now
	clear(c.pods)

	for _, p := range n.live {
		if !p.static {
			c.pods["ns/"+p.name] = gpu.PodMetadata{UID: p.uid}
		}
	}

	clear(c.gone)

	for _, p := range n.live {
		c.gone[p.uid] = p.static // the API server has no mirror of it, or under another UID
	}

	for i := range n.number + 1 {
		if uid := modelUID(i); !slices.ContainsFunc(n.live, func(p livePod) bool { return p.uid == uid }) {
			c.gone[uid] = true
		}
	}
}

// restart lets the kubelet forget its pods. Sometimes it admits none for a while once it knows them
// again.
func (n *modelNode) restart(r *rand.Rand) {
	n.lists, n.blocked = 0, max(0, r.IntN(40)-20)
	for i := range n.live {
		n.live[i].admitted = false
	}
}

// admitOldest lets the kubelet admit up to two of its pods of the API server again, the oldest
// first.
func (n *modelNode) admitOldest(r *rand.Rand) {
	if n.lists < 2 {
		return
	}

	if n.blocked > 0 {
		n.blocked--
		return
	}

	admits := r.IntN(3)
	for i := range n.live {
		if p := &n.live[i]; !p.static && !p.admitted && admits > 0 {
			p.admitted = true
			admits--
		}
	}
}

func modelUID(number int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", number) }

// admitPod gives a device to a new pod, if the kubelet knows its pods and one is free. Its name may
// be that of a former one.
func (n *modelNode) admitPod(t *testing.T, r *rand.Rand, g *testLedger) {
	id := n.devices[r.IntN(len(n.devices))]
	name := fmt.Sprint("p", r.IntN(6))
	taken := func(p livePod) bool { return p.id == id || p.name == name }

	waits := func(p livePod) bool { return !p.static && !p.admitted }
	if n.lists < 2 || !n.api || slices.ContainsFunc(n.live, taken) || slices.ContainsFunc(n.live, waits) {
		return
	}

	n.number++

	p := livePod{name: name, uid: modelUID(n.number), id: id, static: r.IntN(4) == 0, init: r.IntN(5) == 0,
		admitted: true}
	if p.static {
		p.uid = fmt.Sprintf("%032d", n.number)
	}

	n.live = append(n.live, p)
	n.stored = slices.Clone(n.live)

	if g.checkpoint != nil {
		var entries []string
		for _, p := range n.stored {
			entries = append(entries, p.uid+" c "+p.id)
		}

		writeCheckpoint(t, g.checkpoint.path, entries...)
	}
}

// listedPods is what the kubelet lists.
func (n *modelNode) listedPods() []*kubeletapi.PodResources {
	var pods []*kubeletapi.PodResources

	for _, p := range n.live {
		switch {
		case n.lists == 0 || !p.static && !p.admitted:
		case p.init:
			pods = append(pods, pod("ns", p.name, container("main", nil)))
		default:
			pods = append(pods, podWithDevices(p.name, p.id))
		}
	}

	if n.lists == 2 {
		pods = append(pods, witness())
	}

	return pods
}

// TestChurn: over random churn, restarts, slow admissions and outages no device that a live pod
// holds is reported as free or given to another, and no holder that was listed is forgotten while
// it lives. Without the checkpoint, those of plain init containers are the exception.
func TestChurn(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		c := &fakeCluster{pods: map[string]gpu.PodMetadata{}, gone: map[string]bool{}}

		var metadata Metadata
		if seed%3 > 0 {
			metadata = c
		}

		g := newTestLedger(t, metadata)
		if seed%2 > 0 {
			g.checkpoint = testCheckpoint(t)
		}

		n := &modelNode{lists: 2, api: true, devices: []string{gpuA, gpuB, gpuC}}
		complete := 0
		known := map[string]bool{} // by UID: the ledger has had its holding

		for step := range 800 {
			n.step(t, r, g, c)

			got := g.list(n.listedPods()...)
			if got.Incomplete == "" {
				complete++
			}

			for _, p := range n.live {
				if why := findContradiction(p, got, known, g.checkpoint != nil); why != "" {
					t.Fatalf("seed %d, step %d: pod %s (%s) holds %s: %s:\n%+v", seed, step, p.name, p.uid, p.id, why, got)
				}
			}
		}

		if complete < 50 {
			t.Errorf("seed %d: only %d of 800 lists were complete", seed, complete)
		}
	}
}

// findContradiction returns how what is known contradicts that a pod holds its device; empty if it
// does not.
func findContradiction(p livePod, got gpu.Assignments, known map[string]bool, checkpoint bool) string {
	held := false
	named := false

	for _, a := range got.List {
		if a.ID != p.id {
			continue
		}

		held = true

		named = named || a.Holder.Pod == p.name
		if a.Holder.Unconfirmed == "" && a.Holder.Pod != p.name {
			return "it is reported as held by " + a.Holder.Pod
		}
	}

	if known[p.uid] && !named {
		return "it is forgotten"
	}

	known[p.uid] = known[p.uid] || named && !p.init
	if !held && got.Incomplete == "" && (checkpoint || !p.init) {
		return "it is reported as free"
	}

	return ""
}
