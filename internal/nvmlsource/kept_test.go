package nvmlsource_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// replaceCompute makes the compute instance 0 of a GPU instance another one, with the same id.
func (n *node) replaceCompute(gi gpu.InstanceID, slices, at int) {
	n.t.Helper()
	must(n.t, n.DestroyComputeInstance(0, gi, 0))
	id, err := n.CreateComputeInstanceAt(0, gi, slices, gpu.Some(at))
	must(n.t, err)
	cmptest.Equal(n.t, "the id of the new compute instance", id, 0)
}

// A compute instance that was created again with the id and the UUID of another one has its own
// placement at once if the driver reports the change; else as soon as the slow tier sees that its
// size has changed.
func TestPlacementsOfAReplacedComputeInstance(t *testing.T) {
	for _, tt := range []struct {
		name, options string
		from, to      gpu.Placement
		reported      bool
		after         time.Duration
	}{
		{"legacy UUIDs", ", migUUIDs: legacy", gpu.Placement{Start: 0, Size: 1}, gpu.Placement{Start: 2, Size: 1}, true,
			time.Second},
		{"another size", "", gpu.Placement{Start: 0, Size: 1}, gpu.Placement{Start: 0, Size: 2}, true, time.Second},
		{"another size, not reported", "", gpu.Placement{Start: 0, Size: 1}, gpu.Placement{Start: 0, Size: 2}, false,
			15 * time.Second},
		{"legacy UUIDs, not reported", ", migUUIDs: legacy", gpu.Placement{Start: 0, Size: 1},
			gpu.Placement{Start: 2, Size: 1}, false, 15 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, tt.options, oneHalf)
			id := n.discover()[0]
			gi := n.read(id).Instances[0].ID
			n.replaceCompute(gi, tt.from.Size, tt.from.Start)
			n.advance(time.Second)
			n.quiet(id, gpu.ReadCues{})
			n.advance(15 * time.Second)
			before, _ := n.quiet(id, gpu.ReadCues{})

			n.spy.deaf.Store(!tt.reported)
			n.replaceCompute(gi, tt.to.Size, tt.to.Start)
			n.advance(tt.after)
			after, _ := n.quiet(id, gpu.ReadCues{})

			was := before.Instances[0].ComputeInstances[0]
			is := after.Instances[0].ComputeInstances[0]
			cmptest.Equal(t, "the UUID", is.UUID, was.UUID)
			cmptest.Equal(t, "the placement before", was.Placement, gpu.Some(tt.from))
			cmptest.Equal(t, "the placement after", is.Placement, gpu.Some(tt.to))
		})
	}
}

// Placements are read again after ten minutes, whatever the reports say.
func TestPlacementsAreReadAgain(t *testing.T) {
	n := newNode(t, "", oneHalf)
	id := n.discover()[0]
	n.quiet(id, gpu.ReadCues{})

	lists := 0

	for range 11 * 60 {
		n.advance(time.Second)
		_, calls := n.quiet(id, gpu.ReadCues{})
		lists += calls["Instance.GetComputeInstances"]
	}

	cmptest.Equal(t, "lists of compute instances in ten minutes", lists, 1)
}

// A report ends what we know of processes: they were those of other instances, though ids and
// UUIDs are the same.
func TestProcessesAreListedAfterAReport(t *testing.T) {
	n := newNode(t, "", oneHalf+`
workloads: [{name: a, memory: 2GiB, sm: 4}, {name: b, memory: 2GiB, sm: 4}]
processes: [{device: "0/3g.20gb@0/0", workload: a, for: 4500ms}, {device: "0/3g.20gb@0/0", workload: b, at: 4700ms}]`)
	id := n.discover()[0]
	n.quiet(id, gpu.ReadCues{})
	n.advance(4 * time.Second)
	before, _ := n.quiet(id, gpu.ReadCues{})

	n.advance(600 * time.Millisecond)
	gi := before.Instances[0].ID
	must(t, n.DestroyComputeInstance(0, gi, 0))
	must(t, n.DestroyGPUInstance(0, gi))
	_, err := n.CreateGPUInstance(0, 9, gpu.Some(0))
	must(t, err)
	_, err = n.CreateComputeInstance(0, gi, 3)
	must(t, err)
	n.advance(400 * time.Millisecond)
	after, _ := n.quiet(id, gpu.ReadCues{})

	was := before.Readings.Processes.Or(nil)

	is := after.Readings.Processes.Or(nil)
	if len(was) != 1 || len(is) != 1 || was[0].PID == is[0].PID {
		t.Errorf("processes %+v before the change and %+v after it, want one each, and another one", was, is)
	}

	cmptest.Equal(t, "the memory in use", after.Instances[0].Memory.Used, before.Instances[0].Memory.Used)
}

// Clients of MPS remain known for a while if their list fails, which is read again with the next
// tier; then no process is known.
func TestMPSListThatFails(t *testing.T) {
	n := startNode(t, `version: 1
node: {hostname: n1, driver: "580.95.05", cuda: "13.0", kubernetes: true}
gpus:
  - {model: A100-80GB, sharing: {kind: mps, replicas: 4, rename: true}}
workloads: [{name: a, memory: 2GiB, sm: 4}]
pods:
  - {namespace: chat, name: s1, resource: nvidia.com/gpu.shared, device: "0", workload: a}
  - {namespace: chat, name: s2, resource: nvidia.com/gpu.shared, device: "0", workload: a}
`)
	id := n.discover()[0]
	all := len(n.read(id).Readings.Processes.Or(nil))

	read := func(after time.Duration) (processes string, newErrors, calls int) {
		t.Helper()
		n.advance(after)
		n.spy.taken()
		g, err := n.source.ReadWith(id, gpu.ReadCues{})
		must(t, err)

		for _, e := range g.Errors {
			if !e.Remembered {
				newErrors++
			}
		}

		if list, known := g.Readings.Processes.Get(); known {
			processes = fmt.Sprint(len(list) - all)
		}

		return processes, newErrors, n.spy.taken()[mpsList]
	}
	type result struct {
		more              string // processes than at first; "" if they are unknown
		newErrors, listed int
	}

	for i, tt := range []struct {
		ret   nvml.Return
		after time.Duration
		want  result
	}{
		{nvml.ERROR_UNKNOWN, 15 * time.Second, result{"0", 1, 1}},
		{nvml.ERROR_UNKNOWN, time.Second, result{"0", 0, 0}},
		{nvml.SUCCESS, 15 * time.Second, result{"0", 0, 1}},
		{nvml.ERROR_UNKNOWN, time.Minute, result{"", 1, 1}},
		{nvml.ERROR_UNKNOWN, time.Second, result{"", 0, 0}},
		{nvml.SUCCESS, 15 * time.Second, result{"0", 0, 1}},
	} {
		n.spy.set("GetMPSComputeRunningProcesses", tt.ret)
		var got result
		got.more, got.newErrors, got.listed = read(tt.after)
		cmptest.Equal(t, fmt.Sprintf("reading %d", i), got, tt.want)
	}
}

// A list that fails once has its last answer, however seldom the slow tier is read.
func TestListThatFailsOnceInAStretchedTier(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]
	cues := gpu.ReadCues{SlowEvery: 2 * time.Minute}

	for i, tt := range []struct {
		ret   nvml.Return
		known bool
	}{{nvml.SUCCESS, true}, {nvml.ERROR_UNKNOWN, true}, {nvml.ERROR_UNKNOWN, false}, {nvml.SUCCESS, true}} {
		n.spy.set("GetGraphicsRunningProcesses", tt.ret)
		n.advance(2 * time.Minute)
		g, err := n.source.ReadWith(id, cues)
		must(t, err)
		cmptest.Equal(t, fmt.Sprintf("reading %d: processes are known", i), g.Readings.Processes.Present(), tt.known)
	}
}

// Lists that fail are read again with the slow tier, on a cue and after a report, not in each
// reading; what they said remains in between, as an error that is not new.
func TestListsThatFail(t *testing.T) {
	n := newNode(t, "", `  - {model: A100-40GB, mig: true, layout: [1g.5gb@0, 1g.5gb@1]}`)
	id := n.discover()[0]
	n.read(id)
	n.spy.set("GetComputeRunningProcesses", nvml.ERROR_UNKNOWN)
	n.spy.set("MIG.GetComputeRunningProcesses", nvml.ERROR_UNKNOWN)

	for second := 1; second <= 31; second++ {
		n.advance(time.Second)
		n.spy.taken()
		g, err := n.source.ReadWith(id, gpu.ReadCues{FollowMemory: true, Changed: second == 5})
		must(t, err)
		calls := n.spy.taken()

		due := second == 5 || second%15 == 0
		if listed := calls[computeList] + calls["MIG.GetComputeRunningProcesses"]; listed != map[bool]int{true: 3}[due] {
			t.Errorf("after %d s %d lists are read", second, listed)
		}

		if second < 5 {
			continue
		}

		if known := g.Readings.Processes.Present(); known || len(g.Errors) != 1 || g.Errors[0].Remembered == due {
			t.Errorf("after %d s processes are known: %t; errors %+v", second, known, g.Errors)
		}

		for i := range g.Instances {
			ci := &g.Instances[i].ComputeInstances[0]
			if ci.Up || len(ci.Errors) != 1 || ci.Errors[0].Remembered == due {
				t.Errorf("after %d s a compute instance is up: %t; errors %+v", second, ci.Up, ci.Errors)
			}
		}
	}
}

// Where the memory in use is unknown and nothing else says who uses a GPU, its processes are
// listed each time.
func TestProcessesAreListedWhereMemoryIsUnknown(t *testing.T) {
	for _, bare := range []bool{true, false} {
		n := newNode(t, "", `  - {model: A100-40GB}
workloads: [{name: job, memory: 2GiB, sm: 4}]
processes: [{device: "0", workload: job, at: 3s}]`)
		id := n.discover()[0]
		n.spy.set("GetMemoryInfo", nvml.ERROR_NOT_SUPPORTED)
		n.quiet(id, gpu.ReadCues{})

		for second := 1; second <= 5; second++ {
			n.advance(time.Second)
			g, _ := n.quiet(id, gpu.ReadCues{FollowMemory: bare})

			seen := len(g.Readings.Processes.Or(nil)) == 1
			if seen != (bare && second >= 3) {
				t.Errorf("after %d s, without an allocator %t: the process is seen: %t", second, bare, seen)
			}
		}
	}
}

// Memory that becomes known, or unknown, may hide a process that has started meanwhile.
func TestProcessesAreListedWhenMemoryIsUnknownForAWhile(t *testing.T) {
	n := newNode(t, "", `  - {model: A100-40GB}`)
	id := n.discover()[0]
	n.quiet(id, gpu.ReadCues{})

	for i, ret := range []nvml.Return{nvml.SUCCESS, nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN, nvml.SUCCESS, nvml.SUCCESS} {
		n.advance(time.Second)
		n.spy.set("GetMemoryInfo", ret)
		n.spy.taken()
		_, err := n.source.ReadWith(id, gpu.ReadCues{})
		must(t, err)
		cmptest.Equal(t, fmt.Sprintf("reading %d: the lists are read", i), n.spy.taken()[computeList] == 1, i == 1 || i == 3)
	}
}
