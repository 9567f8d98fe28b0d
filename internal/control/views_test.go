package control

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// rebuild has another client destroy what a GPU has and build the very same again. Ids come back.
func (w *world) rebuild(id gpu.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.gpu(id)
	was := copyInstances(g.Instances)
	g.Instances = nil
	w.report(id)
	g.Instances = was
	w.report(id)
}

// settleOwn waits until what the driver reports counts no longer as an operation's own.
func settleOwn() { time.Sleep(ownEvents + time.Second) }

// wantInstead fails the test unless a rollback is refused with the layout of the second GPU to be
// planned instead.
func wantInstead(t *testing.T, err error, says string) {
	t.Helper()
	p := isProblem(t, err, api.StalePlan)
	wantText(t, "detail", p.Detail, says)

	if len(p.Instead) != 1 {
		t.Fatalf("instead: %+v, want the layout of one GPU", p.Instead)
	}

	cmptest.Equal(t, "instead", p.Instead[0],
		api.Spec{GPUs: []api.Selector{api.Selector(gpu1)}, Devices: map[string]api.DeviceRequest{"7g.40gb": {Count: 1}}})
}

// TestRollbackAfterRebuild: another client goes to a layout of its own and back, so that the tree
// is the one that the operation left. What stands is not the operation's.
func TestRollbackAfterRebuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		op := e.applied(t, second(two3g))
		settleOwn()
		w.rebuild(gpu1)
		calls := w.calls
		was := w.drawLayout()

		_, err := e.Rollback(t.Context(), everything, op.ID)
		wantInstead(t, err, "another client has changed the GPU since")
		_, err = w.engine(t, nil).Rollback(t.Context(), everything, op.ID)
		wantInstead(t, err, "mig-exporter was restarted since")

		if w.calls != calls || w.drawLayout() != was {
			t.Errorf("%d changes were made:\n%s", w.calls-calls, w.drawLayout())
		}
	})
}

// TestRollbackWithoutForeignHand: what the driver reports of an operation's own changes is not held
// against it, neither at once nor late, nor a poll that follows, nor what happens on another GPU.
func TestRollbackWithoutForeignHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		first := e.applied(t, second(two3g))
		between := e.applied(t, second(map[string]api.DeviceRequest{"7g.40gb": {Count: 1}}))
		time.Sleep(ownEvents - time.Millisecond)
		w.report(gpu1) // late
		settleOwn()
		w.rebuild(gpu0)
		w.look()
		e.views.observe(w.Current())
		w.look()
		e.views.observe(w.Current())

		back, err := e.Rollback(t.Context(), everything, between.ID)
		if err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		cmptest.Equal(t, "state of the rollback", e.now(t, back.ID).State, api.Succeeded)
		settleOwn()

		if _, err = e.Rollback(t.Context(), everything, first.ID); err == nil {
			t.Error("other instances than the operation's were accepted as its own")
		}
	})
}

// TestRollbackWithoutView: a rollback needs to know that nothing came in between.
func TestRollbackWithoutView(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(w *world, e *Engine)
		says string
	}{
		"lost reports": {func(w *world, _ *Engine) {
			w.watcher.Watching(gpu1, false)
			w.watcher.Watching(gpu1, true)
		}, "reports of the driver were lost"},
		"no reports": {func(w *world, _ *Engine) { w.watcher.Watching(gpu1, false) }, "does not report changes of the GPU now"},
		"report of no GPU": {func(w *world, _ *Engine) { w.watcher.LayoutChanged("") },
			"another client has changed the GPU since"},
		"only polls saw it": {func(w *world, e *Engine) {
			e.views.observe(w.Current())
			w.next++ // the generation of the layout
			w.look()
		}, "another client has changed the GPU since"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				e := w.engine(t, nil)
				op := e.applied(t, second(two3g))
				settleOwn()
				w.look()
				c.lose(w, e)
				_, err := e.Rollback(t.Context(), everything, op.ID)
				wantInstead(t, err, c.says)
			})
		})
	}
}

// TestUnwatchedGPU: where the driver reports no changes, GPUs can be planned and changed, and
// nothing is rolled back once it is over.
func TestUnwatchedGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.blind = true
		e := w.engine(t, nil)
		op := e.applied(t, second(two3g))
		cmptest.Equal(t, "state of the operation", op.State, api.Succeeded)
		_, err := e.Rollback(t.Context(), everything, op.ID)
		wantInstead(t, err, "the driver did not report changes of the GPU")
	})
}

// TestRebuildBetweenPlanAndOperation: the tree is as it was planned, and yet another one.
func TestRebuildBetweenPlanAndOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)

		plan, err := e.Plan(t.Context(), everything, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		w.rebuild(gpu1)
		_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
		p := isProblem(t, err, api.StalePlan)
		wantText(t, "detail", p.Detail, "changed by other clients 2 times")
		cmptest.Equal(t, "changes asked of the driver", w.calls, 0)
	})
}

// TestRebuildBeforeFirstStep: the same, after the operation was accepted and before its first step
// on that GPU.
func TestRebuildBeforeFirstStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)

		started, err := e.start(t, mixed())
		if err != nil {
			t.Fatal(err)
		}

		rebuilt := false
		w.before = func(_ int, s mig.Step) error {
			if s.GPU == gpu1 {
				t.Errorf("%s of what another client has built", s.Op)
			}

			if !rebuilt {
				rebuilt = true
				w.gpu(gpu1).Instances = copyInstances(w.gpu(gpu1).Instances)
				w.report(gpu1)
			}

			return nil
		}
		e.drive(t)
		op := e.now(t, started.ID)
		cmptest.Equal(t, "problem of the operation", op.Error.Type, api.LayoutChanged)
		cmptest.Equal(t, "state of GPU 0", op.GPUs[0].State, api.RolledBack)
		cmptest.Equal(t, "state of GPU 1", op.GPUs[1].State, api.Failed)
		cmptest.Equal(t, "layout", w.drawLayout(), mixedBefore)
	})
}

// TestRebuildWhileDegraded: the rollback is not tried again on what another client has built
// meanwhile.
func TestRebuildWhileDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		w.before = degrades(w, 3)
		op := e.applied(t, second(two3g))
		cmptest.Equal(t, "state of the operation", op.State, api.Degraded)
		w.before = nil
		settleOwn()
		w.rebuild(gpu1)
		calls := w.calls

		if _, err := e.Rollback(t.Context(), everything, op.ID); err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		cmptest.Equal(t, "state of the operation", e.now(t, op.ID).State, api.Interrupted)
		cmptest.Equal(t, "changes asked of the driver", w.calls, calls)
	})
}

// TestInterruptedOperationEndsEarlierViews: while an operation is at work, another client's changes
// count as its own. That it was interrupted says otherwise, for the operations before it too.
func TestInterruptedOperationEndsEarlierViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		first := e.applied(t, second(two3g))
		left := copyInstances(w.gpu(gpu1).Instances)
		w.after = func(_ int, s mig.Step) error {
			if s.Op == mig.DestroyInstance {
				w.takeOver()
			}

			return nil
		}
		next := e.applied(t, second(map[string]api.DeviceRequest{"7g.40gb": {Count: 1}}))
		cmptest.Equal(t, "state of the operation", next.State, api.Interrupted)
		w.gpu(gpu1).Instances = left // still within the time of the operation's own reports
		w.report(gpu1)
		_, err := e.Rollback(t.Context(), everything, first.ID)
		wantInstead(t, err, "another client has changed the GPU since")
	})
}

// TestInsteadOfARollback: the layout to plan says how instances were split.
func TestInsteadOfARollback(t *testing.T) {
	w := newWorld(t)
	g := *w.gpu(gpu0)
	split := copyInstances(g.Instances)
	split[1].ComputeInstances = []mig.ComputeInstance{{Slices: 1}, {Slices: 2}}
	empty := copyInstances(split[:1])
	empty[0].ComputeInstances = nil

	for _, c := range []struct {
		instances []mig.Instance
		want      string
	}{
		{nil, "map[]"},
		{g.Instances, "map[3g.20gb:{Count:2 Compute:[] Each:[]}]"},
		{split, "map[3g.20gb:{Count:0 Compute:[] Each:[{Count:1 Compute:[] Each:[]} {Count:1 Compute:[1c 2c] Each:[]}]}]"},
	} {
		cmptest.Equal(t, "spec", formatDevices(specOf(g, c.instances)), c.want)
	}

	one := specOf(g, empty).Devices["3g.20gb"]
	if len(one.Each) != 1 || one.Each[0].Compute == nil || len(one.Each[0].Compute) != 0 {
		t.Errorf("an instance without compute instances: %+v", one)
	}
}

func formatDevices(s api.Spec) string {
	if !slices.Equal(s.GPUs, []api.Selector{api.Selector(gpu0)}) {
		return "of other GPUs"
	}

	return fmt.Sprintf("%+v", s.Devices)
}
