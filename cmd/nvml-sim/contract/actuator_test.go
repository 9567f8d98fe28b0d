package contract

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// What partition control does goes through go-nvml and the C library as it does in process. GPU 0
// is repartitioned, GPU 1 hangs and GPU 2 is lost in the middle of that, and GPU 3 changes its MIG
// mode.
const repartitionNode = `
version: 1
node: {kubernetes: false}
gpus:
- {model: A100-40GB, count: 3, mig: true, layout: [{gi: "3g.20gb@4", ci: ["1c", "2c"]}]}
- {model: H100-80GB}
workloads: [{name: work, memory: 1GiB, sm: 10}]
processes: [{device: "0/3g.20gb@4/1", workload: work}]
faults:
- {kind: hang, gpu: 1, on: change, after: 1, for: 1m}
- {kind: lost, gpu: 2, on: change, after: 1}
`

func TestActuatorThroughTheLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	if !inChild(t, "MIG_SIM_SCENARIO="+scenarioFile(t, repartitionNode), "MIG_SIM_CLOCK=step", "MIG_SIM_STATE="+path) {
		return
	}

	node := joinState(t, os.Getenv("MIG_SIM_SCENARIO"), os.Getenv("MIG_SIM_STATE"))
	checkActuator(t, node, nvmlsource.Open(built("libnvidia-ml.so.1")))
}

func TestActuatorInProcess(t *testing.T) {
	node := joinState(t, scenarioFile(t, repartitionNode), filepath.Join(t.TempDir(), "state"))
	checkActuator(t, node, simnvml.New(node))
}

func checkActuator(t *testing.T, node *sim.Node, lib nvmlsource.Library) {
	source := nvmlsource.New(lib, nvmlsource.Options{Now: node.Now, Logger: log.NewNopLogger()})
	c := &control{source: source, Actuator: source.Actuator()}
	t.Run("repartition", c.repartition)
	t.Run("mode", c.mode)
	t.Run("lost", c.lost)
	t.Run("hang", func(t *testing.T) { c.hang(t, node) })

	if err := source.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// control is the Actuator of a Source over the library.
type control struct {
	*nvmlsource.Actuator
	source *nvmlsource.Source
}

func (c *control) layout(t *testing.T, index int) mig.GPULayout {
	t.Helper()

	list, failed, err := c.Layouts(t.Context())
	if err != nil || len(failed) > 0 {
		t.Fatalf("layouts: %v, %v", err, failed)
	}

	return list[index]
}

// planned are the steps to a layout of a GPU.
func (c *control) planned(t *testing.T, g mig.GPULayout, want ...mig.Want) []mig.Step {
	t.Helper()

	plan, err := mig.PlanNode(t.Context(), []mig.GPULayout{g},
		mig.Spec{Rules: []mig.Rule{{GPUs: []string{string(g.UUID)}, Enabled: true, Want: want}}})
	if err != nil {
		t.Fatal(err)
	}

	return plan.Steps
}

// step performs a step on the current layout. What it reads afterwards is what a layout read then
// says, and after a success what the step leaves.
func (c *control) step(t *testing.T, s mig.Step) (mig.Done, error) {
	t.Helper()
	before := c.instances(t, s.GPU)

	out, err := c.PerformStep(t.Context(), s, before)
	if err != nil && !out.Read {
		return out.Done, err
	}

	if after := c.instances(t, s.GPU); !out.Read || !mig.SameInstances(out.Instances, after) {
		t.Errorf("%s leaves %+v, read %+v", s.Op, after, out)
	}

	if want := mig.AfterStep(before, s, out.Done); err == nil && !mig.SameInstances(out.Instances, want) {
		t.Errorf("%s leaves %+v, want %+v", s.Op, out.Instances, want)
	}

	return out.Done, err
}

func (c *control) instances(t *testing.T, id gpu.UUID) []mig.Instance {
	t.Helper()

	list, failed, err := c.Layouts(t.Context(), id)
	if err != nil {
		t.Fatalf("layout of %s: %v", id, err)
	}

	if len(failed) > 0 {
		t.Fatalf("layout of %s: failed GPUs %v", id, failed)
	}

	if len(list) != 1 {
		t.Fatalf("layout of %s: got %d layouts, want 1", id, len(list))
	}

	return list[0].Instances
}

// busyLayout returns the layout of GPU 0: one GPU instance of two compute instances, the second of
// which has a process.
func (c *control) busyLayout(t *testing.T) mig.GPULayout {
	t.Helper()

	before := c.layout(t, 0)
	if len(before.Instances) != 1 || len(before.Instances[0].ComputeInstances) != 2 {
		t.Fatalf("got layout %+v, want one GPU instance of two compute instances", before)
	}

	instance := &before.Instances[0]
	cmptest.Equal(t, "placement of the GPU instance", instance.Placement, gpu.Placement{Start: 4, Size: 4})
	cmptest.Equal(t, "placement of the second compute instance",
		instance.ComputeInstances[1].Placement, gpu.Some(gpu.Placement{Start: 1, Size: 2}))

	running, err := c.Processes(t.Context(), before.UUID)
	if err != nil {
		t.Fatal(err)
	}

	if len(running) != 1 {
		t.Fatalf("got processes %+v, want one", running)
	}

	cmptest.Equal(t, "GPU instance of the process", running[0].Instance, gpu.Some(instance.ID))
	cmptest.Equal(t, "compute instance of the process", running[0].Compute, gpu.Some(instance.ComputeInstances[1].ID))

	return before
}

// repartition: what is busy is refused and stays, an idle compute instance beside it makes room for
// others, and each step is as it was asked for; the Source reads it at once.
func (c *control) repartition(t *testing.T) {
	before := c.busyLayout(t)
	instance := &before.Instances[0]

	busy := c.planned(t, before)[1] // the second compute instance, of all that goes
	if _, err := c.step(t, busy); busy.UUID != instance.ComputeInstances[1].UUID || !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("%+v: %v", busy, err)
	}

	if after := c.layout(t, 0); !reflect.DeepEqual(after, before) {
		t.Errorf("a refused step has changed %+v to %+v", before, after)
	}

	instance.ComputeInstances[1].Busy = true
	uuids := map[gpu.MIGUUID]bool{}

	for _, s := range c.planned(t, before, mig.Want{Profile: "3g.20gb", Count: 1, ComputeInstances: []int{2}},
		mig.Want{Profile: "2g.10gb", Count: 2, ComputeInstances: []int{1, 1}}) {
		done, err := c.step(t, s)
		if err != nil {
			t.Fatalf("%s: %v", s.Op, err)
		}

		if s.Op == mig.CreateCompute {
			uuids[done.UUID] = true
		}
	}

	after := c.layout(t, 0)

	g, err := c.source.Read(after.UUID)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "errors of the GPU", len(g.Errors), 0)
	cmptest.Equal(t, "created UUIDs", len(uuids), 4)

	if len(after.Instances) != 3 || len(g.Instances) != 3 {
		t.Fatalf("got %d GPU instances in the layout and %d in the reading, want 3", len(after.Instances), len(g.Instances))
	}

	for i, at := range after.Instances {
		if g.Instances[i].ID != at.ID || len(g.Instances[i].ComputeInstances) != len(at.ComputeInstances) {
			t.Errorf("read %+v where %+v exists", g.Instances[i], at)
		}

		for k, ci := range at.ComputeInstances {
			if read := g.Instances[i].ComputeInstances[k]; read.UUID != ci.UUID ||
				uuids[ci.UUID] == (ci.UUID == instance.ComputeInstances[1].UUID) {
				t.Errorf("read %+v where %+v exists; made %v", read, ci, uuids)
			}
		}
	}

	again := c.planned(t, after, mig.Want{Profile: "3g.20gb", Count: 1, ComputeInstances: []int{2}},
		mig.Want{Profile: "2g.10gb", Count: 2, ComputeInstances: []int{1, 1}})
	if len(again) != 0 {
		t.Errorf("still to do: %+v", again)
	}
}

// mode: a GPU that is in MIG mode offers profiles, can be partitioned, and cannot leave the mode
// before that is undone.
func (c *control) mode(t *testing.T) {
	id := c.layout(t, 3).UUID
	if _, err := c.source.Read(id); err != nil {
		t.Fatal(err)
	}

	set := func(on bool, current bool, why error) {
		t.Helper()

		m, err := c.SetMIGMode(t.Context(), id, on)
		if err != nil {
			t.Error(err)
		}

		cmptest.Equal(t, "current mode", m.Current, current)
		cmptest.Equal(t, "pending mode", m.Pending, on)

		if !errors.Is(m.Activation, why) {
			t.Errorf("activation: got %v, want %v", m.Activation, why)
		}

		g, err := c.source.Read(id)
		if err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "current mode read", g.MIG.Enabled, gpu.Some(current))
		cmptest.Equal(t, "pending mode read", g.MIG.Pending, gpu.Some(on))
	}
	set(true, true, nil)

	steps := c.planned(t, c.layout(t, 3), mig.Want{Profile: "1g.10gb+me", Count: 1})
	for _, s := range steps {
		if _, err := c.step(t, s); err != nil {
			t.Fatal(err)
		}
	}

	set(false, true, gpu.ErrInUse)
	set(true, true, nil)

	for _, s := range c.planned(t, c.layout(t, 3)) {
		if _, err := c.step(t, s); err != nil {
			t.Fatal(err)
		}
	}

	set(false, false, nil)
}

// lost: the second step finds the GPU gone; the others are read on.
func (c *control) lost(t *testing.T) {
	g := c.layout(t, 2)

	steps := c.planned(t, g)
	if _, err := c.step(t, steps[0]); err != nil {
		t.Fatal(err)
	}

	out, err := c.PerformStep(t.Context(), steps[1], c.instances(t, g.UUID))
	if !errors.Is(err, gpu.ErrLost) || out.Read {
		t.Errorf("%+v: %+v, %v", steps[1], out, err)
	}

	list, failed, err := c.Layouts(t.Context())
	if err != nil {
		t.Error(err)
	}

	cmptest.Equal(t, "layouts beside the lost GPU's", len(list), 3)

	if !errors.Is(failed[g.UUID], gpu.ErrLost) {
		t.Errorf("layout of the lost GPU: got %v, want %v", failed[g.UUID], gpu.ErrLost)
	}
}

// wantHung wants a number of calls to hang, all on one GPU.
func (c *control) wantHung(t *testing.T, id gpu.UUID, want int) {
	t.Helper()

	if got := c.HungCalls(); got != want {
		t.Fatalf("%d calls hang, want %d", got, want)
	}

	if got := c.Hung(id); got != (want > 0) {
		t.Fatalf("a call hangs on %s: %v, want %v", id, got, want > 0)
	}
}

// hang: a step that hangs is given up, another is refused at once, and the GPUs beside it can be
// read; when the driver answers again, what was given up before its change is not done.
func (c *control) hang(t *testing.T, node *sim.Node) {
	list, _, err := c.Layouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	g := list[1]
	steps := c.planned(t, g)

	out, err := c.PerformStep(t.Context(), steps[0], g.Instances)
	if err != nil {
		t.Fatal(err)
	}

	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()

	if _, err := c.PerformStep(soon, steps[1], out.Instances); !errors.Is(err, gpu.ErrTimeout) {
		t.Fatalf("a step that hangs: got %v, want %v", err, gpu.ErrTimeout)
	}

	c.wantHung(t, g.UUID, 1)

	if _, err := c.PerformStep(t.Context(), steps[2], out.Instances); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("beside a step that hangs: %v", err)
	}

	soon, cancel = context.WithTimeout(t.Context(), 3*time.Second) // in which the other GPUs are read on any machine
	defer cancel()

	others, failed, err := c.Layouts(soon)
	if err != nil {
		t.Error(err)
	}

	cmptest.Equal(t, "layouts beside the GPU that hangs", len(others), 2)

	if !errors.Is(failed[g.UUID], gpu.ErrTimeout) {
		t.Errorf("layout of the GPU that hangs: got %v, want %v", failed[g.UUID], gpu.ErrTimeout)
	}

	if err := node.Advance(2 * time.Minute); err != nil {
		t.Fatal(err)
	}

	look := time.NewTicker(10 * time.Millisecond) // at when the call that has left the driver is counted out
	defer look.Stop()

	for begin := time.Now(); c.HungCalls() > 0 && time.Since(begin) < waitLimit; {
		<-look.C
	}

	// The call itself was made before it was given up: its compute instance is gone. The GPU
	// instance exists.
	list, failed, err = c.Layouts(t.Context())
	if err != nil || failed[g.UUID] != nil {
		t.Fatalf("layouts after the call: %v, %v", err, failed)
	}

	c.wantHung(t, g.UUID, 0)

	if got := len(list[1].Instances); got != 1 {
		t.Fatalf("got %d GPU instances, want 1: %+v", got, list)
	}

	for _, s := range c.planned(t, list[1]) {
		if _, err := c.step(t, s); err != nil {
			t.Error(err)
		}
	}

	list, _, err = c.Layouts(t.Context())
	if err != nil || len(list[1].Instances) != 0 {
		t.Errorf("left %+v, %v", list, err)
	}
}
