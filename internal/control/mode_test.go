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

// bare is a world whose second GPU has no instances.
func bare(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.gpu(gpu1).Instances = nil
	w.look()

	return w
}

// switched asks for MIG off on the second GPU, and brings that to its end.
func (e *Engine) switched(t *testing.T) *api.Operation {
	t.Helper()

	op, err := e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
	if err != nil {
		t.Fatal(err)
	}

	e.drive(t)

	return e.now(t, op.ID)
}

func TestModeChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := bare(t)
		e := w.engine(t, nil)
		op := e.switched(t)
		cmptest.Equal(t, "state of the operation", op.State, api.Succeeded)
		cmptest.Equal(t, "op.Mode.Current", op.Mode.Current, false)
		cmptest.Equal(t, "op.Mode.Waits", op.Mode.Waits, "")
		cmptest.Equal(t, "w.gpu(gpu1).MIG.Or(true)", w.gpu(gpu1).MIG.Or(true), false)
		cmptest.Equal(t, "op.Warnings[0]", op.Warnings[0], modeWarning)

		if w.released != 1 || w.resumed != 1 {
			t.Errorf("profiling: %d released, %d resumed", w.released, w.resumed)
		}

		if again := e.switched(t); again.State != api.Succeeded || w.released != 1 {
			t.Errorf("again: %+v", again)
		}

		_, err := e.Rollback(t.Context(), everything, op.ID)
		isProblem(t, err, api.BadSpec)
	})
}

func TestModeRefused(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)
	_, err := e.SetMode(t.Context(), Actor{Rights: Rights{Apply: true}}, gpu1, api.ModeRequest{})
	isProblem(t, err, api.Forbidden)

	_, err = e.SetMode(t.Context(), Actor{Rights: Rights{Mode: true}}, gpu1, api.ModeRequest{TakeOver: true})
	if p := isProblem(t, err, api.Forbidden); !strings.Contains(p.Detail, "take-over") {
		t.Errorf("the problem does not name the right: %s", p.Detail)
	}

	_, err = e.SetMode(t.Context(), everything, "GPU-none", api.ModeRequest{})
	isProblem(t, err, api.NotFound)

	_, err = e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
	if p := isProblem(t, err, api.Busy); len(p.Blocking) != 1 || p.Blocking[0].Instance != sevenG {
		t.Errorf("blocking %+v", p.Blocking)
	}

	w.gpu(gpu1).Instances = nil

	for name, use := range map[string]func(){
		"process": func() { w.processes[gpu1] = []gpu.Process{{PID: 4}} },
		"handle": func() {
			w.asking = func(gpu.UUID) ([]Handle, error) { return []Handle{{PID: 4, Command: "uvicorn"}}, nil }
		},
		"pod":               func() { w.give(gpu.DeviceRef{GPU: gpu1}) },
		"unknown":           func() { w.podsErr = gpu.ErrUnavailable },
		"job":               func() { w.snapshot.GPUs[1].Jobs = []string{"4711"} },
		"a job may have it": func() { w.snapshot.GPUs[1].JobsUnknown = true },
		"not read, on a node with jobs": func() {
			w.snapshot.GPUs = w.snapshot.GPUs[:1]
			w.snapshot.Sources = []gpu.SourceState{{Name: gpu.SourceJobs, Up: true}}
		},
	} {
		use()

		_, err = e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
		if p := isProblem(t, err, api.Busy); len(p.Blocking) != 1 || len(p.Blocking[0].Holders) == 0 {
			t.Errorf("%s: blocking %+v", name, p.Blocking)
		}

		w.processes[gpu1], w.asking, w.pods, w.podsErr = nil, nil, gpu.Assignments{}, nil
		w.look()
	}

	w.owners = map[gpu.UUID][]string{gpu1: {"slurm"}}
	_, err = e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
	isProblem(t, err, api.ForeignOwner)
	w.gpu(gpu1).MIG = gpu.None[bool]()
	_, err = e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
	isProblem(t, err, api.ModeDiffers)
}

// TestHandleThatBlocks has a mode wait for what holds the GPU open, for a reset or for a reboot;
// none is asked for.
func TestHandleThatBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for waits, err := range map[string]error{"in use": gpu.ErrInUse, "reset": gpu.ErrResetRequired,
			"reboot": gpu.ErrNotSupported} {
			w := bare(t)
			w.asking = func(gpu.UUID) ([]Handle, error) { return []Handle{{PID: 4, Command: "nv-hostengine"}}, nil }
			w.mode = func(on bool) (mig.ModeChange, error) {
				return mig.ModeChange{Current: !on, Pending: on, Activation: err}, nil
			}
			op := w.engine(t, nil).switched(t)
			cmptest.Equal(t, waits+": op.State", op.State, api.Succeeded)
			cmptest.Equal(t, waits+": op.Mode.Waits", op.Mode.Waits, waits)
			cmptest.Equal(t, waits+": op.Mode.Current", op.Mode.Current, true)
			cmptest.Equal(t, waits+": op.Mode.Pending", op.Mode.Pending, false)

			if len(op.Mode.Holders) != 1 || op.Mode.Holders[0].PID != 4 {
				t.Errorf("%s: holders %+v", waits, op.Mode.Holders)
			}
		}
	})
}

func TestModeThatTheDriverRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := bare(t)
		w.mode = func(bool) (mig.ModeChange, error) { return mig.ModeChange{}, gpu.ErrNoPermission }
		e := w.engine(t, nil)
		op := e.switched(t)
		cmptest.Equal(t, "state of the operation", op.State, api.Failed)
		wantText(t, "op.Error.Detail", op.Error.Detail, "no permission")
		cmptest.Equal(t, "state of the engine", e.State(), idle)
		cmptest.Equal(t, "w.resumed", w.resumed, 1)
		w.mode = func(on bool) (mig.ModeChange, error) { return mig.ModeChange{Current: !on, Pending: !on}, nil }

		if op := e.switched(t); op.State != api.Failed {
			t.Errorf("a mode that was not taken: operation is %s", op.State)
		}
	})
}

func TestModeChangeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := bare(t)
		w.mode = func(on bool) (mig.ModeChange, error) {
			w.gpus[1].MIG, w.gpus[1].Pending = gpu.Some(on), gpu.Some(on) // it is done, late
			return mig.ModeChange{}, gpu.ErrTimeout
		}
		e := w.engine(t, nil)
		op := e.switched(t)
		cmptest.Equal(t, "state of the operation", op.State, api.Stuck)
		cmptest.Equal(t, "state of the engine", e.State(), stuck)
		cmptest.Equal(t, "w.resumed", w.resumed, 1)

		if _, err := e.Rollback(t.Context(), everything, op.ID); err != nil {
			t.Fatal(err)
		}

		e.drive(t)

		if got := e.now(t, op.ID); got.State != api.Succeeded || e.State() != idle {
			t.Errorf("operation is %s, state %s", got.State, e.State())
		}
	})
}

func TestCrashDuringModeChange(t *testing.T) {
	for n := 0; ; n++ {
		died := true
		synctest.Test(t, func(t *testing.T) {
			w := bare(t)
			e := w.engine(t, nil)
			w.points = 0
			w.dieAt = n
			_, _ = e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
			e.drive(t)
			died = w.dead
			w.revive()

			next := w.engine(t, nil)
			if next.State() != idle {
				t.Errorf("state %s", next.State())
			}

			for _, op := range next.Operations().Operations {
				if off := !w.gpu(gpu1).MIG.Or(true); (op.State == api.Succeeded) != off {
					t.Errorf("operation is %s, MIG off is %t", op.State, off)
				}
			}
		})

		if t.Failed() {
			t.Fatalf("crash point %d", n)
		}

		if !died {
			return
		}
	}
}
