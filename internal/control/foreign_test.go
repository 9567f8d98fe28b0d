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

// foreign is what another client makes of the second GPU: 1g, 1g, 2g and 3g.
const foreign = "1: 1g.5gb@0:1[0:1] 1g.5gb@1:1[0:1] 2g.10gb@2:2[0:2] 3g.20gb@4:4[0:3]\n"

// takeOver has another client lay out the second GPU anew.
func (w *world) takeOver() {
	w.gpu(gpu1).Instances = nil
	w.create(gpu1, "1g.5gb", 0)
	w.create(gpu1, "1g.5gb", 1)
	w.create(gpu1, "2g.10gb", 2)
	w.create(gpu1, "3g.20gb", 4)
}

// degrades fails everything on the second GPU from its n-th step on.
func degrades(w *world, n int) func(int, mig.Step) error {
	return func(_ int, s mig.Step) error {
		if s.GPU != gpu1 {
			return nil
		}

		if n--; n >= 0 {
			return nil
		}

		return gpu.ErrDriver
	}
}

// TestForeignLayoutAfterDegraded: an operation ends degraded, another client lays out the GPU anew,
// and then: the exporter is restarted, an operator asks for the rollback, or another operation
// wants the GPU. The other client's layout stands.
func TestForeignLayoutAfterDegraded(t *testing.T) {
	for name, goOn := range map[string]func(t *testing.T, w *world, e *Engine, id string) *Engine{
		"restart": func(t *testing.T, w *world, _ *Engine, _ string) *Engine {
			return w.engine(t, nil)
		},
		"rollback": func(t *testing.T, _ *world, e *Engine, id string) *Engine {
			if _, err := e.Rollback(t.Context(), everything, id); err != nil {
				t.Fatal(err)
			}

			e.drive(t)

			return e
		},
		"next operation": func(t *testing.T, _ *world, e *Engine, _ string) *Engine {
			if p := e.free(t, gpu1); p != nil {
				t.Errorf("the GPU is blocked: %v", p)
			}

			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				e := w.engine(t, nil)
				w.before = degrades(w, 3)

				op := e.applied(t, second(two3g))
				if op.State != api.Degraded {
					t.Fatalf("operation is %s", op.State)
				}

				w.before = nil
				w.takeOver()
				calls := w.calls
				e = goOn(t, w, e, op.ID)

				op = e.now(t, op.ID)
				if !strings.HasSuffix(w.drawLayout(), foreign) || w.calls != calls {
					t.Errorf("the other client's layout was changed:\n%s", w.drawLayout())
				}

				cmptest.Equal(t, "state of the operation", op.State, api.Interrupted)
				cmptest.Equal(t, "state of the engine", e.State(), idle)

				if len(op.GPUs) != 1 {
					t.Fatalf("op.GPUs: %+v, want 1 of them", op.GPUs)
				}

				cmptest.Equal(t, "len(op.GPUs[0].Current)", len(op.GPUs[0].Current), 4)

				if p := e.free(t, gpu1); p != nil {
					t.Errorf("the GPU is blocked: %v", p)
				}
			})
		})
	}
}

// TestForeignLayoutDuringOperation has another client lay out the second GPU anew before and after
// every step of an operation and of its rollback: from then on nothing is changed there, the other
// GPU is as it was, and the words are true.
func TestForeignLayoutDuringOperation(t *testing.T) {
	for _, failing := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			for n := 0; ; n++ {
				struck := false
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					e := w.engine(t, nil)
					strike := func(at int, s mig.Step) error {
						if at == n {
							struck = true
							w.takeOver()
						} else if struck && s.GPU == gpu1 {
							t.Errorf("%s of the other client's GPU", s.Op)
						}

						return nil
					}

					w.before = func(at int, s mig.Step) error {
						if !late {
							_ = strike(at, s)
						}

						if failing && s.Op == mig.CreateCompute && s.GPU == gpu1 {
							return gpu.ErrNoPermission
						}

						return nil
					}
					if late {
						w.after = strike
					}

					op := e.applied(t, mixed())

					if !struck {
						return
					}

					own := strings.SplitAfter(w.drawLayout(), "\n")
					if own[1] != foreign || own[0] != strings.SplitAfter(mixedBefore, "\n")[0] {
						t.Errorf("layout\n%s", w.drawLayout())
					}

					touched := op.State == api.Interrupted || op.State == api.RolledBack || op.State == api.Failed
					if !touched || e.State() != idle {
						t.Errorf("operation is %s: %v; state %s", op.State, op.Error, e.State())
					}
				})

				if t.Failed() {
					t.Fatalf("failing %t, late %t, step %d", failing, late, n)
				}

				if !struck {
					break
				}
			}
		}
	}
}

// TestForeignDestroyBeforeFirstStep: another client destroys the compute instance that the first
// step is about to destroy, and leaves the GPU instance. Nothing was changed, nothing is put there,
// and no GPU is blocked.
func TestForeignDestroyBeforeFirstStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)

		started, err := e.start(t, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		w.gpu(gpu1).Instances[0].ComputeInstances = nil
		e.drive(t)
		op := e.now(t, started.ID)
		cmptest.Equal(t, "state of the operation", op.State, api.Failed)
		cmptest.Equal(t, "problem of the operation", op.Error.Type, api.LayoutChanged)
		cmptest.Equal(t, "changes asked of the driver", w.calls, 0)
		cmptest.Equal(t, "state of the engine", e.State(), idle)

		for _, id := range []gpu.UUID{gpu0, gpu1} {
			if p := e.free(t, id); p != nil {
				t.Errorf("%s is blocked: %v", id, p)
			}
		}

		if !strings.HasSuffix(w.drawLayout(), "1: 7g.40gb@0:8\n") {
			t.Errorf("layout\n%s", w.drawLayout())
		}
	})
}

// TestRefusedStepIsAnOrdinaryFailure: in use, or no room, with the GPU as it was: no other client
// is to blame.
func TestRefusedStepIsAnOrdinaryFailure(t *testing.T) {
	for _, cause := range []error{gpu.ErrInUse, gpu.ErrInsufficientResources} {
		synctest.Test(t, func(t *testing.T) {
			_, e, op := survives(t, api.RolledBack, func(w *world) { w.before = first(mig.CreateInstance, gpu1, cause) })
			cmptest.Equal(t, "problem of the operation", op.Error.Type, api.DriverFailed)
			cmptest.Equal(t, "op.GPUs[1].State", op.GPUs[1].State, api.RolledBack)
			cmptest.Equal(t, "state of the engine", e.State(), idle)
		})
	}
}

// TestViewIsLost: an operation that a crash has left is finished only in the same boot, with the
// same driver, and soon.
func TestViewIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(w *world)
		options func(o *Options)
		says    string
	}{
		"boot":   {func(*world) {}, func(o *Options) { o.BootID = "boot-2" }, "rebooted"},
		"driver": {func(w *world) { w.snapshot.Driver = gpu.Some(gpu.Driver{Version: "590.1"}) }, nil, "driver"},
		"late":   {func(*world) { time.Sleep(11 * time.Minute) }, nil, "away for 11m"},
		"clock": {func(*world) {}, func(o *Options) { o.Now = func() time.Time { return time.Now().Add(-time.Hour) } },
			"clock was set back"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)

				e := w.engine(t, nil)
				if _, err := e.start(t, second(two3g)); err != nil {
					t.Fatal(err)
				}

				w.after = func(_ int, s mig.Step) error { w.dead = s.Op == mig.DestroyInstance; return nil }
				e.drive(t)
				w.revive()
				w.after = nil
				c.change(w)
				was := w.drawLayout()
				calls := w.calls
				next := w.engine(t, c.options)
				op := next.Operations().Operations[0]
				cmptest.Equal(t, "state of the operation", op.State, api.Interrupted)
				wantText(t, "op.Error.Detail", op.Error.Detail, c.says)
				cmptest.Equal(t, "type of the error", op.Error.Type, api.NotResumed)
				cmptest.Equal(t, "state of the next engine", next.State(), idle)
				cmptest.Equal(t, "cordoned by", w.cordonedBy, "")

				if w.drawLayout() != was || w.calls != calls {
					t.Errorf("something was changed:\n%s", w.drawLayout())
				}
			})
		})
	}
}

// TestForeignChangeWhileDegraded: another client has changed a GPU of an operation that could not
// be rolled back, whose instances are the same again. The operation ends when the GPU is asked for,
// and blocks it no longer.
func TestForeignChangeWhileDegraded(t *testing.T) {
	for name, degrade := range map[string]func(t *testing.T) (*world, *Engine){
		"of this process": func(t *testing.T) (*world, *Engine) {
			w := newWorld(t)
			e := w.engine(t, nil)
			w.before = always(mig.CreateCompute, gpu1, gpu.ErrDriver)
			e.applied(t, second(two3g))

			return w, e
		},
		"of the last process": func(t *testing.T) (*world, *Engine) {
			w := crashed(t, second(two3g), 4)
			w.before = always(mig.CreateCompute, gpu1, gpu.ErrDriver)

			return w, w.engine(t, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, e := degrade(t)
				cmptest.Equal(t, "state before", e.Operations().Operations[0].State, api.Degraded)

				time.Sleep(2 * ownEvents)
				w.report(gpu1)

				if p := e.free(t, gpu1); p != nil {
					t.Error(p)
				}

				cmptest.Equal(t, "state after", e.Operations().Operations[0].State, api.Interrupted)
			})
		})
	}
}
