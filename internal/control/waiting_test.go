package control

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// crashed is a world whose process died in the middle of an operation: after its n-th step, before
// the outcome was on disk.
func crashed(t *testing.T, r api.PlanRequest, n int) *world {
	t.Helper()
	w := newWorld(t)

	e := w.engine(t, nil)
	if _, err := e.start(t, r); err != nil {
		t.Fatal(err)
	}

	w.after = func(at int, _ mig.Step) error {
		w.dead = at == n
		return nil
	}
	e.drive(t)
	w.revive()
	w.after = nil

	return w
}

// running starts an engine, whose log goes to the buffer.
func (w *world) running(t *testing.T, to *bytes.Buffer) (e *Engine, stop func()) {
	t.Helper()
	e = w.engine(t, func(o *Options) {
		if to != nil {
			o.Logger = log.NewLogfmtLogger(log.NewSyncWriter(to))
		}
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()

	return e, func() {
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestUnknownDriverVersion: right after a start, while any GPU hangs, the driver has not said its
// version yet. That is not another version: the operation waits, and is finished as soon as it is
// known.
func TestUnknownDriverVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crashed(t, second(two3g), 2)
		w.unversion = true
		w.look()
		var logged bytes.Buffer
		e, stop := w.running(t, &logged)
		time.Sleep(time.Hour)
		op := e.Operations().Operations[0]
		cmptest.Equal(t, "state of the operation", op.State, api.Stuck)
		cmptest.Equal(t, "waits for", strings.Join(op.WaitsFor, ", "), "the driver to say its version")
		wantText(t, "error", op.Error.Detail, "it waits for the driver to say its version")
		cmptest.Equal(t, "blocked", e.Operations().Blocked, map[gpu.UUID]string{gpu1: op.ID})

		w.unversion = false
		w.answer()
		time.Sleep(10 * time.Second)
		op = *e.now(t, op.ID)
		cmptest.Equal(t, "state of the operation", op.State, api.RolledBack)
		cmptest.Equal(t, "layout", w.drawLayout(), mixedBefore)

		if len(op.WaitsFor) > 0 || strings.Contains(op.Error.Detail, "waits for") {
			t.Errorf("it still waits for %v: %v", op.WaitsFor, op.Error)
		}

		stop()

		if n := strings.Count(logged.String(), "operation of the last run waits"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, logged.String())
		}
	})
}

// TestHungGPUAfterCrash: one of two GPUs hangs when the next process starts. The other one is
// rolled back at once, and can be changed; the one that hangs is rolled back once it answers,
// however late.
func TestHungGPUAfterCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crashed(t, mixed(), 8)
		if before := strings.SplitAfter(w.drawLayout(), "\n"); before[0] == strings.SplitAfter(mixedBefore, "\n")[0] {
			t.Fatalf("GPU 0 was not changed:\n%s", w.drawLayout())
		}

		w.silent = gpu1
		w.look()
		began := time.Now()

		e, stop := w.running(t, nil)
		if took := time.Since(began); took > 2*answerTime {
			t.Errorf("the start took %s", took)
		}

		op := e.Operations().Operations[0]
		cmptest.Equal(t, "state of the operation", op.State, api.Stuck)
		cmptest.Equal(t, "state of GPU 0", op.GPUs[0].State, api.RolledBack)
		cmptest.Equal(t, "state of GPU 1", op.GPUs[1].State, api.Stuck)
		cmptest.Equal(t, "waits for", strings.Join(op.WaitsFor, ", "), string(gpu1)+" to answer")
		cmptest.Equal(t, "layout of GPU 0", strings.SplitAfter(w.drawLayout(), "\n")[0],
			strings.SplitAfter(mixedBefore, "\n")[0])

		if p := e.free(t, gpu0); p != nil {
			t.Errorf("GPU 0 is blocked: %v", p)
		}

		time.Sleep(25 * time.Minute)
		w.answer()
		time.Sleep(10 * time.Second)
		cmptest.Equal(t, "state of the operation", e.now(t, op.ID).State, api.RolledBack)
		cmptest.Equal(t, "layout", w.drawLayout(), mixedBefore)
		cmptest.Equal(t, "state of the engine", e.State(), idle)
		stop()
	})
}

// TestHungGPUOfFinishedOperation: all steps were done before the crash. As long as one GPU does not
// answer we do not know whether the operation can be committed, so none of its GPUs is rolled
// back.
func TestHungGPUOfFinishedOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)

		e := w.engine(t, nil)
		if _, err := e.start(t, mixed()); err != nil {
			t.Fatal(err)
		}

		w.saving = func(_ int, document []byte) error {
			w.dead = strings.Contains(string(document), `"state":"settling"`)
			return nil
		}
		w.points = 0
		e.drive(t)
		done := w.drawLayout()
		cmptest.Equal(t, "layout at the crash", done, mixedAfter)
		w.revive()
		w.saving = nil
		w.documents.Operation = bytes.ReplaceAll(w.documents.Operation, []byte(`"settling"`), []byte(`"running"`))

		w.silent = gpu1
		w.look()
		e, stop := w.running(t, nil)
		time.Sleep(time.Hour)
		op := e.Operations().Operations[0]
		cmptest.Equal(t, "state of the operation", op.State, api.Stuck)
		cmptest.Equal(t, "layout while it waits", w.drawLayout(), done)
		w.answer()
		time.Sleep(10 * time.Second)
		cmptest.Equal(t, "state of the operation", e.now(t, op.ID).State, api.Succeeded)
		cmptest.Equal(t, "layout", w.drawLayout(), done)
		stop()
	})
}

// TestStuckAfterStop: an operation is stuck for hours, the exporter is stopped and started again
// while the GPU still hangs, and then the GPU answers. The operation is rolled back by itself.
func TestStuckAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e, stop := w.running(t, nil)
		w.after = func(_ int, s mig.Step) error {
			if s.Op == mig.DestroyInstance {
				w.silent = gpu1
				return gpu.ErrTimeout
			}

			return nil
		}

		started, err := e.start(t, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		time.Sleep(3 * time.Hour)
		cmptest.Equal(t, "state of the operation", e.now(t, started.ID).State, api.Stuck)
		stop()
		w.after = nil
		w.hung = ""
		time.Sleep(5 * time.Second)
		w.look()

		e, stop = w.running(t, nil)
		time.Sleep(3 * time.Hour)
		op := e.now(t, started.ID)
		cmptest.Equal(t, "state of the operation", op.State, api.Stuck)

		if p := e.free(t, gpu0); p != nil {
			t.Errorf("GPU 0 is blocked: %v", p)
		}

		w.answer()
		time.Sleep(10 * time.Second)
		cmptest.Equal(t, "state of the operation", e.now(t, started.ID).State, api.RolledBack)
		cmptest.Equal(t, "layout", w.drawLayout(), mixedBefore)
		cmptest.Equal(t, "state of the engine", e.State(), idle)
		stop()
	})
}

// TestHangAfterLongAbsence: no process looked after the GPU for an hour. It is left alone, and no
// longer blocked once it answers.
func TestHangAfterLongAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crashed(t, second(two3g), 2)
		time.Sleep(time.Hour)
		w.silent = gpu1
		w.look()
		_, stop := w.running(t, nil)
		time.Sleep(time.Hour)
		stop() // it must not count as having been looked after
		w.hung = ""
		e, stop := w.running(t, nil)
		was := w.drawLayout()
		w.answer()
		time.Sleep(10 * time.Second)
		op := e.Operations().Operations[0]
		cmptest.Equal(t, "state of the operation", op.State, api.Interrupted)
		wantText(t, "error", op.Error.Detail, "away for")
		cmptest.Equal(t, "layout", w.drawLayout(), was)
		stop()
	})
}

// TestListWhileRecovering: as long as the state folder was not read, the list says that operations
// are missing.
func TestListWhileRecovering(t *testing.T) {
	w := newWorld(t)

	e, err := New(Options{Actuator: w, Poller: w, Store: &folder{w}, CallTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}

	if list := e.Operations(); !list.Recovering || len(list.Operations) > 0 {
		t.Errorf("list before the state folder was read: %+v", list)
	}

	e.recoverOperations(t.Context())

	if list := e.Operations(); list.Recovering {
		t.Errorf("list after the state folder was read: %+v", list)
	}
}

// TestRequestAtTheEndOfAnOperation: a client that has seen an operation end can start the next one,
// although the end is still being written.
func TestRequestAtTheEndOfAnOperation(t *testing.T) {
	for _, ends := range []api.OperationState{api.Failed, api.Degraded} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			e, stop := w.running(t, nil)
			w.before = func(_ int, s mig.Step) error {
				if s.GPU == gpu1 && (ends == api.Failed || s.Op != mig.DestroyCompute) {
					return gpu.ErrDriver
				}

				return nil
			}
			seen := make(chan struct{})
			w.saving = func(_ int, document []byte) error {
				if strings.Contains(string(document), `"state":"`+string(ends)+`","started"`) {
					w.mu.Unlock()
					<-seen
					w.mu.Lock()
				}

				return nil
			}

			op, err := e.start(t, second(two3g))
			if err != nil {
				t.Fatal(err)
			}

			time.Sleep(e.o.CallTimeout / 2) // as long as the call of the store is waited for
			cmptest.Equal(t, "state of the operation", e.now(t, op.ID).State, ends)
			time.AfterFunc(time.Second, func() { close(seen) })

			if p := e.free(t, gpu0); p != nil {
				t.Errorf("%s: the next operation is refused: %v", ends, p)
			}

			w.saving = nil
			w.before = nil
			stop()
		})
	}
}
