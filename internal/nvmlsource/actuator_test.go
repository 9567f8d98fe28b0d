package nvmlsource_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// partitioned is an A100 in one 3g.20gb with two compute instances, and a second one without any.
const partitioned = `  - {model: A100-40GB, mig: true, layout: [{gi: "3g.20gb@0", ci: ["1c", "2c"]}]}
  - {model: A100-40GB, mig: true}`

func TestLayouts(t *testing.T) {
	n := newNode(t, "", partitioned+"\n  - {model: H100-80GB}")
	ids := n.discover()
	g := n.layout(0)
	cmptest.Equal(t, "GPU 0", g, mig.GPULayout{
		Facts: gpu.Facts{UUID: ids[0], PCIBusID: "00000000:07:00.0", Minor: gpu.Some(0), Name: "NVIDIA A100-SXM4-40GB",
			Profiles: g.Profiles},
		MIG: gpu.Some(true), Pending: gpu.Some(true), PCIDevice: 0x20B010DE, Instances: g.Instances,
	})

	if len(g.Profiles) < 5 {
		t.Errorf("len(g.Profiles) is %v, want at least 5", len(g.Profiles))
	}

	cmptest.Equal(t, "len(g.Profiles[0].Placements)", len(g.Profiles[0].Placements), 7)

	if len(g.Instances) != 1 {
		t.Fatalf("instances %+v", g.Instances)
	}

	i := g.Instances[0]
	cmptest.Equal(t, "i.Placed", i.Placed,
		(mig.Placed{ProfileID: 9, Profile: "3g.20gb", Placement: gpu.Placement{Start: 0, Size: 4}}))
	cmptest.Equal(t, "i.Busy", i.Busy, false)

	if len(i.ComputeInstances) != 2 {
		t.Fatalf("i.ComputeInstances: %+v, want 2 of them", i.ComputeInstances)
	}

	for k, want := range []gpu.Placement{{Start: 0, Size: 1}, {Start: 1, Size: 2}} {
		c := i.ComputeInstances[k]
		cmptest.Equal(t, "c.Slices", c.Slices, want.Size)
		cmptest.Equal(t, "c.Placement", c.Placement, gpu.Some(want))

		if c.UUID == "" {
			t.Error("c.UUID is empty")
		}

		cmptest.Equal(t, "c.ID", c.ID, gpu.ComputeID(k))
	}

	off := n.layout(2)
	cmptest.Equal(t, "off.MIG", off.MIG, gpu.Some(false))
	cmptest.Equal(t, "len(off.Instances)", len(off.Instances), 0)

	if len(off.Profiles) == 0 {
		t.Error("off.Profiles is empty")
	}

	if len(off.Profiles[0].Placements) == 0 {
		t.Error("off.Profiles[0].Placements is empty")
	}
}

// Each step is seen by the next layout and by the next Read, with no time in between; undone, all
// is as before.
func TestStepsAndTheirUndoing(t *testing.T) {
	n := newNode(t, "", partitioned)
	id := n.discover()[0]
	before := n.layout(0)
	n.read(id)
	s := steps{id}
	gi := s.createGI(14, 4, 2)
	madeGI := n.do(gi)
	ci := s.createCI(gi, 1, 1)

	madeCI := n.do(ci)
	if madeCI.UUID == "" {
		t.Error("madeCI.UUID is empty")
	}

	cmptest.Equal(t, "madeCI.Instance", madeCI.Instance, madeGI.Instance)
	cmptest.Equal(t, "madeCI.ComputeID.Present()", madeCI.ComputeID.Present(), true)
	at := n.layout(0).Instances[1]
	cmptest.Equal(t, "at.ID", at.ID, madeGI.Instance)
	cmptest.Equal(t, "at.Placement", at.Placement, gi.Placement)
	cmptest.Equal(t, "at.ComputeInstances[0].Placement", at.ComputeInstances[0].Placement, ci.Compute)
	cmptest.Equal(t, "at.ComputeInstances[0].UUID", at.ComputeInstances[0].UUID, madeCI.UUID)

	if g := n.read(id); len(g.Instances) != 2 || g.Instances[1].ComputeInstances[0].UUID != madeCI.UUID {
		t.Errorf("read %+v", g.Instances)
	}

	if _, err := n.source.Actuator().Do(t.Context(), s.destroy(gi, madeGI)); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("a GPU instance with a compute instance: %v", err)
	}

	n.do(s.destroy(ci, madeCI))
	n.do(s.destroy(gi, madeGI))

	if after := n.layout(0); !reflect.DeepEqual(after, before) {
		t.Errorf("%+v, then %+v", before, after)
	}

	if g := n.read(id); len(g.Instances) != 1 {
		t.Errorf("read %+v", g.Instances)
	}

	for _, gone := range []mig.Step{s.destroy(ci, madeCI), s.destroy(gi, madeGI), ci} {
		if _, err := n.source.Actuator().Do(t.Context(), gone); !errors.Is(err, gpu.ErrNotFound) {
			t.Errorf("%s of what is gone: %v", gone.Op, err)
		}
	}
}

// With the names of old drivers nothing of a compute instance's identity shows that it was created
// again at another place.
func TestReadAfterAStepThatNoScanShows(t *testing.T) {
	n := newNode(t, ", migUUIDs: legacy", `  - {model: A100-40GB, mig: true, layout: [{gi: "3g.20gb@0", ci: ["1c"]}]}`)
	id := n.discover()[0]
	old := n.read(id).Instances[0].ComputeInstances[0]
	s := steps{id}
	ci := s.createCI(s.createGI(9, 0, 4), 0, 1)
	n.do(s.destroy(ci, mig.Done{Instance: n.layout(0).Instances[0].ID, ComputeID: gpu.Some(old.ID), UUID: old.UUID}))

	moved := n.do(s.createCI(ci, 2, 1))
	if moved.UUID != old.UUID {
		t.Fatalf("UUIDs %s and %s", old.UUID, moved.UUID)
	}

	if c := n.read(id).Instances[0].ComputeInstances[0]; c.Placement != gpu.Some(gpu.Placement{Start: 2, Size: 1}) {
		t.Errorf("read at %v", c.Placement)
	}
}

// What is not as the step says is not changed, whatever its ids are.
func TestStepsForWhatIsNoMore(t *testing.T) {
	n := newNode(t, "", partitioned)
	s := steps{n.discover()[0]}
	i := n.layout(0).Instances[0]
	gi := s.destroy(s.createGI(9, 0, 4), mig.Done{Instance: i.ID})
	c := i.ComputeInstances[1]

	ci := s.destroy(s.createCI(s.createGI(9, 0, 4), 1, 2),
		mig.Done{Instance: i.ID, ComputeID: gpu.Some(c.ID), UUID: c.UUID})
	for _, tc := range []struct {
		about  string
		step   mig.Step
		change func(*mig.Step)
		want   error
	}{
		{"elsewhere, free", gi, func(s *mig.Step) { s.Placement.Start = 4 }, gpu.ErrNotFound},
		{"elsewhere, taken", gi, func(s *mig.Step) { s.Placement = gpu.Placement{Start: 2, Size: 2} }, gpu.ErrReplaced},
		{"profile", gi, func(s *mig.Step) { s.ProfileID = 5 }, gpu.ErrReplaced},
		{"id of the GPU instance", gi, func(s *mig.Step) { s.Instance = gpu.Some(i.ID + 1) }, gpu.ErrReplaced},
		{"id of its GPU instance", ci, func(s *mig.Step) { s.Instance = gpu.Some(i.ID + 1) }, gpu.ErrReplaced},
		{"id of the compute instance", ci, func(s *mig.Step) { s.ComputeID = gpu.Some(c.ID + 5) }, gpu.ErrReplaced},
		{"UUID", ci, func(s *mig.Step) { s.UUID = "MIG-x" }, gpu.ErrReplaced},
		{"place of the compute instance", ci, func(s *mig.Step) { s.Compute = gpu.Some(gpu.Placement{Start: 2, Size: 1}) },
			gpu.ErrReplaced},
		{"a place that it does not have", ci, func(s *mig.Step) { s.Compute = gpu.Some(gpu.Placement{Start: 5, Size: 1}) },
			gpu.ErrNotFound},
		{"no place", ci, func(s *mig.Step) { s.Compute = gpu.Opt[gpu.Placement]{} }, gpu.ErrInvalidArgument},
		{"no such GPU", ci, func(s *mig.Step) { s.GPU = "GPU-x" }, gpu.ErrNotFound},
		{"no such step", ci, func(s *mig.Step) { s.Op = "paint" }, gpu.ErrInvalidArgument},
	} {
		step := tc.step
		tc.change(&step)
		n.spy.taken()

		if _, err := n.source.Actuator().Do(t.Context(), step); !errors.Is(err, tc.want) ||
			!strings.Contains(err.Error(), string(step.GPU)) {
			t.Errorf("%s: %v, want %v", tc.about, err, tc.want)
		}

		noChange(t, n)
	}

	if _, err := n.source.Actuator().Do(t.Context(), s.createGI(9, 0, 4)); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("where something exists: %v", err)
	}

	if _, err := n.source.Actuator().
		Do(t.Context(), s.createCI(s.createGI(9, 0, 4), 1, 3)); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("a compute instance that does not fit: %v", err)
	}
}

// A driver that reports a destruction and does nothing is found out.
func TestDriverThatLies(t *testing.T) {
	n := newNode(t, "", partitioned+`
faults:
- {kind: destroy-lies, on: destroy-ci}
- {kind: destroy-lies, on: destroy-gi, after: 1}`)
	s := steps{n.discover()[0]}
	wide := s.createGI(14, 4, 2)
	made := n.do(wide)
	ci := s.createCI(wide, 0, 1)
	madeCI := n.do(ci)
	still := func(step mig.Step) {
		t.Helper()

		if _, err := n.source.Actuator().Do(t.Context(), step); !errors.Is(err, gpu.ErrDriver) ||
			!strings.Contains(err.Error(), "still there") {
			t.Errorf("%v", err)
		}
	}
	still(s.destroy(ci, madeCI))
	n.do(s.destroy(ci, madeCI))
	n.do(s.destroy(wide, made))
	made = n.do(wide)
	still(s.destroy(wide, made))
	n.do(s.destroy(wide, made))
}

func TestComputeProfileOfMostSMs(t *testing.T) {
	for sms, want := range map[uint32]uint32{1: nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE,
		100: nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1} {
		n := newNode(t, "", partitioned)
		n.spy.rev1SMs = sms
		s := steps{n.discover()[1]}
		gi := s.createGI(9, 0, 4)
		n.do(gi)
		n.spy.set("CreateComputeInstance", nvml.ERROR_UNKNOWN)

		if _, err := n.source.Actuator().Do(t.Context(), s.createCI(gi, 0, 1)); !errors.Is(err, gpu.ErrDriver) ||
			n.spy.computeProfile != want {
			t.Errorf("one of %d SMs: profile %d, %v", sms, n.spy.computeProfile, err)
		}
	}
}

// What happens in the middle of a layout change is distinguished.
func TestFaultsInTheMiddleOfSteps(t *testing.T) {
	for fault, want := range map[string]error{
		"{gpu: 0, kind: lost, on: create-ci}":                                                 gpu.ErrLost,
		"{gpu: 0, kind: reset-required, on: create-ci}":                                       gpu.ErrResetRequired,
		"{gpu: 0, kind: no-permission, on: create-ci}":                                        gpu.ErrNoPermission,
		"{kind: version-mismatch, at: 1s}":                                                    gpu.ErrVersionMismatch,
		"{kind: change-fails, on: create-ci, error: insufficient-resources}":                  gpu.ErrInsufficientResources,
		"{gpu: 0, kind: external-reconfigure, on: create-ci, layout: [\"7g.40gb@0\"]}":        gpu.ErrNotFound,
		"{gpu: 0, kind: external-reconfigure, on: change, after: 1, layout: [\"4g.20gb@0\"]}": gpu.ErrNotFound,
		"{gpu: 0, kind: external-reconfigure, at: 1s, layout: [\"7g.40gb@0\"]}":               gpu.ErrReplaced,
		"{gpu: 0, kind: external-reconfigure, at: 1s, layout: [{gi: \"2g.10gb@4\", ci: " +
			"[\"1c\"]}]}": gpu.ErrInsufficientResources,
	} {
		n := newNode(t, "", partitioned+"\nfaults: ["+fault+"]")
		s := steps{n.discover()[0]}
		gi := s.createGI(14, 4, 2)
		n.do(gi)
		n.advance(time.Second)

		if _, err := n.source.Actuator().Do(t.Context(), s.createCI(gi, 0, 1)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", fault, err, want)
		}
	}
}

func TestProcesses(t *testing.T) {
	n := newNode(t, "", partitioned+`
workloads: [{name: w, memory: 1GiB, sm: 3}]
processes: [{device: "0/3g.20gb@0/1", workload: w}]`)
	id := n.discover()[0]
	a := n.source.Actuator()

	list, err := a.Processes(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}

	if len(list) != 1 {
		t.Fatalf("list: %+v, want 1 of them", list)
	}

	cmptest.Equal(t, "list[0].Compute", list[0].Compute, gpu.Some(gpu.ComputeID(1)))
	cmptest.Equal(t, "list[0].Instance.Present()", list[0].Instance.Present(), true)
	i := n.layout(0).Instances[0]
	s := steps{id}

	busy := s.destroy(s.createCI(s.createGI(9, 0, 4), 1, 2),
		mig.Done{Instance: i.ID, ComputeID: gpu.Some(i.ComputeInstances[1].ID), UUID: i.ComputeInstances[1].UUID})
	if _, err := a.Do(t.Context(), busy); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("destroying what a process uses: %v", err)
	}

	for _, call := range []string{"GetComputeRunningProcesses", "GetGraphicsRunningProcesses",
		"GetMPSComputeRunningProcesses", "GetMigMode"} {
		n.spy.set(call, nvml.ERROR_NO_PERMISSION)

		if list, err := a.Processes(t.Context(), id); !errors.Is(err, gpu.ErrNoPermission) || list != nil {
			t.Errorf("%s is refused: %v, %v", call, list, err)
		}

		n.spy.set(call, nvml.SUCCESS)
	}

	// A driver need not offer the lists beside that of compute; without that one its processes are
	// unknown.
	n.spy.set("GetGraphicsRunningProcesses", nvml.ERROR_NOT_SUPPORTED)
	n.spy.set("GetMPSComputeRunningProcesses", nvml.ERROR_FUNCTION_NOT_FOUND)

	if got, err := a.Processes(t.Context(), id); err != nil || len(got) != len(list) {
		t.Errorf("%v, %v; want %v", got, err, list)
	}

	n.spy.set("GetComputeRunningProcesses", nvml.ERROR_NOT_SUPPORTED)

	if _, err := a.Processes(t.Context(), id); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("a list of compute that is not offered is taken for an empty one: %v", err)
	}
}

// GPUs that cannot be read wholly are distinguished from those that can.
func TestLayoutsOfSomeGPUs(t *testing.T) {
	n := newNode(t, "", partitioned+"\nfaults: [{gpu: 0, kind: no-permission}]")
	ids := n.discover()

	list, errs, err := n.source.Actuator().Layouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if len(list) != 1 {
		t.Fatalf("list: %+v, want 1 of them", list)
	}

	cmptest.Equal(t, "list[0].UUID", list[0].UUID, ids[1])

	if len(errs) != 1 {
		t.Fatalf("errs: %+v, want 1 of them", errs)
	}

	cmptest.Equal(t, "errs[ids[0]]", errs[ids[0]], gpu.ErrNoPermission)
	n = newNode(t, "", partitioned+"\nfaults: [{gpu: 1, kind: lost}]")

	list, errs, err = n.source.Actuator().Layouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if len(list) != 1 {
		t.Fatalf("list: %+v, want 1 of them", list)
	}

	cmptest.Equal(t, "list[0].Index", list[0].Index, 0)
	cmptest.Equal(t, `errs["1"]`, errs["1"], gpu.ErrLost)
}

// A caller that asks for one GPU gets that one, and does not wait for another that hangs.
func TestLayoutOfOneGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", partitioned+"\nfaults: [{gpu: 0, kind: hang, on: create-gi, for: 10s}]")
		ids := n.discover()
		a := n.source.Actuator()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		if _, err := a.Do(ctx, steps{ids[0]}.createGI(19, 6, 1)); !errors.Is(err, gpu.ErrTimeout) {
			t.Fatal(err)
		}

		begun := time.Now()

		list, errs, err := a.Layouts(t.Context(), ids[1])
		if err != nil {
			t.Fatal(err)
		}

		if len(errs) > 0 {
			t.Errorf("errors: %v, want none", errs)
		}

		if len(list) != 1 {
			t.Fatalf("list: %+v, want 1 of them", list)
		}

		cmptest.Equal(t, "list[0].UUID", list[0].UUID, ids[1])
		cmptest.Equal(t, "time taken", time.Since(begun), 0)
		n.advance(10 * time.Second) // the call returns
		synctest.Wait()
	})
}

// A change in the middle of reading a layout is read again: none is of two layouts. One without end
// is an error.
func TestTornLayouts(t *testing.T) {
	n := newNode(t, "", partitioned)
	one := n.discover()[0]
	n.layout(0)

	for call := range 4 {
		name := []string{"GetGpuInstances", "MIG.GetUUID", "GetComputeInstancesOf", "Instance.GetInfo"}[call]
		n.spy.do(name, func() {
			must(t, n.Reset(0))
			id, err := n.CreateGPUInstance(0, []uint32{9, 14}[call%2], gpu.Some(4))
			must(t, err)
			_, err = n.CreateComputeInstance(0, id, 1)
			must(t, err)
		})
		// Only this GPU is read: the other one's reading would repartition it at any time, also
		// between two looks at it.
		list, errs, err := n.source.Actuator().Layouts(t.Context(), one)
		if err != nil || len(errs) > 0 {
			t.Fatal(err, errs)
		}

		g := list[0]
		if len(g.Instances) != 1 {
			t.Fatalf("g.Instances: %+v, want 1 of them", g.Instances)
		}

		cmptest.Equal(t, name+": g.Instances[0].Placement.Start", g.Instances[0].Placement.Start, 4)
		cmptest.Equal(t, name+": len(g.Instances[0].ComputeInstances)", len(g.Instances[0].ComputeInstances), 1)
	}

	var toggle atomic.Uint64
	n.spy.mu.Lock()
	n.spy.every = func() {
		// Each call makes another one of 127 layouts, none of them empty, so that no two looks are alike.
		_ = n.Reset(0)
		layout := 1 + toggle.Add(1)%127

		for at := range 7 {
			if layout>>at&1 == 1 {
				_, _ = n.CreateGPUInstance(0, 19, gpu.Some(at))
			}
		}
	}
	n.spy.mu.Unlock()
	_, errs, err := n.source.Actuator().Layouts(t.Context())
	n.spy.mu.Lock()
	n.spy.every = nil
	n.spy.mu.Unlock()

	if err != nil || errs[n.discover()[0]] == nil {
		t.Errorf("%v, %v", errs, err)
	}
}

// A change that hangs is given up in time, and no second one is begun beside it; other GPUs can be
// changed.
func TestStepThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", partitioned+"\nfaults: [{gpu: 0, kind: hang, on: create-gi, for: 10s}]")
		ids := n.discover()
		a := n.source.Actuator()

		within := func(id gpu.UUID) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := a.Do(ctx, steps{id}.createGI(19, 6, 1))

			return err
		}
		if err := within(ids[0]); !errors.Is(err, gpu.ErrTimeout) || a.HungCalls() != 1 {
			t.Fatalf("%v, %d calls hang", err, a.HungCalls())
		}

		begun := time.Now()
		err := within(ids[0])
		cmptest.Equal(t, "error", err, gpu.ErrTimeout)

		if !strings.Contains(err.Error(), "still hangs") {
			t.Errorf("err.Error(): %q, want it to contain %q", err.Error(), "still hangs")
		}

		if time.Since(begun) > 0 {
			t.Errorf("time.Since(begun) is %v, want at most 0", time.Since(begun))
		}

		if calls := n.spy.taken()["CreateGpuInstance"]; calls != 1 {
			t.Errorf("%d calls", calls)
		}

		if err := within(ids[1]); err != nil {
			t.Errorf("the other GPU: %v", err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		list, errs, err := a.Layouts(ctx)
		if err != nil {
			t.Fatal(err)
		}

		if len(list) != 1 {
			t.Fatalf("list: %+v, want 1 of them", list)
		}

		cmptest.Equal(t, "list[0].Index", list[0].Index, 1)
		cmptest.Equal(t, "errs[ids[0]]", errs[ids[0]], gpu.ErrTimeout)
		cmptest.Equal(t, "number of hung calls", a.HungCalls(), 2)
		n.advance(10 * time.Second)
		synctest.Wait()

		if a.HungCalls() != 0 {
			t.Errorf("%d calls hang after the fault", a.HungCalls())
		}

		if i := n.layout(0).Instances; len(i) != 2 {
			t.Errorf("the call was made, in the end: %+v", i)
		}

		n.do(steps{ids[0]}.createGI(19, 5, 1))
	})
}

// What hangs does not keep Close from coming to its end.
func TestCloseWhileAStepHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", partitioned+"\nfaults: [{gpu: 0, kind: hang, on: create-gi}]")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		if _, err := n.source.Actuator().Do(ctx, steps{n.discover()[0]}.createGI(19, 6, 1)); !errors.Is(err, gpu.ErrTimeout) {
			t.Fatal(err)
		}

		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()

		if err := n.source.Close(ctx); !errors.Is(err, gpu.ErrTimeout) || n.spy.taken()["Shutdown"] != 0 {
			t.Errorf("close: %v", err)
		}

		if _, _, err := n.source.Actuator().Layouts(t.Context()); err == nil {
			t.Error("a closed source has layouts")
		}

		n.Close() // the call returns
		synctest.Wait()
	})
}

// Nothing is changed for a caller that has gone.
func TestStepOfAContextThatHasEnded(t *testing.T) {
	n := newNode(t, "", partitioned)
	id := n.discover()[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.spy.taken()

	if _, err := n.source.Actuator().Do(ctx, steps{id}.createGI(19, 6, 1)); !errors.Is(err, gpu.ErrTimeout) ||
		!errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	noChange(t, n)
}

// A driver that is only read, as a capture is, has nothing to change.
func TestActuatorOfADriverThatIsOnlyRead(t *testing.T) {
	n := newNode(t, "", partitioned)
	source := nvmlsource.New(readOnly{n.spy}, nvmlsource.Options{Now: n.Now, Logger: discard()})
	defer source.Close(t.Context())

	list, errs, err := source.Actuator().Layouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if len(errs) > 0 {
		t.Errorf("errors: %v, want none", errs)
	}

	if len(list) != 2 {
		t.Fatalf("list: %+v, want 2 of them", list)
	}

	if _, err := source.Actuator().
		Do(t.Context(), steps{list[0].UUID}.createGI(19, 6, 1)); !errors.Is(err, gpu.ErrNotSupported) {
		t.Error(err)
	}

	if _, err := source.Actuator().SetMIGMode(t.Context(), list[0].UUID, false); !errors.Is(err, gpu.ErrNotSupported) {
		t.Error(err)
	}
}
