package control

import (
	"context"
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

// rebooted is a world that had mixedAfter and was rebooted: its GPUs are empty.
func rebooted(t *testing.T) *world {
	t.Helper()

	w := newWorld(t)
	w.engine(t, nil).applied(t, mixed())
	w.gpu(gpu0).Instances = nil
	w.gpu(gpu1).Instances = nil
	w.processes = map[gpu.UUID][]gpu.Process{}
	w.look()

	return w
}

func restoreBoot2(o *Options) { o.Restore, o.BootID = true, "boot-2" }

// runFor runs an engine for a time.
func (e *Engine) runFor(t *testing.T, d time.Duration) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()

	if err := e.Run(ctx); err != nil {
		t.Error(err)
	}
}

// reasons are the GPUs that are not restored, with the reasons.
func (e *Engine) reasons() map[gpu.UUID]api.RestoreReason {
	found := map[gpu.UUID]api.RestoreReason{}
	for _, u := range e.Operations().Unrestored {
		found[u.GPU] = u.Reason
	}

	return found
}

// TestOneGPUIsNotRestored: what keeps the first GPU from being restored does not concern the
// second. It is shown, and the GPU is restored once it is gone, unless another client has been at
// work there.
func TestOneGPUIsNotRestored(t *testing.T) {
	for name, c := range obstacles() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := rebooted(t)
				c.obstruct(w)

				first, _, _ := strings.Cut(w.drawLayout(), "\n")
				want := first + "\n" + strings.SplitAfter(mixedAfter, "\n")[1]

				e := w.engine(t, restoreBoot2)
				cmptest.Equal(t, "layout", w.drawLayout(), want)
				cmptest.Equal(t, "not restored", e.reasons(), map[gpu.UUID]api.RestoreReason{gpu0: c.reason})
				cmptest.Equal(t, "reported", w.unrestored, []gpu.UUID{gpu0})
				cmptest.Equal(t, "state of the engine", e.State(), idle)

				// A restart knows it, and as long as the cause lasts nothing changes.
				e = w.engine(t, restoreBoot2)
				e.runFor(t, time.Hour)
				cmptest.Equal(t, "layout after an hour", w.drawLayout(), want)
				cmptest.Equal(t, "not restored after an hour", e.reasons(), map[gpu.UUID]api.RestoreReason{gpu0: c.reason})

				if n := len(e.Operations().Operations); n > 3 {
					t.Errorf("%d operations, want the two that succeeded and the last attempt", n)
				}

				c.clear(w)
				e.runFor(t, time.Hour)

				if c.left {
					cmptest.Equal(t, "not restored by itself", e.reasons(), map[gpu.UUID]api.RestoreReason{gpu0: c.reason})

					if _, err := e.Restore(t.Context(), everything, gpu0, api.RestoreRequest{}); err != nil {
						t.Fatal(err)
					}

					e.drive(t)
				}

				cmptest.Equal(t, "layout in the end", w.drawLayout(), mixedAfter)
				cmptest.Equal(t, "not restored in the end", len(e.reasons())+len(w.unrestored), 0)

				// Once restored, it is not restored again in this boot.
				w.gpu(gpu0).Instances = nil
				w.engine(t, restoreBoot2).runFor(t, time.Hour)
				cmptest.Equal(t, "instances of the GPU", len(w.gpu(gpu0).Instances), 0)
			})
		})
	}
}

// obstacle keeps the first GPU from being restored, until it is cleared; left says that an operator
// has to ask then.
type obstacle struct {
	obstruct, clear func(w *world)
	reason          api.RestoreReason
	left            bool
}

func obstacles() map[string]obstacle {
	return map[string]obstacle{
		"driver refuses": {
			func(w *world) { w.before = always(mig.CreateCompute, gpu0, gpu.ErrDriver) },
			func(w *world) { w.before = nil }, api.RestoreFailed, false,
		},
		"GPU is lost": {
			func(w *world) { w.unreadable = map[gpu.UUID]error{gpu0: gpu.ErrLost} },
			func(w *world) { w.unreadable = nil }, api.NotReadable, false,
		},
		"GPU hangs": {
			func(w *world) { w.unreadable = map[gpu.UUID]error{gpu0: gpu.ErrTimeout} },
			func(w *world) { w.unreadable = nil }, api.NotReadable, false,
		},
		"an old call hangs": {
			func(w *world) { w.hung = gpu0 }, func(w *world) { w.hung = "" }, api.NotReadable, false,
		},
		"MIG mode is off": {
			func(w *world) { w.gpu(gpu0).MIG = gpu.Some(false) },
			func(w *world) { w.gpu(gpu0).MIG = gpu.Some(true) }, api.NotInMode, false,
		},
		"another controller manages it": {
			func(w *world) { w.owners = map[gpu.UUID][]string{gpu0: {"slurm"}} },
			func(w *world) { w.owners = nil }, api.NotOwner, false,
		},
		"foreign instance": {
			func(w *world) { w.create(gpu0, "1g.5gb", 0) },
			func(w *world) { w.gpu(gpu0).Instances = nil }, api.NotEmpty, true,
		},
		"an instance of the layout, from another client": {
			func(w *world) { w.create(gpu0, "3g.20gb", 0) },
			func(w *world) { w.gpu(gpu0).Instances = nil }, api.NotEmpty, true,
		},
	}
}

// TestRestoreMeetsAnotherClient: one that creates an instance in the middle of the restore keeps
// what it has made, and the GPU.
func TestRestoreMeetsAnotherClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := rebooted(t)
		w.after = func(_ int, s mig.Step) error {
			if s.GPU == gpu0 {
				w.after = nil
				w.create(gpu0, "1g.5gb", 6)
			}

			return nil
		}

		e := w.engine(t, restoreBoot2)
		e.runFor(t, time.Hour)
		cmptest.Equal(t, "not restored", e.reasons(), map[gpu.UUID]api.RestoreReason{gpu0: api.NotEmpty})

		if !slices.ContainsFunc(w.gpu(gpu0).Instances, func(i mig.Instance) bool { return i.Placement.Start == 6 }) ||
			len(w.gpu(gpu1).Instances) != 2 {
			t.Errorf("layout\n%s", w.drawLayout())
		}
	})
}

// TestRestoreBesideAHungAPIServer: it is asked once for all GPUs, and requests have their turn
// meanwhile.
func TestRestoreBesideAHungAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := rebooted(t)
		w.mute = true
		begun := time.Now()

		e := w.engine(t, func(o *Options) { restoreBoot2(o); o.CallTimeout = 30 * time.Second })
		cmptest.Equal(t, "time taken by the start", time.Since(begun), 30*time.Second)

		want := map[gpu.UUID]api.RestoreReason{gpu0: api.NotOwner, gpu1: api.NotOwner}
		cmptest.Equal(t, "not restored", e.reasons(), want)

		e.run(t)

		for range 600 {
			pause(time.Second)

			if p := e.claimReservation(nil); p != nil {
				t.Fatalf("a request is refused: %v", p)
			}

			e.releaseReservation()
		}

		cmptest.Equal(t, "not restored at last", e.reasons(), want)
	})
}

// TestRestoreAfterDamage: what kept the engine from beginning the restore is over later.
func TestRestoreAfterDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := rebooted(t)
		w.documents.OperationDamaged = true
		e := w.engine(t, restoreBoot2)
		cmptest.Equal(t, "state of the engine", e.State(), readOnly)

		w.documents.OperationDamaged = false

		if _, err := e.Accept(t.Context(), everything, e.Operations().Operations[0].ID); err != nil {
			t.Fatal(err)
		}

		e.runFor(t, time.Minute)
		cmptest.Equal(t, "layout", w.drawLayout(), mixedAfter)
	})
}

// TestRestoreOnRequest: a restore is asked for by an operator, with and without --control.restore.
func TestRestoreOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := rebooted(t)
		e := w.engine(t, func(o *Options) { o.BootID = "boot-2" })
		cmptest.Equal(t, "restored without being asked", w.drawLayout(), "0:\n1:\n")

		_, err := e.Restore(t.Context(), Actor{Name: "uid:7"}, gpu0, api.RestoreRequest{})
		isProblem(t, err, api.Forbidden)

		_, err = e.Restore(t.Context(), everything, "GPU-of-another-node", api.RestoreRequest{})
		isProblem(t, err, api.NotFound)

		op, err := e.Restore(t.Context(), everything, gpu0, api.RestoreRequest{})
		if err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		cmptest.Equal(t, "restored", w.drawLayout(), strings.SplitAfter(mixedAfter, "\n")[0]+"1:\n")
		cmptest.Equal(t, "by", e.now(t, op.ID).By, everything.Name)

		// It has the layout now: nothing is left to do.
		again, err := e.Restore(t.Context(), everything, gpu0, api.RestoreRequest{})
		if err != nil || again.State != api.Succeeded || len(again.Steps) > 0 {
			t.Errorf("a second time: %+v, %v", again, err)
		}

		// A part of the layout is completed, and nothing else is destroyed for it.
		w.create(gpu1, "3g.20gb", 4)

		if _, err := e.Restore(t.Context(), everything, gpu1, api.RestoreRequest{}); err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		cmptest.Equal(t, "completed", w.drawLayout(), mixedAfter)

		w.gpu(gpu1).Instances = nil
		w.create(gpu1, "7g.40gb", 0)
		_, err = e.Restore(t.Context(), everything, gpu1, api.RestoreRequest{})
		p := isProblem(t, err, api.LayoutChanged)
		wantText(t, "p.Detail", p.Detail, "7g.40gb@0:8")
	})
}

// TestForgetLayout: a GPU that was taken out of the node, or whose layout is not wanted any more,
// is not missed.
func TestForgetLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := rebooted(t)
		w.unreadable = map[gpu.UUID]error{gpu1: gpu.ErrLost}
		e := w.engine(t, restoreBoot2)
		cmptest.Equal(t, "not restored", e.reasons(), map[gpu.UUID]api.RestoreReason{gpu1: api.NotReadable})

		_, err := e.ForgetLayout(t.Context(), Actor{Name: "uid:7"}, gpu1)
		isProblem(t, err, api.Forbidden)

		got, err := e.ForgetLayout(t.Context(), everything, gpu1)
		if err != nil || len(got.Forgotten) != 2 {
			t.Errorf("forgotten: %+v, %v", got, err)
		}

		_, err = e.ForgetLayout(t.Context(), everything, gpu1)
		isProblem(t, err, api.NotFound)

		w.unreadable = nil
		for _, boot := range []string{"boot-2", "boot-3"} {
			w.gpu(gpu0).Instances = nil
			next := w.engine(t, func(o *Options) { o.Restore, o.BootID = true, boot })
			cmptest.Equal(t, "not restored in "+boot, len(next.reasons()), 0)
			cmptest.Equal(t, "instances of the GPU in "+boot, len(w.gpu(gpu1).Instances), 0)
		}
	})
}

// TestRestoreEndsWithAnotherLayout: a GPU that an operation gives a layout is not to be restored
// any more.
func TestRestoreEndsWithAnotherLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := rebooted(t)
		w.create(gpu1, "1g.5gb", 0)
		e := w.engine(t, restoreBoot2)
		cmptest.Equal(t, "not restored", e.reasons(), map[gpu.UUID]api.RestoreReason{gpu1: api.NotEmpty})
		e.applied(t, second(two3g))
		cmptest.Equal(t, "not restored after an operation", len(e.reasons()), 0)
	})
}

// TestBootIsNotKnown: a boot without a name is not another boot.
func TestBootIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := rebooted(t)
		w.engine(t, func(o *Options) { o.Restore, o.BootID = true, "" }).runFor(t, time.Minute)
		w.engine(t, func(o *Options) { o.Restore = true }).runFor(t, time.Minute) // the boot in which it was applied
		cmptest.Equal(t, "layout", w.drawLayout(), "0:\n1:\n")
	})
}
