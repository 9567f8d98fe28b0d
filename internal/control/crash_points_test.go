package control

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

const (
	mixedBefore = "0: 3g.20gb@0:4[0:3] 3g.20gb@4:4[0:3]\n1: 7g.40gb@0:8[0:7]\n"
	mixedAfter  = "0: 3g.20gb@0:4[0:3] 2g.10gb@4:2[0:2] 1g.5gb@6:1[0:1]\n1: 3g.20gb@0:4[0:3] 3g.20gb@4:4[0:3]\n"
)

// representative are operations that every crash point and every failure is tried with. Each leads
// to a started operation.
func representative() map[string]func(t *testing.T, w *world, e *Engine) error {
	return map[string]func(t *testing.T, w *world, e *Engine) error{
		"apply to two GPUs": func(t *testing.T, _ *world, e *Engine) error {
			_, err := e.start(t, mixed())
			return err
		},
		"compute instances": func(t *testing.T, _ *world, e *Engine) error {
			_, err := e.start(t, parts())
			return err
		},
		"roll back": func(t *testing.T, _ *world, e *Engine) error {
			_, err := e.Rollback(t.Context(), everything, e.Operations().Operations[0].ID)
			return err
		},
	}
}

// parts asks for two compute instances in the 7g, which stays.
func parts() api.PlanRequest {
	return second(map[string]api.DeviceRequest{"7g.40gb": {Count: 1, Compute: []string{"3c", "4c"}}})
}

// prepared is a world at which such an operation can begin, its engine, and the layouts between
// which it must choose.
func prepared(t *testing.T, name string) (w *world, e *Engine, before, after string) {
	t.Helper()
	w = newWorld(t)

	e = w.engine(t, nil)
	if name == "compute instances" {
		twin := newWorld(t)
		op := twin.engine(t, nil).applied(t, parts())
		cmptest.Equal(t, "state of the operation", op.State, api.Succeeded)
		cmptest.Equal(t, "len(twin.gpu(gpu1).Instances[0].ComputeInstances)",
			len(twin.gpu(gpu1).Instances[0].ComputeInstances), 2)
		cmptest.Equal(t, "twin.gpu(gpu1).Instances[0].ID", twin.gpu(gpu1).Instances[0].ID, w.gpu(gpu1).Instances[0].ID)

		return w, e, mixedBefore, twin.drawLayout()
	}

	if name == "roll back" {
		e.applied(t, mixed())

		if w.drawLayout() != mixedAfter {
			t.Fatalf("prepared:\n%s", w.drawLayout())
		}

		w.points = 0
		w.calls = 0
		w.saves = 0
		w.hooks = nil

		return w, e, mixedAfter, mixedBefore
	}

	w.points = 0
	w.calls = 0
	w.saves = 0

	return w, e, mixedBefore, mixedAfter
}

// sound asserts what must hold whatever happened.
func (w *world) sound(t *testing.T, e *Engine, before, after string) {
	t.Helper()

	if got := w.drawLayout(); got != before && got != after {
		t.Errorf("layout is\n%s neither that before\n%s nor that after\n%s", got, before, after)
	}

	if i := w.gpu(gpu0).Instances[0]; i.ID != 1 {
		t.Errorf("the busy instance was touched: %+v", i)
	}

	if e.State() != idle {
		t.Errorf("state %s, want idle", e.State())
	}

	if w.cordonedBy != "" {
		t.Errorf("the node is still cordoned")
	}

	for _, op := range e.Operations().Operations {
		if !op.State.Final() {
			t.Errorf("operation is %s, want its end", op.State)
		}
	}
}

func TestCrashBetweenAnyTwoSteps(t *testing.T) {
	for name, begin := range representative() {
		for n := 0; ; n++ {
			died := true
			synctest.Test(t, func(t *testing.T) {
				w, e, before, after := prepared(t, name)
				w.points = 0
				w.dieAt = n
				started := begin(t, w, e)
				e.drive(t)
				died = w.dead
				w.revive()
				next := w.engine(t, nil)
				w.sound(t, next, before, after)

				if started == nil && !died {
					cmptest.Equal(t, "layout when nothing died", w.drawLayout(), after)
				}

				if again := w.engine(t, nil); again.State() != idle {
					t.Errorf("a second start finds the state %s", again.State())
				}
			})

			if t.Failed() {
				t.Fatalf("%s, crash point %d", name, n)
			}

			if !died {
				t.Logf("%s: %d crash points", name, n)
				break
			}
		}
	}
}

func TestCrashDuringRollBack(t *testing.T) {
	for n := 0; ; n++ {
		died := true
		synctest.Test(t, func(t *testing.T) {
			w, e, before, after := prepared(t, "apply to two GPUs")
			w.before = func(_ int, s mig.Step) error {
				if s.Op == mig.CreateCompute && s.GPU == gpu1 && s.Profile == "3g.20gb" {
					return gpu.ErrNoPermission
				}

				return nil
			}
			w.points = 0
			w.dieAt = n
			_, _ = e.start(t, mixed())
			e.drive(t)
			died = w.dead
			w.revive()
			w.before = nil
			w.sound(t, w.engine(t, nil), before, after)
		})

		if t.Failed() {
			t.Fatalf("crash point %d", n)
		}

		if !died {
			return
		}
	}
}

// TestFailureAtEveryStep has every driver call of an operation fail, in every way.
func TestFailureAtEveryStep(t *testing.T) {
	for name, begin := range representative() {
		for _, cause := range []error{gpu.ErrInsufficientResources, gpu.ErrNoPermission, gpu.ErrInUse, gpu.ErrLost,
			gpu.ErrDriver, gpu.ErrTimeout} {
			for _, done := range []bool{false, true} {
				if done && isRefused(cause) {
					continue // nothing was done: what looks like it is another client's
				}

				for n := 0; ; n++ {
					failed := false
					synctest.Test(t, func(t *testing.T) {
						w, e, before, after := prepared(t, name)

						fail := func(at int, _ mig.Step) error {
							if at != n {
								return nil
							}

							failed = true

							return fmt.Errorf("step: %w", cause)
						}
						if done {
							w.after = fail
						} else {
							w.before = fail
						}

						if err := begin(t, w, e); err != nil {
							t.Fatal(err)
						}

						e.drive(t)
						w.afterFailure(t, e, before, after)
					})

					if t.Failed() {
						t.Fatalf("%s, step %d, %v, done %t", name, n, cause, done)
					}

					if !failed {
						break
					}
				}
			}
		}
	}
}

// afterFailure retries the rollback of an operation that is degraded or stuck, and then all must be
// well.
func (w *world) afterFailure(t *testing.T, e *Engine, before, after string) {
	t.Helper()

	op := e.Operations().Operations[0]
	if s := e.State(); s == degraded || s == stuck || s == readOnly {
		if !strings.Contains("degraded stuck", string(op.State)) {
			t.Errorf("state %s, and the operation is %s", s, op.State)
		}

		_, err := e.Plan(t.Context(), everything, mixed())
		if p := (*api.Problem)(nil); err != nil && !errors.As(err, &p) {
			t.Errorf("plan: %v", err)
		}

		if _, err := e.Rollback(t.Context(), everything, op.ID); err != nil {
			t.Fatalf("retry: %v", err)
		}

		e.drive(t)
	}

	w.sound(t, e, before, after)
	op = e.Operations().Operations[0]

	want := before
	if op.State == api.Succeeded {
		want = after
	}

	cmptest.Equal(t, fmt.Sprintf("layout with the operation %s", op.State), w.drawLayout(), want)

	if again := w.engine(t, nil); again.State() != idle {
		t.Errorf("the next start finds the state %s", again.State())
	}
}

// TestFullDiskAtEveryWrite has every journal write fail, and all that follow, until there is room again.
func TestFullDiskAtEveryWrite(t *testing.T) {
	for name, begin := range representative() {
		for n := 0; ; n++ {
			failed := false
			synctest.Test(t, func(t *testing.T) {
				w, e, before, after := prepared(t, name)
				w.saves = 0
				w.saving = func(at int, _ []byte) error {
					if failed = failed || at == n; failed {
						return syscall.ENOSPC
					}

					return nil
				}
				err := begin(t, w, e)
				calls := w.calls
				e.drive(t)

				if failed && e.State() != readOnly {
					t.Errorf("state %s, want read-only", e.State())
				}

				if failed && n == 0 {
					isProblem(t, err, api.ReadOnly)

					if w.calls != calls {
						t.Error("a step was done that is not on disk")
					}
				}

				if failed {
					p := isProblem(t, e.free(t, gpu1), api.ReadOnly)
					wantText(t, "p.Detail", p.Detail, "no room is left")
				}

				w.saving = nil
				e.repairStore()
				e.retryDegraded(t.Context()) // by itself, now that there is room again
				e.drive(t)

				if n > 0 {
					w.afterFailure(t, e, before, after)
				}
			})

			if t.Failed() {
				t.Fatalf("%s, journal write %d", name, n)
			}

			if !failed {
				break
			}
		}
	}
}
