package control

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// second asks for instances on the second GPU, where a 7g exists.
func second(devices map[string]api.DeviceRequest, force ...string) api.PlanRequest {
	return api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"1"}, Devices: devices}, Force: force}
}

var two3g = map[string]api.DeviceRequest{"3g.20gb": {Count: 2}}

const sevenG = "MIG-1-0:8-0:7-e0"

func TestPlanChangesNothing(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)
	appends := w.saves

	plan, err := e.Plan(t.Context(), everything, mixed())
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "changes asked of the driver", w.calls, 0)
	cmptest.Equal(t, "w.saves", w.saves, appends)
	cmptest.Equal(t, "layout", w.drawLayout(), mixedBefore)

	again, err := e.Plan(t.Context(), everything, mixed())
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "again.Hash", again.Hash, plan.Hash)

	if again.ID == plan.ID {
		t.Errorf("again.ID is %v, want another", again.ID)
	}

	if got, err := e.PlanByID(plan.ID); err != nil || got.Hash != plan.Hash {
		t.Errorf("plan by id: %v", err)
	}

	g := plan.GPUs[0]
	cmptest.Equal(t, "len(plan.GPUs)", len(plan.GPUs), 2)
	cmptest.Equal(t, "g.AxisUnits", g.AxisUnits, 8)
	cmptest.Equal(t, "g.Before[0].Fate", g.Before[0].Fate, api.Keep)
	cmptest.Equal(t, "g.Before[1].Fate", g.Before[1].Fate, api.Destroy)
	cmptest.Equal(t, "g.Before[1].Compute[0].Fate", g.Before[1].Compute[0].Fate, api.Destroy)
	cmptest.Equal(t, "len(g.Before[0].Compute[0].Holders)", len(g.Before[0].Compute[0].Holders), 1)
	cmptest.Equal(t, "g.After[0].Fate", g.After[0].Fate, api.Keep)
	cmptest.Equal(t, "g.After[1].Fate", g.After[1].Fate, api.Create)
}

// A caller that plans without end loses only its own plans.
func TestPlansAreKeptPerCaller(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)

	first, err := e.Plan(t.Context(), everything, mixed())
	if err != nil {
		t.Fatal(err)
	}

	flood := func(caller string) (latest string) {
		for range 260 {
			latest = newID()
			e.plans.add(caller, &planned{plan: &api.Plan{ID: latest}})
		}

		return latest
	}

	var latest string
	for n := range maxPlanCallers - 1 {
		latest = flood(fmt.Sprint("token:", n))
	}

	for _, id := range []string{first.ID, latest} {
		if _, err := e.PlanByID(id); err != nil {
			t.Errorf("after floods of other callers: %v", err)
		}
	}

	if n := len(e.plans.byID); n != 1+(maxPlanCallers-1)*maxPlansPerCaller {
		t.Errorf("%d plans are kept", n)
	}

	flood(everything.Name)
	_, err = e.PlanByID(first.ID)
	isProblem(t, err, api.NotFound)

	if _, err := e.PlanByID(latest); err != nil {
		t.Errorf("after a flood of the operator: %v", err)
	}

	for n := range 2 * maxPlanCallers {
		flood(fmt.Sprint("user:", n))
	}

	if len(e.plans.callers) != maxPlanCallers || len(e.plans.byID) != maxPlanCallers*maxPlansPerCaller {
		t.Errorf("%d plans of %d callers are kept", len(e.plans.byID), len(e.plans.callers))
	}
}

// use makes an instance busy, or impossible to check.
type use struct {
	make func(w *world)
	kind api.HoldKind
}

// uses are all ways in which the 7g can be in use.
func uses() map[string]use {
	seen := func(w *world) *gpu.GPUInstance { return &w.snapshot.GPUs[1].Instances[0] }
	all := map[string]use{
		"process on the compute instance": {func(w *world) {
			w.processes[gpu1] = []gpu.Process{{PID: 9, Instance: gpu.Some(gpu.InstanceID(3)),
				Compute: gpu.Some(gpu.ComputeID(0))}}
		}, api.HoldProcess},
		"process without a known instance": {func(w *world) { w.processes[gpu1] = []gpu.Process{{PID: 9}} }, api.HoldProcess},
		"process of an instance that does not exist": {func(w *world) {
			w.processes[gpu1] = []gpu.Process{{PID: 9, Instance: gpu.Some(gpu.InstanceID(8))}}
		}, api.HoldProcess},
		"processes cannot be listed": {func(w *world) { w.processErr = gpu.ErrNoPermission }, api.HoldUnknown},
		"open capability file": {func(w *world) {
			w.asking = func(gpu.UUID) ([]Handle, error) {
				return []Handle{{PID: 9, Command: "python3", Instance: gpu.Some(gpu.InstanceID(3))}}, nil
			}
		}, api.HoldHandle},
		"open device file": {func(w *world) {
			w.asking = func(gpu.UUID) ([]Handle, error) { return []Handle{{PID: 9, Command: "python3"}}, nil }
		}, api.HoldHandle},
		"open files cannot be listed": {func(w *world) {
			w.asking = func(gpu.UUID) ([]Handle, error) { return nil, gpu.ErrNoPermission }
		}, api.HoldUnknown},
		"activity": {func(w *world) { seen(w).Activity.SM = gpu.Some(0.01) }, api.HoldActivity},
		"activity of": {func(w *world) {
			seen(w).ComputeInstances = []gpu.ComputeInstance{{Device: gpu.Device{Activity: gpu.Activity{Tensor: gpu.Some(0.5)}}}}
		}, api.HoldActivity},
		"activity cannot be read": {func(w *world) {
			seen(w).Errors = []gpu.ReadError{{Reading: gpu.ReadingActivity, Err: gpu.ErrTimeout}}
		}, api.HoldUnknown},
		"GPU cannot be read":       {func(w *world) { w.snapshot.GPUs[1].Up = false }, api.HoldUnknown},
		"not polled yet":           {func(w *world) { w.snapshot = nil }, api.HoldUnknown},
		"not seen by the poll yet": {func(w *world) { seen(w).ID = 88 }, api.HoldUnknown},
		"job on the instance":      {func(w *world) { seen(w).Jobs = []string{"4711"} }, api.HoldJob},
		"job on the GPU":           {func(w *world) { w.snapshot.GPUs[1].Jobs = []string{"4711"} }, api.HoldJob},
		"jobs of the GPU cannot be read": {func(w *world) {
			w.snapshot.Sources = []gpu.SourceState{{Name: gpu.SourceJobs, Err: gpu.ErrNotFound}}
			w.snapshot.GPUs[1].JobsUnknown = true
		}, api.HoldUnknown},
		"jobs of the instance cannot be read": {func(w *world) {
			w.snapshot.Sources = []gpu.SourceState{{Name: gpu.SourceJobs, Err: gpu.ErrUnavailable}}
			seen(w).JobsUnknown = true
		}, api.HoldUnknown},
		"jobs have not been read yet": {func(w *world) { seen(w).JobsUnknown = true }, api.HoldUnknown},
		"pod by MIG UUID":             {func(w *world) { w.give(gpu.DeviceRef{MIG: sevenG}) }, api.HoldPod},
		"pod by legacy UUID": {func(w *world) {
			w.give(gpu.DeviceRef{GPU: gpu1, Instance: gpu.Some(gpu.InstanceID(3)), Compute: gpu.Some(gpu.ComputeID(0))})
		}, api.HoldPod},
		"pod by GPU": {func(w *world) { w.give(gpu.DeviceRef{GPU: gpu1}) }, api.HoldPod},
		"pod by minor number": {func(w *world) {
			w.give(gpu.DeviceRef{Minor: gpu.Some(1),
				Instance: gpu.Some(gpu.InstanceID(3))})
		}, api.HoldPod},
		"pod by placement": {func(w *world) { w.give(gpu.DeviceRef{GPU: gpu1, PlacementStart: gpu.Some(0)}) },
			api.HoldPod},
		"list is incomplete":    {func(w *world) { w.pods.Incomplete = kubeletRestarted }, api.HoldUnconfirmed},
		"kubelet not available": {func(w *world) { w.podsErr = gpu.ErrUnavailable }, api.HoldUnconfirmed},
		"pod that is not listed any more": {func(w *world) {
			w.give(gpu.DeviceRef{MIG: sevenG})
			w.pods.List[0].Holder.Unconfirmed = notListed
		}, api.HoldUnconfirmed},
	}
	maps.Copy(all, usesSinceOldReadings())

	return all
}

// TestBusy has each way in which an instance is in use, or cannot be checked, keep it from being
// destroyed.
func TestBusy(t *testing.T) {
	for name, c := range uses() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			e := w.engine(t, nil)
			c.make(w)
			_, err := e.Plan(t.Context(), everything, second(two3g))

			p := isProblem(t, err, api.Infeasible)
			if len(p.Blocking) != 1 {
				t.Fatalf("p.Blocking: %+v, want 1 of them", p.Blocking)
			}

			cmptest.Equal(t, "p.Blocking[0].GPU", p.Blocking[0].GPU, gpu1)
			cmptest.Equal(t, "p.Blocking[0].Instance", p.Blocking[0].Instance, sevenG)

			if !slices.ContainsFunc(p.Blocking[0].Holders, func(h api.Hold) bool { return h.Kind == c.kind }) {
				t.Errorf("holders %+v, want %s", p.Blocking[0].Holders, c.kind)
			}

			if w.snapshot == nil {
				return
			}

			if _, err := e.Plan(t.Context(), everything, second(two3g, sevenG)); err != nil {
				t.Errorf("forced by name: %v", err)
			}
		})
	}
}

func (w *world) give(d gpu.DeviceRef) {
	w.pods.List = append(w.pods.List, gpu.Assignment{Device: d,
		Holder: gpu.Holder{Container: gpu.Container{Namespace: "ml", Pod: "train-0", Name: "main"}}})
}

func TestIdleIsNotBusy(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"a watcher has the device open": func(w *world) {
			w.asking = func(gpu.UUID) ([]Handle, error) { return []Handle{{PID: 3, Command: "nvidia-persiste"}}, nil }
		},
		"a process of another instance has the device open, too": func(w *world) {
			w.asking = func(id gpu.UUID) ([]Handle, error) {
				if id == gpu1 {
					return nil, nil
				}

				return []Handle{{PID: 42, Command: "python3"},
					{PID: 42, Command: "python3", Instance: gpu.Some(gpu.InstanceID(1))}}, nil
			}
		},
		"a pod has another GPU": func(w *world) {
			w.give(gpu.DeviceRef{GPU: gpu0})
			w.give(gpu.DeviceRef{Minor: gpu.Some(0)})
		},
		"a pod has what no longer exists": func(w *world) { w.give(gpu.DeviceRef{MIG: "MIG-gone"}) },
		"activity long ago": func(w *world) {
			w.snapshot.GPUs[1].Instances[0].Activity.SM = gpu.Some(0.5)
			w.snapshot.Time = w.snapshot.Time.Add(-2 * time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			e := w.engine(t, nil)
			change(w)
			e.active.observe(w.snapshot)
			w.snapshot = &gpu.Snapshot{Generation: w.snapshot.Generation, GPUs: w.snapshot.GPUs}
			w.look()

			if _, err := e.Plan(t.Context(), everything, second(two3g)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestForce(t *testing.T) {
	w := newWorld(t)
	w.processes[gpu1] = []gpu.Process{{PID: 9, Instance: gpu.Some(gpu.InstanceID(3))}}
	e := w.engine(t, nil)
	_, err := e.Plan(t.Context(), Actor{Rights: Rights{Plan: true}}, second(two3g, sevenG))
	isProblem(t, err, api.Forbidden)
	taking := second(two3g)
	taking.TakeOver = true

	_, err = e.Plan(t.Context(), Actor{Rights: Rights{Plan: true, Force: true}}, taking)
	if p := isProblem(t, err, api.Forbidden); !strings.Contains(p.Detail, "take-over") {
		t.Errorf("the problem does not name the right: %s", p.Detail)
	}

	for _, name := range []string{"MIG-unknown", "all", "", gpuInstanceName(gpu1, 3)} { // the last has a compute instance
		_, err := e.Plan(t.Context(), everything, second(two3g, name))
		isProblem(t, err, api.BadSpec)
	}

	plan, err := e.Plan(t.Context(), everything, second(two3g, sevenG))
	if err != nil || !slices.Equal(plan.Forced, []string{sevenG}) {
		t.Fatalf("plan %+v, %v", plan, err)
	}

	request := api.OperationRequest{Plan: plan.ID, Hash: plan.Hash}
	_, err = e.Start(t.Context(), Actor{Rights: Rights{Apply: true}}, request)
	isProblem(t, err, api.Forbidden)
	w.processes[gpu1][0].PID = 10
	_, err = e.Start(t.Context(), everything, request) // it is not the process that was approved
	isProblem(t, err, api.StalePlan)
	w.processes[gpu1][0].PID = 9

	op, err := e.Start(t.Context(), everything, request)
	if err != nil {
		t.Fatal(err)
	}

	synctest.Test(t, func(t *testing.T) {
		w.before = func(int, mig.Step) error { w.processes[gpu1] = nil; return nil }
		e.drive(t)
	})

	if got := e.now(t, op.ID); got.State != api.Succeeded ||
		!strings.HasSuffix(w.drawLayout(), "1: 3g.20gb@0:4[0:3] 3g.20gb@4:4[0:3]\n") {
		t.Errorf("operation is %s: %v\n%s", got.State, got.Error, w.drawLayout())
	}
}

func TestForeignOwners(t *testing.T) {
	for _, key := range []gpu.UUID{"", gpu1} {
		w := newWorld(t)
		w.owners = map[gpu.UUID][]string{key: {"mig-manager (label nvidia.com/mig.config)"}}
		e := w.engine(t, nil)

		_, err := e.Plan(t.Context(), everything, mixed())
		if p := isProblem(t, err, api.ForeignOwner); !strings.Contains(p.Detail, "mig-manager") {
			t.Errorf("detail %q", p.Detail)
		}

		r := mixed()
		r.TakeOver = true

		plan, err := e.Plan(t.Context(), everything, r)
		if err != nil || len(plan.Owners) != 1 {
			t.Fatalf("taken over: %v", err)
		}

		w.owners[gpu0] = []string{"slurm"} // and another one comes
		_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
		isProblem(t, err, api.StalePlan)
	}
}

func TestStart(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)

	plan, err := e.Plan(t.Context(), everything, mixed())
	if err != nil {
		t.Fatal(err)
	}

	request := api.OperationRequest{Plan: plan.ID, Hash: plan.Hash}
	_, err = e.Start(t.Context(), Actor{Rights: Rights{Plan: true}}, request)
	isProblem(t, err, api.Forbidden)
	_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: "of another node", Hash: plan.Hash})
	isProblem(t, err, api.NotFound)
	_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: "sha256:0"})
	isProblem(t, err, api.StalePlan)
	w.give(gpu.DeviceRef{MIG: "MIG-0-0:4-0:3-e0"}) // a pod on what is kept

	_, err = e.Start(t.Context(), everything, request)
	if p := isProblem(t, err, api.StalePlan); !strings.Contains(p.Detail,
		"now: pod ml/train-0 (main) on compute instance 0") {
		t.Errorf("detail %q", p.Detail)
	}

	w.pods = gpu.Assignments{}

	op, err := e.Start(t.Context(), everything, request)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "state of the operation", op.State, api.Pending)
	cmptest.Equal(t, "state of the engine", e.State(), running)

	_, err = e.Start(t.Context(), everything, request)
	if p := isProblem(t, err, api.InProgress); p.Operation != op.ID {
		t.Errorf("in progress: %+v", p)
	}

	_, err = e.Rollback(t.Context(), everything, op.ID)
	isProblem(t, err, api.InProgress)
	synctest.Test(t, func(t *testing.T) { e.drive(t) })
	_, err = e.Start(t.Context(), everything, request) // what was planned is done
	isProblem(t, err, api.StalePlan)

	same, err := e.start(t, mixed())
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "same.State", same.State, api.Succeeded)
	cmptest.Equal(t, "len(same.Steps)", len(same.Steps), 0)
}

func TestPlanOnly(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, func(o *Options) { o.Apply = false })

	plan, err := e.Plan(t.Context(), everything, mixed())
	if err != nil {
		t.Fatal(err)
	}

	_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
	isProblem(t, err, api.PlanOnly)
	_, err = e.Rollback(t.Context(), everything, "any")
	isProblem(t, err, api.PlanOnly)
	_, err = e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
	isProblem(t, err, api.PlanOnly)
}

func TestPlanProblems(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)

	_, err := e.Plan(t.Context(), everything, second(map[string]api.DeviceRequest{"9g.90gb": {Count: 1}}))
	if p := isProblem(t, err, api.UnknownProfile); len(p.Profiles) == 0 {
		t.Errorf("profiles %v", p.Profiles)
	}

	_, err = e.Plan(t.Context(), everything, second(map[string]api.DeviceRequest{"7g.40gb": {Count: 2}}))
	isProblem(t, err, api.Infeasible)
	_, err = e.Plan(t.Context(), everything, api.PlanRequest{Spec: api.Spec{Layout: "unheard-of"}})
	isProblem(t, err, api.BadSpec)
	_, err = e.Plan(t.Context(), Actor{}, mixed())
	isProblem(t, err, api.Forbidden)
	w.gpu(gpu1).Pending = gpu.Some(false)
	_, err = e.Plan(t.Context(), everything, mixed())
	isProblem(t, err, api.ModeDiffers)
	w.reading = func() error { return gpu.ErrNoDriver }
	_, err = e.Plan(t.Context(), everything, mixed())
	isProblem(t, err, api.Unavailable)
	w.reading = func() error { return errors.New("open /run/secret: token abc") }

	_, err = e.Plan(t.Context(), everything, mixed())
	if p := isProblem(t, err, api.Unavailable); strings.Contains(p.Detail, "secret") {
		t.Errorf("detail %q has what is the node's own", p.Detail)
	}
}

func TestLayoutsSayWhomTheyAreFor(t *testing.T) {
	w := newWorld(t)
	w.gpu(gpu0).PCIDevice = 0x20B010DE
	layouts := map[string][]api.LayoutRule{
		"by index": {{Devices: api.DeviceList{Indexes: []int{1}}, MIGEnabled: true,
			MIGDevices: map[string]int{"7g.40gb": 1}}},
		"by model": {{Devices: api.DeviceList{All: true}, DeviceFilter: api.Strings{"0x20B010DE"}, MIGEnabled: true,
			MIGDevices: map[string]int{}}},
		"all": {{Devices: api.DeviceList{All: true}, MIGEnabled: true, MIGDevices: map[string]int{}}},
	}
	e := w.engine(t, func(o *Options) { o.Layouts = layouts })

	got, err := e.Layouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	got.Layouts = slices.DeleteFunc(got.Layouts, func(l api.NamedLayout) bool { return l.BuiltIn })
	cmptest.Equal(t, "layouts of the operator", len(got.Layouts), 3)

	for n, want := range []api.NamedLayout{{Name: "all", Applies: []gpu.UUID{gpu0, gpu1}},
		{Name: "by index", Applies: []gpu.UUID{gpu1}}, {Name: "by model", Applies: []gpu.UUID{gpu0}}} {
		if l := got.Layouts[n]; l.Name != want.Name || !slices.Equal(l.Applies, want.Applies) {
			t.Errorf("layout %s applies to %v, want %s to %v", l.Name, l.Applies, want.Name, want.Applies)
		}
	}
}

// TestBuiltInLayouts: those for the node's models are there without a file, and a file overrides
// them.
func TestBuiltInLayouts(t *testing.T) {
	w := newWorld(t)
	w.gpu(gpu0).PCIDevice = 0x20B010DE
	own := map[string][]api.LayoutRule{"all-3g.20gb": {{Devices: api.DeviceList{All: true}, MIGEnabled: true,
		MIGDevices: map[string]int{"3g.20gb": 1}}}}
	e := w.engine(t, func(o *Options) { o.Layouts = own })

	got, err := e.Layouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	listed := map[string]string{}
	for _, l := range got.Layouts {
		listed[l.Name] = fmt.Sprint(l.BuiltIn, l.Applies, l.Rules[0].MIGDevices)
	}

	for name, want := range map[string]string{
		"all-balanced": fmt.Sprint(true, []gpu.UUID{gpu0}, map[string]int{"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}),
		"all-1g.5gb":   fmt.Sprint(true, []gpu.UUID{gpu0, gpu1}, map[string]int{"1g.5gb": 7}),
		"all-disabled": fmt.Sprint(true, []gpu.UUID{gpu0, gpu1}, map[string]int(nil)),
		"all-3g.20gb":  fmt.Sprint(false, []gpu.UUID{gpu0, gpu1}, map[string]int{"3g.20gb": 1}),
		"all-1g.6gb":   "", // of another model
	} {
		cmptest.Equal(t, name, listed[name], want)
	}

	_, err = e.Plan(t.Context(), everything, api.PlanRequest{Spec: api.Spec{Layout: "none"}})
	p := isProblem(t, err, api.BadSpec)
	cmptest.HasTexts(t, p.Detail, `this node has no layout "none"; migctl layouts lists those that it has`)
}
