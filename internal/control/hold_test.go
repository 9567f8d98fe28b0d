package control

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestRebuildAfterAcceptedHang: a stuck operation is accepted once its call has returned. What is
// changed from then on is not the operation's.
func TestRebuildAfterAcceptedHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		w.after = func(_ int, _ mig.Step) error {
			w.hung = gpu1
			return gpu.ErrTimeout
		}
		op := e.applied(t, second(two3g))
		cmptest.Equal(t, "state of the operation", op.State, api.Stuck)
		w.after = nil
		w.hung = ""

		if _, err := e.Accept(t.Context(), everything, op.ID); err != nil {
			t.Fatal(err)
		}

		settleOwn()

		w.look()

		plan, err := e.Plan(t.Context(), everything, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		w.rebuild(gpu1)
		_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
		isProblem(t, err, api.StalePlan)
	})
}

// TestOneOfTwoGPUsAnswers: an operation of the last process waits for the driver version. Once that
// is known, one of its GPUs still hangs; the other one is rolled back.
func TestOneOfTwoGPUsAnswers(t *testing.T) {
	for name, hung := range map[string]gpu.UUID{"a call was given up before": gpu1, "none was": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := crashed(t, mixed(), 8)
				w.silent = gpu1
				w.hung = hung
				w.unversion = true
				w.look()
				e, stop := w.running(t, nil)
				time.Sleep(time.Hour)
				op := e.Operations().Operations[0]
				cmptest.Equal(t, "state of the operation", op.State, api.Stuck)
				wantText(t, "why GPU 0 is blocked", e.free(t, gpu0).Detail, "waits for the driver to say its version")

				w.mu.Lock()
				w.unversion = false
				w.look()
				w.mu.Unlock()
				time.Sleep(10 * time.Second)
				op = *e.now(t, op.ID)
				cmptest.Equal(t, "state of GPU 0", op.GPUs[0].State, api.RolledBack)
				cmptest.Equal(t, "state of GPU 1", op.GPUs[1].State, api.Stuck)

				if p := e.free(t, gpu0); p != nil {
					t.Errorf("GPU 0 is blocked: %v", p)
				}

				_, err := e.Accept(t.Context(), everything, op.ID)
				isProblem(t, err, api.StuckNode)

				w.answer()
				time.Sleep(10 * time.Second)
				cmptest.Equal(t, "state of the operation", e.now(t, op.ID).State, api.RolledBack)
				cmptest.Equal(t, "layout", w.drawLayout(), mixedBefore)
				stop()
			})
		})
	}
}

// TestRebuildWhileWaiting: an operation of the last process waits for the driver version. What
// another client rebuilds meanwhile is not the operation's, although the instances are the same.
func TestRebuildWhileWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		rebuilt bool
		want    api.OperationState
	}{"rebuilt": {true, api.Interrupted}, "not rebuilt": {false, api.RolledBack}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)

				e := w.engine(t, nil)
				if _, err := e.start(t, second(two3g)); err != nil {
					t.Fatal(err)
				}

				w.saving = func(_ int, document []byte) error { // after a step, not within one
					w.dead = strings.Contains(string(document), `"changed":true`) &&
						!strings.Contains(string(document), `"pending":{`)

					return nil
				}
				e.drive(t)
				w.revive()
				w.saving = nil
				w.unversion = true
				w.look()

				e, stop := w.running(t, nil)
				time.Sleep(time.Minute)

				if c.rebuilt {
					w.rebuild(gpu1)
				}

				calls := w.calls
				w.unversion = false
				w.answer()
				time.Sleep(10 * time.Second)
				cmptest.Equal(t, "state of the operation", e.Operations().Operations[0].State, c.want)

				if changed := w.calls > calls; changed == c.rebuilt {
					t.Errorf("%d changes were asked of the driver", w.calls-calls)
				}

				stop()
			})
		})
	}
}
