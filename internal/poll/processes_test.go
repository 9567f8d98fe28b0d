package poll

import (
	"fmt"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// countingContainers counts what it is asked.
type countingContainers struct {
	fakeContainers
	asked map[uint32]int
}

func (c countingContainers) ContainerOf(pid uint32) (gpu.Container, bool) {
	c.asked[pid]++
	return c.fakeContainers.ContainerOf(pid)
}

// TestProcessContainers: the containers of processes are looked up if that is enabled, also without
// a kubelet and for devices that are not shared, and what the source handed out stays as it is.
func TestProcessContainers(t *testing.T) {
	main := gpu.Container{Namespace: "ns", Pod: "p", Name: "main"}

	for _, asked := range []bool{true, false} {
		src := newFakeSource(uuidA)
		list := []gpu.Process{
			{PID: 11, MemoryBytes: gpu.Some[uint64](1)}, {PID: 12, MemoryBytes: gpu.Some[uint64](2)}}
		g := src.gpus[uuidA]
		g.Readings.Processes = gpu.Some(list)
		src.gpus[uuidA] = g
		containers := countingContainers{fakeContainers{11: main}, map[uint32]int{}}
		h := newHarness(t, src, func(o *Options) { o.Containers, o.ProcessContainers = containers, asked })
		stop := h.startLoop()
		s := h.pollAfter(time.Second)

		if err := stop(); err != nil {
			t.Fatal(err)
		}

		got := map[uint32]gpu.Container{}
		for _, p := range s.GPUs[0].Readings.Processes.Or(nil) {
			got[p.PID] = p.Container
		}

		want := gpu.Container{}
		if asked {
			want = main
		}

		cmptest.Equal(t, fmt.Sprintf("containers by process, asked %v", asked), got,
			map[uint32]gpu.Container{11: want, 12: {}})

		if list[0] != (gpu.Process{PID: 11, MemoryBytes: gpu.Some[uint64](1)}) {
			t.Errorf("asked %v: the reading was changed: %+v", asked, list[0])
		}

		if n := len(containers.asked); asked != (n == 2) {
			t.Errorf("asked %v: %d processes were looked up", asked, n)
		}
	}
}

// TestProcessContainersAreBounded: only the largest processes, which have series, are looked up.
func TestProcessContainersAreBounded(t *testing.T) {
	g := gpu.GPU{}

	var list []gpu.Process
	for i := range uint32(1000) {
		list = append(list, gpu.Process{PID: i, MemoryBytes: gpu.Some(uint64(i))})
	}

	g.Readings.Processes = gpu.Some(list)
	containers := countingContainers{fakeContainers{}, map[uint32]int{}}
	p := Poller{opts: Options{Containers: containers, ProcessContainers: true}}
	p.describeProcesses(&g)
	cmptest.Equal(t, "number of looked-up processes", len(containers.asked), gpu.MaxProcesses)
	cmptest.Equal(t, "lookups of the largest process", containers.asked[999], 1)
	cmptest.Equal(t, "lookups of the smallest process", containers.asked[0], 0)

	if n := len(g.Readings.Processes.Or(nil)); n != 1000 {
		t.Errorf("%d processes are left, want all", n)
	}
}

// fakeTable has the name of each process, and its user.
type fakeTable map[uint32][2]string

func (t fakeTable) Describe(pid uint32) (name, user string) { return t[pid][0], t[pid][1] }

// TestProcessNames: processes get a name, a user and a job only if they are listed, and a job only
// outside of containers, where the device has no other. What the source handed out stays as it is.
func TestProcessNames(t *testing.T) {
	one, two := gpu.Some(gpu.InstanceID(1)), gpu.Some(gpu.InstanceID(2))
	list := []gpu.Process{{PID: 11}, {PID: 12, Instance: one}, {PID: 13, Instance: two}, {PID: 14, Instance: one},
		{PID: 15, Instance: gpu.Some(gpu.InstanceID(9))}}
	main := gpu.Container{Namespace: "ns", Pod: "p", Name: "main"}
	node := func() *gpu.GPU {
		g := &gpu.GPU{Jobs: []string{"4711"}}
		g.Readings.Processes = gpu.Some(list)
		g.Instances = []gpu.GPUInstance{{ID: 1, Jobs: []string{"42"}}, {ID: 2, Jobs: []string{"43", "44"}}}

		return g
	}
	opts := Options{Containers: fakeContainers{14: main}, ProcessTable: fakeTable{11: {"python3", "ada"}}}

	for _, opts.Processes = range []gpu.ProcessDetail{"", gpu.ProcessesOff} {
		g := node()
		p := &Poller{opts: opts}
		allocations := testing.AllocsPerRun(10, func() { p.describeProcesses(g) })
		cmptest.Equal(t, "allocations", allocations, 0)
		cmptest.Equal(t, "processes that are not listed", g.Readings.Processes, gpu.Some(list))
	}

	for _, opts.Processes = range []gpu.ProcessDetail{gpu.ProcessNames, gpu.ProcessUsers} {
		g := node()
		(&Poller{opts: opts}).describeProcesses(g)
		cmptest.Equal(t, "listed processes", g.Readings.Processes, gpu.Some([]gpu.Process{
			{PID: 11, Job: "4711", Name: "python3", User: "ada"},
			{PID: 12, Instance: one, Job: "42"},
			{PID: 13, Instance: two},
			{PID: 14, Instance: one, Container: main},
			{PID: 15, Instance: gpu.Some(gpu.InstanceID(9))},
		}))
	}

	if list[0] != (gpu.Process{PID: 11}) {
		t.Errorf("the reading was changed: %+v", list[0])
	}
}
