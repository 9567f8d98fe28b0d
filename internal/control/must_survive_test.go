package control

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// survives applies the mixed layout to a world that was made difficult, and wants this end of it.
func survives(t *testing.T, state api.OperationState, change func(w *world)) (w *world, e *Engine, op *api.Operation) {
	t.Helper()
	w = newWorld(t)
	e = w.engine(t, nil)
	change(w)

	op = e.applied(t, mixed())
	if op.State != state {
		t.Fatalf("operation is %s (%v), want %s", op.State, op.Error, state)
	}

	return w, e, op
}

// first has a step fail the first time that it is called.
func first(op mig.StepOp, id gpu.UUID, err error) func(int, mig.Step) error {
	failed := false

	return func(_ int, s mig.Step) error {
		if failed || s.Op != op || s.GPU != id {
			return nil
		}

		failed = true

		return err
	}
}

func always(op mig.StepOp, id gpu.UUID, err error) func(int, mig.Step) error {
	return func(_ int, s mig.Step) error {
		if s.Op == op && s.GPU == id {
			return err
		}

		return nil
	}
}

func TestComputeInstanceGoneAndInstanceStillInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, _ := survives(t, api.Succeeded, func(w *world) { w.before = first(mig.DestroyInstance, gpu1, gpu.ErrInUse) })
		w.sound(t, e, mixedBefore, mixedAfter)
		w, e, op := survives(t, api.RolledBack, func(w *world) { w.before = always(mig.DestroyInstance, gpu1, gpu.ErrInUse) })
		w.sound(t, e, mixedBefore, mixedBefore)

		if op.Error == nil || op.Error.Type != api.DriverFailed {
			t.Errorf("error %v", op.Error)
		}
	})
}

func TestDestroySaysOKAndTheInstanceRemains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, step := range []mig.StepOp{mig.DestroyCompute, mig.DestroyInstance} {
			w, e, _ := survives(t, api.RolledBack, func(w *world) { w.before = first(step, gpu1, errLie) })
			w.sound(t, e, mixedBefore, mixedBefore)
		}
	})
}

// TestCreatedInstanceIsGone: the driver has created it, and it does not exist. Another client must
// have destroyed it: nothing more is changed there.
func TestCreatedInstanceIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, step := range []mig.StepOp{mig.CreateInstance, mig.CreateCompute} {
			w, e, op := survives(t, api.Interrupted, func(w *world) { w.before = first(step, gpu1, errLie) })
			calls := w.calls
			cmptest.Equal(t, string(step)+": op.GPUs[0].State", op.GPUs[0].State, api.RolledBack)
			cmptest.Equal(t, string(step)+": op.GPUs[1].State", op.GPUs[1].State, api.Interrupted)

			if op.GPUs[1].Current == nil {
				t.Fatalf("%s: no instances of GPU 1 in the operation", step)
			}

			cmptest.Equal(t, string(step)+": e.State()", e.State(), idle)

			if next := w.engine(t, nil); w.calls != calls || next.State() != idle {
				t.Errorf("%s: state %s after a restart", step, next.State())
			}
		}
	})
}

func TestChangedInstanceIDs(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)

	plan, err := e.Plan(t.Context(), everything, mixed())
	if err != nil {
		t.Fatal(err)
	}

	w.gpu(gpu1).Instances[0].ID = 99 // destroyed and created again, with the same UUIDs
	_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})

	p := isProblem(t, err, api.StalePlan)
	if !strings.Contains(p.Detail, "no longer: GPU instance 3 (7g.40gb at 0:8)") ||
		!strings.Contains(p.Detail, "now: GPU instance 99") {
		t.Errorf("detail %q does not say what has changed", p.Detail)
	}

	w.look()

	op, err := e.start(t, mixed())
	if err != nil {
		t.Fatal(err)
	}

	w.gpu(gpu1).Instances[0].ID = 100 // after the start
	synctest.Test(t, func(t *testing.T) { e.drive(t) })

	if got := e.now(t, op.ID).State; got != api.Failed && got != api.RolledBack {
		t.Errorf("operation is %s, want %s or %s", got, api.Failed, api.RolledBack)
	}

	cmptest.Equal(t, "id of the instance", w.gpu(gpu1).Instances[0].ID, 100)
}

func TestProcessThatStartsBetweenCheckAndDestroy(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			begin := func(w *world) {
				w.processes[gpu1] = []gpu.Process{{PID: 77, Instance: gpu.Some(gpu.InstanceID(3)),
					Compute: gpu.Some(gpu.ComputeID(0))}}
			}
			w := newWorld(t)
			e := w.engine(t, nil)

			op, err := e.start(t, mixed())
			if err != nil {
				t.Fatal(err)
			}

			if late { // after the engine's own check
				w.before = func(_ int, s mig.Step) error {
					if s.GPU == gpu1 {
						begin(w)
					}

					return nil
				}
			} else {
				begin(w)
			}

			e.drive(t)
			got := e.now(t, op.ID)
			cmptest.Equal(t, "state of the operation", got.State, api.RolledBack)
			cmptest.Equal(t, "problem of the operation", got.Error.Type, api.Busy)

			if len(got.Error.Blocking) != 1 {
				t.Fatalf("got.Error.Blocking: %+v, want 1 of them", got.Error.Blocking)
			}

			cmptest.Equal(t, "got.Error.Blocking[0].Holders[0].PID", got.Error.Blocking[0].Holders[0].PID, 77)

			if w.gpu(gpu1).Instances[0].ID != 3 {
				t.Error("what came into use was destroyed")
			}

			w.sound(t, e, mixedBefore, mixedBefore)
		})
	}
}

func TestProcessOnWhatWasMadeIsNotDestroyedByTheRollBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, op := survives(t, api.Degraded, func(w *world) {
			w.before = func(_ int, s mig.Step) error {
				if s.Op != mig.CreateCompute || s.GPU != gpu1 {
					return nil
				}

				for _, i := range w.gpu(gpu0).Instances {
					if i.Profile == "2g.10gb" {
						w.processes[gpu0] = append(w.processes[gpu0], gpu.Process{PID: 5, Instance: gpu.Some(i.ID)})
					}
				}

				return gpu.ErrDriver
			}
		})
		if !strings.Contains(w.drawLayout(), "2g.10gb@4:2[0:2]") {
			t.Errorf("what is busy was destroyed:\n%s", w.drawLayout())
		}

		if op.Error.Type != api.Busy {
			t.Errorf("error %v", op.Error)
		}

		w.processes[gpu0] = w.processes[gpu0][:1]
		w.before = nil
		w.afterFailure(t, e, mixedBefore, mixedBefore)
	})
}

func TestHangInMidOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, op := survives(t, api.Stuck, func(w *world) {
			w.before = func(_ int, s mig.Step) error {
				if s.Op == mig.DestroyInstance && s.GPU == gpu1 {
					w.reading = func() error { return gpu.ErrTimeout }
					w.hung = gpu1

					return gpu.ErrTimeout
				}

				return nil
			}
		})
		if e.State() != stuck {
			t.Errorf("state %s", e.State())
		}

		_, err := e.Rollback(t.Context(), everything, op.ID)
		isProblem(t, err, api.StuckNode)
		_, err = e.Plan(t.Context(), everything, mixed())
		isProblem(t, err, api.StuckNode)

		next := w.engine(t, nil) // nor does a restart hang, or forget
		if next.State() != stuck {
			t.Errorf("state after a restart %s", next.State())
		}

		w.before = nil
		w.reading = nil
		_, err = next.Rollback(t.Context(), everything, op.ID) // reading answers, and the call is still under way
		isProblem(t, err, api.StuckNode)
		w.hung = ""
		p := isProblem(t, e.free(t, gpu1), api.StuckNode)
		cmptest.Equal(t, "operation of the problem", p.Operation, op.ID)
		w.afterFailure(t, next, mixedBefore, mixedBefore)
	})
}

func TestGPULostInMidOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, _ := survives(t, api.Degraded, func(w *world) {
			w.before = func(_ int, s mig.Step) error {
				if s.Op == mig.CreateInstance && s.GPU == gpu1 {
					w.reading = func() error { return gpu.ErrLost }
					return gpu.ErrLost
				}

				return nil
			}
		})
		w.before = nil
		w.reading = nil
		w.afterFailure(t, e, mixedBefore, mixedBefore)
	})
}

func TestNoPermissionInMidOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, op := survives(t, api.Degraded, func(w *world) {
			w.before = func(n int, _ mig.Step) error {
				if n >= 3 {
					return gpu.ErrNoPermission
				}

				return nil
			}
		})
		if !strings.Contains(op.Error.Detail, "no permission") {
			t.Errorf("detail %q", op.Error.Detail)
		}

		w.before = nil
		w.afterFailure(t, e, mixedBefore, mixedBefore)
	})
}

func TestFailingRollBack(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { failingRollBack(t, restart) })
	}
}

func failingRollBack(t *testing.T, restart bool) {
	w, e, op := survives(t, api.Degraded, func(w *world) {
		w.before = func(n int, _ mig.Step) error {
			if n >= 4 {
				return gpu.ErrDriver
			}

			return nil
		}
	})
	if _, err := e.Rollback(t.Context(), everything, op.ID); err != nil {
		t.Fatal(err)
	}

	e.drive(t) // it fails again, and can be tried again

	if e.State() != degraded {
		t.Errorf("state %s", e.State())
	}

	p := isProblem(t, e.free(t, gpu0), api.DegradedNode)
	cmptest.Equal(t, "operation of the problem", p.Operation, op.ID)

	if p := e.free(t, gpu1); p != nil {
		t.Errorf("a GPU that the operation has not touched is blocked: %v", p)
	}

	w.before = nil
	if restart {
		e = w.engine(t, nil)
	}

	w.afterFailure(t, e, mixedBefore, mixedBefore)
}

func TestNamesThatChangeWithADriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, op := survives(t, api.Succeeded, func(*world) {})
		for n := range w.gpus {
			for m := range w.gpus[n].Instances {
				w.gpus[n].Instances[m].Profile += "+gfx"
			}
		}

		next, err := e.Rollback(t.Context(), everything, op.ID)
		if err != nil {
			t.Fatal(err)
		}

		e.drive(t)

		if got := e.now(t, next.ID); got.State != api.Succeeded || !strings.Contains(w.drawLayout(), "1: 7g.40gb@0:8[0:7]") {
			t.Errorf("operation is %s\n%s", got.State, w.drawLayout())
		}
	})
}

func TestKubeletUnavailableIsBusy(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)
	w.podsErr = gpu.ErrUnavailable
	_, err := e.Plan(t.Context(), everything, mixed())

	p := isProblem(t, err, api.Infeasible)
	if len(p.Blocking) == 0 || !slices.ContainsFunc(p.Blocking[0].Holders, func(h api.Hold) bool {
		return h.Kind == api.HoldUnconfirmed && h.What == "the kubelet does not answer: unavailable"
	}) {
		t.Errorf("blocking %+v", p.Blocking)
	}

	w.podsErr = nil

	op, err := e.start(t, mixed())
	if err != nil {
		t.Fatal(err)
	}

	w.podsErr = gpu.ErrUnavailable // between the check and the destruction
	synctest.Test(t, func(t *testing.T) { e.drive(t) })
	got := e.now(t, op.ID)
	cmptest.Equal(t, "state of the operation", got.State, api.Failed)
	cmptest.Equal(t, "problem of the operation", got.Error.Type, api.Busy)
	cmptest.Equal(t, "layout", w.drawLayout(), mixedBefore)
}

func TestFragmentationReportsTheBlocker(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)
	_, err := e.Plan(t.Context(), everything,
		api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"0"},
			Devices: map[string]api.DeviceRequest{"7g.40gb": {Count: 1}}}})

	p := isProblem(t, err, api.Infeasible)
	if len(p.Blocking) != 1 {
		t.Fatalf("p.Blocking: %+v, want 1 of them", p.Blocking)
	}

	cmptest.Equal(t, "p.Blocking[0].Instance", p.Blocking[0].Instance, "MIG-0-0:4-0:3-e0")
	cmptest.Equal(t, "p.Blocking[0].Holders[0].PID", p.Blocking[0].Holders[0].PID, 42)
}

func TestRebootInMidOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)

		e := w.engine(t, nil)
		if _, err := e.start(t, mixed()); err != nil {
			t.Fatal(err)
		}

		w.points = 0
		w.dieAt = 12
		e.drive(t)
		w.revive()

		for n := range w.gpus {
			w.gpus[n].Instances = nil
		}

		w.create(gpu1, "1g.5gb", 0) // by a human, after the reboot
		next := w.engine(t, func(o *Options) { o.BootID = "boot-2" })
		op := next.Operations().Operations[0]
		cmptest.Equal(t, "state of the operation", op.State, api.Interrupted)
		wantText(t, "op.Error.Detail", op.Error.Detail, "rebooted")
		cmptest.Equal(t, "state of the next engine", next.State(), idle)
		cmptest.Equal(t, "cordoned by", w.cordonedBy, "")

		if w.drawLayout() != "0:\n1: 1g.5gb@0:1[0:1]\n" {
			t.Errorf("something was touched:\n%s", w.drawLayout())
		}
	})
}
