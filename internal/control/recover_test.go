package control

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestHooksAfterCrashesInTheRollBack: devices that one process has created again, and that the next
// only finds, are passed to hooks.
func TestHooksAfterCrashesInTheRollBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		dies := func(op mig.StepOp) {
			w.after = func(_ int, s mig.Step) error {
				w.dead = s.Op == op
				return nil
			}
		}
		dies(mig.DestroyCompute) // the first step: what became of it is not on disk

		if _, err := e.start(t, second(two3g)); err != nil {
			t.Fatal(err)
		}

		w.epoch++
		e.drive(t)
		w.revive()
		dies(mig.CreateCompute)
		w.engine(t, nil)
		w.revive()
		w.after = nil
		next := w.engine(t, nil)
		w.sound(t, next, mixedBefore, mixedBefore)
		op := next.Operations().Operations[0]
		cmptest.Equal(t, "state of the operation", op.State, api.RolledBack)
		cmptest.Equal(t, "number of hooks run", len(w.hooks), 1)

		if op.Renamed[sevenG] == "" {
			t.Error("op.Renamed[sevenG] is empty")
		}
	})
}

// TestForceOfOneOfTwoComputeInstances: the other one protects their GPU instance still.
func TestForceOfOneOfTwoComputeInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		e.applied(t, parts())

		seven := w.gpu(gpu1).Instances[0]
		for n := range seven.ComputeInstances {
			w.processes[gpu1] = append(w.processes[gpu1],
				gpu.Process{PID: uint32(9 + n), Instance: gpu.Some(seven.ID), Compute: gpu.Some(seven.ComputeInstances[n].ID)})
		}

		one := string(seven.ComputeInstances[0].UUID)
		other := string(seven.ComputeInstances[1].UUID)
		_, err := e.Plan(t.Context(), everything, second(two3g, one))

		p := isProblem(t, err, api.Infeasible)
		if len(p.Blocking) != 1 || p.Blocking[0].Instance == one {
			t.Errorf("blocking %+v", p.Blocking)
		}

		if _, err := e.Plan(t.Context(), everything, second(two3g, one, other)); err != nil {
			t.Errorf("both forced: %v", err)
		}
	})
}

// TestModeRunsHooks: a device plugin has to follow a MIG mode, too.
func TestModeRunsHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := bare(t)
		op := w.engine(t, nil).switched(t)
		cmptest.Equal(t, "state of the operation", op.State, api.Succeeded)
		cmptest.Equal(t, "len(op.Hooks)", len(op.Hooks), 1)

		if len(w.hooks) != 1 {
			t.Fatalf("w.hooks: %+v, want 1 of them", w.hooks)
		}

		wantText(t, "w.hooks[0]", strings.Join(w.hooks[0], " "), "MIG_CONTROL_VERB=mode")
		wantText(t, "w.hooks[0]", strings.Join(w.hooks[0], " "), "MIG_CONTROL_GPUS="+string(gpu1))
	})
}

// TestIdenticalInstanceOfAnotherClient: what another client has created at the very place, of the
// very profile, is not the operation's, neither for this process nor for the next.
func TestIdenticalInstanceOfAnotherClient(t *testing.T) {
	for _, crash := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := bare(t)
			e := w.engine(t, nil)
			w.before = func(_ int, s mig.Step) error {
				if s.Op == mig.CreateInstance && w.gpu(gpu1).Instances == nil {
					_, err := w.perform(s)
					return err
				}

				return nil
			}

			if _, err := e.start(t, second(map[string]api.DeviceRequest{"1g.5gb": {Count: 1}})); err != nil {
				t.Fatal(err)
			}

			if crash { // once the outcome is on disk
				w.saving = func(_ int, document []byte) error {
					w.dead = strings.Contains(string(document), `"error":"another client`)
					return nil
				}
			}

			e.drive(t)
			w.revive()
			w.saving = nil
			w.before = nil
			next := w.engine(t, nil)

			got := w.gpu(gpu1).Instances
			if len(got) != 1 {
				t.Fatalf("got: %+v, want 1 of them", got)
			}

			cmptest.Equal(t, "got[0].Profile", got[0].Profile, "1g.5gb")
			cmptest.Equal(t, "state of the next engine", next.State(), idle)
			op := next.Operations().Operations[0]
			cmptest.Equal(t, "state of the operation", op.State, api.Failed)

			if op.Error == nil {
				t.Fatal("the operation has no error")
			}

			if !crash {
				cmptest.Equal(t, "problem of the operation", op.Error.Type, api.LayoutChanged)
			}
		})
	}
}
