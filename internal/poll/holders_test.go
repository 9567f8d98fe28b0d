package poll

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// migGPU is a GPU with a 3g at 0:4 (GI 2) split in two compute instances and a 3g at 4:4 (GI 1)
// with one.
func migGPU() gpu.GPU {
	gi := func(id gpu.InstanceID, start int, cis ...gpu.ComputeInstance) gpu.GPUInstance {
		return gpu.GPUInstance{
			ID: id, Profile: "3g.20gb", ProfileID: gpu.Some(uint32(9)), SMs: gpu.Some(42), Device: gpu.Device{Up: true},
			Placement: gpu.Some(gpu.Placement{Start: start, Size: 4}), Processes: gpu.Some(0), ComputeInstances: cis,
		}
	}

	return gpu.GPU{
		Facts: gpu.Facts{
			UUID: uuidA, Index: 0, Minor: gpu.Some(4), SMs: gpu.Some(108),
			Profiles: []gpu.Profile{{ID: 9, Name: "3g.20gb", ComputeSlices: 3, MemorySlices: 4, SMs: 42},
				{ID: 0, Name: "7g.40gb", SMs: 98}},
		},
		MIG: gpu.MIGState{Enabled: gpu.Some(true), Pending: gpu.Some(true)},
		Readings: gpu.Readings{
			PowerWatts: gpu.Some(200.0), EnergyJoules: gpu.Some(1000.0),
			Processes: gpu.Some([]gpu.Process{
				{PID: 11, MemoryBytes: gpu.Some(uint64(100)), Instance: gpu.Some(gpu.InstanceID(2)),
					Compute: gpu.Some(gpu.ComputeID(0))},
				{PID: 12, MemoryBytes: gpu.Some(uint64(50)), Instance: gpu.Some(gpu.InstanceID(2)),
					Compute: gpu.Some(gpu.ComputeID(0))},
			}),
		},
		Instances: []gpu.GPUInstance{
			gi(2, 0, gpu.ComputeInstance{ID: 0, UUID: "MIG-1", Device: gpu.Device{Up: true}}, gpu.ComputeInstance{ID: 1, UUID: "MIG-2", Device: gpu.Device{Up: true}}),
			gi(1, 4, gpu.ComputeInstance{ID: 0, UUID: "MIG-3", Device: gpu.Device{Up: true}}),
		},
	}
}

func newAssignment(ref gpu.DeviceRef, pod string, seen uint64) gpu.Assignment {
	return gpu.Assignment{Device: ref, FirstListNumber: seen, Holder: gpu.Holder{
		Container: gpu.Container{Namespace: "ns", Pod: pod, Name: "main"}, Resource: "nvidia.com/gpu",
		Sharing: gpu.SharingExclusive,
	}}
}

func unconfirmedAssignment(ref gpu.DeviceRef, pod string) gpu.Assignment {
	a := newAssignment(ref, pod, 1)
	a.Holder.Unconfirmed = "for a test"

	return a
}

func withID(a gpu.Assignment, id string) gpu.Assignment {
	a.ID = id
	return a
}

func replicaAssignment(ref gpu.DeviceRef, pod, n string) gpu.Assignment {
	a := newAssignment(ref, pod, 1)
	a.Holder.Sharing = gpu.SharingReplica
	a.Holder.Replica = n

	return a
}

// formatHolders returns the holders by device: "gpu", "gi/ID", "ci/GI/ID".
func formatHolders(g *gpu.GPU) map[string][]string {
	out := map[string][]string{}
	add := func(key string, holders []gpu.Holder) {
		for _, h := range holders {
			text := h.Pod
			if h.Unconfirmed != "" {
				text += "?"
			}

			if h.Sharing != gpu.SharingExclusive {
				text += " " + string(h.Sharing) + " " + h.Replica
			}

			out[key] = append(out[key], text)
		}
	}
	add("gpu", g.Holders)

	for _, gi := range g.Instances {
		add(fmt.Sprintf("gi/%d", gi.ID), gi.Holders)

		for _, ci := range gi.ComputeInstances {
			add(fmt.Sprintf("ci/%d/%d", gi.ID, ci.ID), ci.Holders)
		}
	}

	return out
}

func legacyRef(gi gpu.InstanceID, ci gpu.ComputeID) gpu.DeviceRef {
	return gpu.DeviceRef{GPU: uuidA, Instance: gpu.Some(gi), Compute: gpu.Some(ci)}
}

type attachTest struct {
	name      string
	list      []gpu.Assignment
	mps       bool
	pids      fakeContainers
	want      map[string][]string
	unmatched int
	doubtful  bool // whether the GPU is allocated
}

// attachTests are ways of naming and sharing the devices of migGPU.
func attachTests() []attachTest {
	sharedClaim := func(pod string) gpu.Assignment {
		a := newAssignment(gpu.DeviceRef{Minor: gpu.Some(4), PlacementStart: gpu.Some(4), ProfileID: gpu.Some(uint32(9))},
			pod, 1)
		a.Holder.Resource = "claim/ns/big"
		a.Holder.Sharing = gpu.SharingReplica

		return a
	}
	claimOf := func(pod string, seen uint64) gpu.Assignment {
		a := newAssignment(gpu.DeviceRef{Minor: gpu.Some(4), PlacementStart: gpu.Some(4)}, pod, seen)
		a.Holder.Resource = "claim/ns/" + pod

		return a
	}

	return []attachTest{
		{name: "whole GPU by UUID", list: []gpu.Assignment{newAssignment(gpu.DeviceRef{GPU: uuidA}, "p", 1)},
			want: map[string][]string{"gpu": {"p"}}},
		{name: "whole GPU by minor number, not index", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{Minor: gpu.Some(4)}, "p", 1), newAssignment(gpu.DeviceRef{Minor: gpu.Some(0)}, "q", 1)},
			want: map[string][]string{"gpu": {"p"}}, unmatched: 1},
		{name: "two pods on two compute instances of one GPU instance", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "p", 1), newAssignment(gpu.DeviceRef{MIG: "MIG-2"}, "q", 1)},
			want: map[string][]string{"ci/2/0": {"p"}, "ci/2/1": {"q"}}},
		{name: "one pod on every compute instance holds the GPU instance", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "p", 1), newAssignment(legacyRef(2, 1), "p", 1)},
			want: map[string][]string{"ci/2/0": {"p"}, "ci/2/1": {"p"}, "gi/2": {"p"}}},
		{name: "GKE names the GPU instance", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{Minor: gpu.Some(4), Instance: gpu.Some(gpu.InstanceID(1))}, "p", 1)},
			want: map[string][]string{"ci/1/0": {"p"}, "gi/1": {"p"}}},
		{name: "DRA names the placement", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{Minor: gpu.Some(4), PlacementStart: gpu.Some(4), ProfileID: gpu.Some(uint32(9))}, "p",
				1),
			newAssignment(gpu.DeviceRef{Minor: gpu.Some(4), PlacementStart: gpu.Some(4), ProfileID: gpu.Some(uint32(19))}, "q",
				1)},
			want: map[string][]string{"ci/1/0": {"p"}, "gi/1": {"p"}}, unmatched: 1},
		{name: "a claim of several containers", list: []gpu.Assignment{sharedClaim("p"), sharedClaim("q")},
			want: map[string][]string{"ci/1/0": {"p claim ", "q claim "}, "gi/1": {"p claim ", "q claim "}}},
		{name: "of a lingering pod and its successor the newer counts", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "old", 1), newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "new", 2)},
			want: map[string][]string{"ci/1/0": {"new"}, "gi/1": {"new"}}},
		{name: "both seen first at once, and no process", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "a", 1), newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "b", 1)},
			want: map[string][]string{"ci/2/0": {"a unknown ", "b unknown "}}},
		{name: "two claims of one device", list: []gpu.Assignment{claimOf("a", 1), claimOf("b", 2)},
			want: map[string][]string{"ci/1/0": {"a unknown ", "b unknown "}, "gi/1": {"a unknown ", "b unknown "}}},
		{name: "a claim and a device plugin",
			list: []gpu.Assignment{claimOf("a", 1), newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "b", 2)},
			want: map[string][]string{"ci/1/0": {"a unknown ", "b unknown "}, "gi/1": {"a unknown ", "b unknown "}}},
		{name: "two ids for one device", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "a", 1), withID(newAssignment(legacyRef(1, 0), "b", 2), "MIG-GPU-x/1/0")},
			want: map[string][]string{"ci/1/0": {"a unknown ", "b unknown "}, "gi/1": {"a unknown ", "b unknown "}}},
		{name: "a successor of an unconfirmed holder", list: []gpu.Assignment{
			unconfirmedAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "a"), newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "b", 2)},
			want: map[string][]string{"ci/1/0": {"a?", "b"}, "gi/1": {"a?", "b"}}},
		{name: "both seen first at once: the one with a process counts", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "a", 1), newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "b", 1)},
			pids: fakeContainers{11: {Namespace: "ns", Pod: "a", Name: "main"}},
			want: map[string][]string{"ci/2/0": {"a"}}},
	}
}

// sharedTests are ways of sharing the devices of migGPU, and of naming none.
func sharedTests() []attachTest {
	return []attachTest{
		{name: "time-slicing", list: []gpu.Assignment{
			replicaAssignment(gpu.DeviceRef{GPU: uuidA}, "q", "1"), replicaAssignment(gpu.DeviceRef{GPU: uuidA}, "p", "0")},
			want: map[string][]string{"gpu": {"p time-slicing 0", "q time-slicing 1"}}},
		{name: "MPS by the compute mode", mps: true,
			list: []gpu.Assignment{replicaAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "p", "0")},
			want: map[string][]string{"ci/1/0": {"p mps 0"}, "gi/1": {"p mps 0"}}},
		{name: "unknown devices", list: []gpu.Assignment{
			newAssignment(gpu.DeviceRef{GPU: uuidB}, "p", 1), newAssignment(gpu.DeviceRef{MIG: "MIG-9"}, "p", 1),
			newAssignment(legacyRef(9, 0), "p", 1), newAssignment(legacyRef(2, 9), "p", 1)},
			want: map[string][]string{}, unmatched: 4, doubtful: true},
	}
}

func TestAttach(t *testing.T) {
	for _, tt := range slices.Concat(attachTests(), sharedTests()) {
		t.Run(tt.name, func(t *testing.T) {
			g := migGPU()
			g.Readings.ExclusiveComputeMode = gpu.Some(tt.mps)
			gpus := []gpu.GPU{g}

			unmatched := len(attachHolders(gpus, gpu.Assignments{List: tt.list}, time.Time{}, tt.pids))
			if got := formatHolders(&gpus[0]); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("holders %v, want %v", got, tt.want)
			}

			if unmatched != tt.unmatched {
				t.Errorf("unmatched %d, want %d", unmatched, tt.unmatched)
			}

			if got, ok := gpus[0].Allocated.Get(); ok == tt.doubtful || got != (len(tt.want) > 0) {
				t.Errorf("allocated %v", gpus[0].Allocated)
			}
		})
	}
}

// TestAllocated: only a device that is known to be free counts as free.
func TestAllocated(t *testing.T) {
	yes := gpu.Some(true)
	no := gpu.Some(false)
	unknown := gpu.None[bool]()
	p := newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "p", 1)
	q := unconfirmedAssignment(gpu.DeviceRef{MIG: "MIG-2"}, "q")

	all := []gpu.Opt[bool]{no, no, no, no, no, no}
	for _, tt := range []struct {
		name  string
		known gpu.Assignments
		want  []gpu.Opt[bool] // of the GPU, GI 2 and its compute instances, GI 1 and its compute instance
	}{
		{"no holder", gpu.Assignments{}, all},
		{"no known holder", gpu.Assignments{Incomplete: "x"},
			[]gpu.Opt[bool]{unknown, unknown, unknown, unknown, unknown, unknown}},
		{"a holder", gpu.Assignments{List: []gpu.Assignment{p}}, []gpu.Opt[bool]{yes, yes, yes, no, no, no}},
		{"a holder of those that are known", gpu.Assignments{List: []gpu.Assignment{p}, Incomplete: "x"},
			[]gpu.Opt[bool]{yes, yes, yes, unknown, unknown, unknown}},
		{"an unconfirmed holder", gpu.Assignments{List: []gpu.Assignment{q}},
			[]gpu.Opt[bool]{unknown, unknown, no, unknown, no, no}},
		{"both", gpu.Assignments{List: []gpu.Assignment{p, q}}, []gpu.Opt[bool]{yes, yes, yes, unknown, no, no}},
		{"a whole GPU that is confirmed to be free", gpu.Assignments{Incomplete: "x", Free: []gpu.DeviceRef{{GPU: uuidA}}},
			all},
		{"a device that is confirmed to be free", gpu.Assignments{Incomplete: "x", Free: []gpu.DeviceRef{{MIG: "MIG-3"}}},
			[]gpu.Opt[bool]{unknown, unknown, unknown, unknown, no, no}},
		{"of a free GPU a device that is held",
			gpu.Assignments{List: []gpu.Assignment{p}, Incomplete: "x", Free: []gpu.DeviceRef{{GPU: uuidA}}},
			[]gpu.Opt[bool]{yes, yes, yes, no, no, no}},
	} {
		gpus := []gpu.GPU{migGPU()}
		attachHolders(gpus, tt.known, time.Time{}, nil)
		g := &gpus[0]

		got := []gpu.Opt[bool]{g.Allocated}
		for _, gi := range g.Instances {
			got = append(got, gi.Allocated)
			for _, ci := range gi.ComputeInstances {
				got = append(got, ci.Allocated)
			}
		}

		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestKubeletNotConfigured: holders are unknown, and one line says it, which is no warning.
func TestKubeletNotConfigured(t *testing.T) {
	lines := &logLines{text: "--kubernetes.socket="}
	pods := &fakePods{err: fmt.Errorf("%w: set --kubernetes.socket=", gpu.ErrNotConfigured),
		list: gpu.Assignments{Incomplete: "set --kubernetes.socket="}}
	warnings := &logLines{text: "warn"}
	h := newHarness(t, newFakeSource(uuidA), func(o *Options) { o.Pods, o.Logger = pods, bothLoggers{lines, warnings} })
	defer h.startLoop()()

	h.pollAfter(time.Second)
	s := h.pollAfter(time.Second)
	cmptest.Equal(t, "source", s.Sources[1:],
		[]gpu.SourceState{{Name: gpu.SourceKubelet, Err: gpu.ErrNotConfigured}})
	cmptest.Equal(t, "allocated", s.GPUs[0].Allocated, gpu.None[bool]())
	cmptest.Equal(t, "why holders are incomplete", s.HoldersIncomplete, "set --kubernetes.socket=")
	cmptest.Equal(t, "a witness is missing", s.Witness, gpu.None[bool]())
	cmptest.Equal(t, "lines", lines.count.Load(), int64(1))
	cmptest.Equal(t, "warnings", warnings.count.Load(), int64(0))
}

func TestKubeletGone(t *testing.T) {
	src := newFakeSource(uuidA)
	pods := &fakePods{err: fmt.Errorf("dial /x/kubelet.sock: %w: %w", gpu.ErrNotFound, gpu.ErrNoKubelet)}
	h := newHarness(t, src, func(o *Options) { o.Pods = pods })
	defer h.startLoop()()

	s := h.pollAfter(time.Second)
	if len(s.Sources) != 1 || s.GPUs[0].Allocated.Present() {
		t.Errorf("a node without a kubelet: sources %+v, allocated %v", s.Sources, s.GPUs[0].Allocated)
	}

	pods.err = fmt.Errorf("no socket: %w", gpu.ErrNotFound)
	pods.list = gpu.Assignments{Incomplete: "no socket"}
	s = h.pollAfter(time.Second)
	kubelet := gpu.SourceState{Name: gpu.SourceKubelet, Err: gpu.ErrNotFound}
	cmptest.Equal(t, "a kubelet that does not answer", s.Sources[1:], []gpu.SourceState{kubelet})
	cmptest.Equal(t, "allocated", s.GPUs[0].Allocated, gpu.None[bool]())
	cmptest.Equal(t, "why holders are incomplete", s.HoldersIncomplete, "no socket")
	cmptest.Equal(t, "a witness is missing", s.Witness, gpu.Some(false))
	listed := []gpu.Assignment{newAssignment(gpu.DeviceRef{GPU: uuidA}, "p", 1)}
	pods.err = nil
	pods.list = gpu.Assignments{List: listed}
	s = h.pollAfter(time.Second)
	kubelet = gpu.SourceState{Name: gpu.SourceKubelet, Up: true, LastSuccess: s.Time}
	cmptest.Equal(t, "a kubelet that answers", s.Sources[1:], []gpu.SourceState{kubelet})
	cmptest.Equal(t, "holders", formatHolders(&s.GPUs[0]), map[string][]string{"gpu": {"p"}})
	pods.err = fmt.Errorf("list: %w", gpu.ErrUnavailable)
	s = h.pollAfter(30 * time.Second)
	kubelet.Up = false
	kubelet.Stale = true
	kubelet.Err = gpu.ErrUnavailable
	cmptest.Equal(t, "a kubelet that is gone for 30 s", s.Sources[1], kubelet)
	cmptest.Equal(t, "allocated by its last answer", s.GPUs[0].Allocated, gpu.Some(true))
	cmptest.Equal(t, "why holders are incomplete", s.HoldersIncomplete, "")
	pods.unconfirmed = true
	pods.list.Incomplete = "no answer"
	s = h.pollAfter(31 * time.Second)
	kubelet.Stale = false
	cmptest.Equal(t, "a kubelet that is gone for 61 s", s.Sources[1], kubelet)
	cmptest.Equal(t, "holders without it", formatHolders(&s.GPUs[0]), map[string][]string{"gpu": {"p?"}})
	cmptest.Equal(t, "allocated without it", s.GPUs[0].Allocated, gpu.None[bool]())
}

// TestSourcesOfOthers are shown beside the kubelet.
func TestSourcesOfOthers(t *testing.T) {
	h := newHarness(t, newFakeSource(uuidA), func(o *Options) {
		o.Sources = func() []gpu.SourceState { return []gpu.SourceState{{Name: gpu.SourceKubernetes, Up: true}} }
	})
	defer h.startLoop()()

	if s := h.pollAfter(time.Second); len(s.Sources) != 2 || s.Sources[1].Name != gpu.SourceKubernetes {
		t.Errorf("sources %+v", s.Sources)
	}
}

// TestMappingIsOlderThanTheInstance: after a layout change an id and a UUID come back; what the
// kubelet said before is not of them.
func TestMappingIsOlderThanTheInstance(t *testing.T) {
	src := newFakeSource(uuidA)
	src.gpus[uuidA] = migGPU()
	pods := &fakePods{list: gpu.Assignments{List: []gpu.Assignment{newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "p", 1)}}}
	h := newHarness(t, src, func(o *Options) { o.Pods = pods })
	defer h.startLoop()()
	holders := func(s *gpu.Snapshot) []gpu.Holder { return s.GPUs[0].Instances[1].ComputeInstances[0].Holders }

	s := h.pollAfter(time.Second)
	if got := holders(s); len(got) != 1 || !got[0].Since.Equal(h.clock.Now().Add(-time.Second)) {
		t.Errorf("holders %+v, want p since the start", got)
	}

	pods.err = gpu.ErrUnavailable
	src.set(func() {
		g := migGPU()
		g.Instances[1].Profile, g.Instances[1].ProfileID = "4g.20gb", gpu.Some(uint32(5))
		src.gpus[uuidA] = g
	})

	s = h.pollAfter(time.Second)
	if got := holders(s); len(got) != 0 || len(s.Unmatched) != 0 {
		t.Errorf("holders %+v of an instance that is newer than the mapping", got)
	}

	pods.err = nil

	s = h.pollAfter(time.Second)
	if got := holders(s); len(got) != 1 || !got[0].Since.Equal(h.clock.Now()) {
		t.Errorf("holders %+v, want p since now", got)
	}
}

// The device was found after its holder was listed last (a late driver, a GPU that was away, while
// the kubelet is silent or only its checkpoint has the holder): that is no proof that it is free.
func TestDeviceFoundAfterItsHolder(t *testing.T) {
	t0 := time.Unix(1000, 0)
	g := []gpu.GPU{migGPU()}
	g[0].Instances[1].Since, g[0].Instances[1].ComputeInstances[0].Since = t0.Add(time.Minute), t0.Add(time.Minute)
	a := newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "p", 1)
	a.LastListed = t0
	attachHolders(g, gpu.Assignments{List: []gpu.Assignment{a}}, time.Time{}, nil)

	if got := g[0].Instances[1].ComputeInstances[0].Allocated; got == gpu.Some(false) {
		t.Error("a confirmed holder was dropped and its device is reported as free")
	}
}

// A pod holds the GPU, or an unknown part of it (a HAMi id before its reservation is known): no
// instance is free.
func TestHolderOfAGPUWithInstances(t *testing.T) {
	g := []gpu.GPU{migGPU()}
	a := newAssignment(gpu.DeviceRef{GPU: uuidA}, "p", 1)
	a.Holder.Sharing = gpu.SharingHAMi
	a.Holder.Replica = "3"
	attachHolders(g, gpu.Assignments{List: []gpu.Assignment{a}}, time.Time{}, nil)

	if got := g[0].Instances[0].ComputeInstances[0].Allocated; got == gpu.Some(false) {
		t.Error("an instance of a GPU that a pod has a part of is reported as free")
	}
}

// An unconfirmed holder whose reference names the GPU and no existing instance may hold any of it.
func TestUnconfirmedParent(t *testing.T) {
	g := []gpu.GPU{migGPU()}
	a := unconfirmedAssignment(gpu.DeviceRef{GPU: uuidA, PlacementStart: gpu.Some(2)}, "p")
	attachHolders(g, gpu.Assignments{List: []gpu.Assignment{a}}, time.Time{}, nil)

	if got := g[0].Instances[0].ComputeInstances[0].Allocated; got == gpu.Some(false) {
		t.Error("reported as free, though control holds the whole GPU")
	}
}
