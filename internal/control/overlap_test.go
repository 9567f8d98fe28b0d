package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

func oneG0() api.PlanRequest {
	return api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"0"},
		Devices: map[string]api.DeviceRequest{"3g.20gb": {Count: 1}, "1g.5gb": {Count: 2}}}}
}

// degradedThenCrash: A is degraded on gpu1 (in the history), X is running on gpu0 at a crash (in
// the slots alone).
func degradedThenCrash(t *testing.T, w *world) (a, x string) {
	t.Helper()
	e := w.engine(t, nil)
	w.before = func(n int, s mig.Step) error {
		if n >= 2 {
			return gpu.ErrDriver
		}

		return nil
	}

	opA := e.applied(t, second(two3g))
	if opA.State != api.Degraded {
		t.Fatalf("A is %s", opA.State)
	}

	w.before = nil
	w.after = func(_ int, s mig.Step) error { w.dead = s.Op == mig.DestroyInstance; return nil }

	opX, err := e.start(t, oneG0())
	if err != nil {
		t.Fatal(err)
	}

	e.drive(t)
	w.revive()
	w.after = nil

	return opA.ID, opX.ID
}

// TestRecoveryKeepsRunningOperation: an operation that a crash has left in the slots alone is not
// overwritten by the recovery of a degraded one.
func TestRecoveryKeepsRunningOperation(t *testing.T) {
	for n := range 60 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			before := w.drawLayout()
			_, x := degradedThenCrash(t, w)
			w.dieAt = n
			w.engine(t, nil)
			died := w.dead
			w.revive()

			next := w.engine(t, nil)
			if _, err := next.Operation(x); err != nil {
				t.Errorf("die at %d (died %t): X is forgotten: %v; state %s\n%s", n, died, err, next.State(), w.drawLayout())
			} else if w.drawLayout() != before {
				t.Errorf("die at %d (died %t): state %s\n%s", n, died, next.State(), w.drawLayout())
			}
		})
	}
}

// TestHistoryKeepsRetriedOperation: the history that the end of another operation writes has a
// retried operation that the slots do not have yet.
func TestHistoryKeepsRetriedOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, func(o *Options) { o.SettleTimeout = time.Hour })
		w.before = func(n int, s mig.Step) error {
			if n >= 2 {
				return gpu.ErrDriver
			}

			return nil
		}

		a := e.applied(t, second(two3g))
		if a.State != api.Degraded {
			t.Fatal(a.State)
		}

		w.before = nil
		w.kubeletLags = true

		b, err := e.start(t, oneG0())
		if err != nil {
			t.Fatal(err)
		}

		op := <-e.queue
		e.executeOperation(t.Context(), op)
		time.Sleep(5 * time.Second)

		if s := e.now(t, b.ID).State; s != api.Settling {
			t.Fatal(s)
		}

		if _, err := e.Rollback(t.Context(), everything, a.ID); err != nil {
			t.Fatal(err)
		} // accepted, not executed yet

		if _, err := e.EndSettling(t.Context(), everything, b.ID); err != nil {
			t.Fatal(err)
		}

		e.await()
		// kill -9 here
		next := w.engine(t, nil)
		if _, err := next.Operation(a.ID); err != nil {
			t.Errorf("A is forgotten: %v; state %s\n%s", err, next.State(), w.drawLayout())
		}
	})
}

// TestRestoreBesideRequest: a restore that was put off and a request are never both under way.
func TestRestoreBesideRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.engine(t, nil).applied(t, second(two3g))
		w.gpu(gpu1).Instances = nil // reboot
		w.look()
		fails := true
		w.reading = func() error {
			if fails {
				return gpu.ErrUnavailable
			}

			return nil
		}
		e := w.engine(t, func(o *Options) { o.Restore, o.BootID = true, "boot-2" })
		fails = false
		var started *api.Operation
		w.reading = func() error { // the first reading is restoreOnce's
			w.reading = nil
			w.mu.Unlock()
			defer w.mu.Lock()
			started, _ = e.start(t, oneG0()) // refused, or accepted before the restore has claimed the place

			return nil
		}
		e.restoreLater(t.Context())

		if started == nil {
			return
		}

		if read(e.state, func(b *book) bool { return b.current == nil }) && len(e.queue) == 1 {
			t.Errorf("operation %s is queued and not current; state %s, a further request: %v", started.ID, e.State(),
				e.free(t, gpu0))
		}
	})
}

// TestHungOperationDelaysNoOther: an operation that hangs for ever does not keep another one from
// being retried.
func TestHungOperationDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		w.before = func(_ int, s mig.Step) error { w.before, w.hung = nil, s.GPU; return gpu.ErrTimeout }

		a := e.applied(t, second(two3g))
		if a.State != api.Stuck {
			t.Fatal(a.State)
		}

		full := false
		w.before = func(n int, s mig.Step) error { full = true; return nil }
		w.saving = func(int, []byte) error {
			if full {
				return errors.New("no space left")
			}

			return nil
		}

		b := e.applied(t, oneG0())
		if b.State != api.Degraded {
			t.Fatal(b.State)
		}

		full = false
		w.before = nil
		w.saving = nil
		e.repairStore()

		for range 100 {
			e.retryDegraded(t.Context())
			e.drive(t)
			time.Sleep(time.Minute)
		}

		if got := e.now(t, b.ID); got.State != api.RolledBack {
			t.Errorf("B is %s although there is room again", got.State)
		}
	})
}

// TestAcceptedDamageIsAnnounced: after damage was accepted the observer knows the state.
func TestAcceptedDamageIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := survives(t, api.Succeeded, func(*world) {})
		w.documents.OperationDamaged = true
		w.documents.Operation = nil
		e := w.engine(t, nil)

		op := e.Operations().Operations[0]
		if _, err := e.Accept(t.Context(), everything, op.ID); err != nil {
			t.Fatal(err)
		}

		e.report()

		if last := w.states[len(w.states)-1]; last != e.State() {
			t.Errorf("state %s, the metric says %s", e.State(), last)
		}
	})
}

// TestUnreadableBeforeFirstStep: if the GPU cannot be read before the first step, nothing was
// changed, and the operation says so.
func TestUnreadableBeforeFirstStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)

		op, err := e.start(t, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		w.reading = func() error {
			return gpu.ErrNoPermission
		}
		e.drive(t)
		got := e.now(t, op.ID)
		cmptest.Equal(t, "changes asked of the driver", w.calls, 0)
		cmptest.Equal(t, "state of the operation", got.State, api.Failed)

		if len(w.hooks) > 0 {
			t.Errorf("hooks run: %v, want none", w.hooks)
		}
	})
}

// TestRestoreOfSettling: an operation that was committed, and settled when the node was rebooted,
// is restored.
func TestRestoreOfSettling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kubeletLags = true

		e := w.engine(t, func(o *Options) { o.SettleTimeout = time.Hour })
		if _, err := e.start(t, second(two3g)); err != nil {
			t.Fatal(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		op := <-e.queue
		e.executeOperation(ctx, op)
		time.Sleep(time.Second)
		w.mu.Lock()
		w.dead = true
		w.mu.Unlock()
		cancel()
		e.await()
		w.revive()
		w.gpu(gpu1).Instances = nil
		w.kubeletLags = false
		w.look()

		next := w.engine(t, func(o *Options) { o.Restore, o.BootID, o.SettleTimeout = true, "boot-2", time.Minute })
		for range 30 {
			next.restoreLater(t.Context())
			time.Sleep(time.Minute)
		}

		next.await()

		if len(w.gpu(gpu1).Instances) != 2 {
			for _, o := range next.Operations().Operations {
				t.Logf("%s %s %v", o.Verb, o.State, o.Warnings)
			}

			t.Errorf("not restored:\n%s", w.drawLayout())
		}
	})
}

// TestAcceptIsDurable: an acceptance that could not be saved is no success.
func TestAcceptIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, op := survives(t, api.Degraded, func(w *world) {
			w.before = func(n int, _ mig.Step) error {
				if n >= 4 {
					return gpu.ErrDriver
				}

				return nil
			}
		})
		w.before = nil
		was := w.drawLayout()
		w.saving = func(int, []byte) error { return errors.New("no space left") }
		_, err := e.Accept(t.Context(), everything, op.ID)
		w.saving = nil
		w.engine(t, nil)

		if err == nil && w.drawLayout() != was {
			t.Errorf("accepted with success, and the next start has changed it:\n%s\nwas\n%s", w.drawLayout(), was)
		}
	})
}

// TestModeFailsAfterChange: a mode that was set is not reported as failed because reading it back
// failed.
func TestModeFailsAfterChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := bare(t)
		e := w.engine(t, nil)
		w.mode = func(on bool) (mig.ModeChange, error) {
			g := w.gpu(gpu1)
			g.MIG, g.Pending = gpu.Some(on), gpu.Some(on)

			return mig.ModeChange{}, gpu.ErrLost
		}

		op := e.switched(t)
		if op.State == api.Failed {
			t.Errorf("operation is %s (%v), current %t; the GPU has MIG %v", op.State, op.Error, op.Mode.Current,
				w.gpu(gpu1).MIG)
		}
	})
}

// TestUnusableFolderIsNeverIdle: a start with an unusable folder does not report idle first.
func TestUnusableFolderIsNeverIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.opening = errors.New("no")
		w.engine(t, nil)

		if strings.Contains(strings.Join(w.states, " "), "idle") {
			t.Errorf("states %v", w.states)
		}
	})
}

// TestActivityOnRetry: what was seen active is not destroyed by a rollback that is retried hours
// later.
func TestActivityOnRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		n3 := 0
		w.before = func(n int, s mig.Step) error {
			if s.Op == mig.CreateCompute {
				n3++
			}

			if n3 >= 2 {
				return gpu.ErrDriver
			}

			return nil
		}

		a := e.applied(t, second(two3g))
		if a.State != api.Degraded {
			t.Fatal(a.State)
		}

		w.before = nil
		time.Sleep(2 * time.Hour)
		w.look()
		busy := 0

		for n := range w.snapshot.GPUs[1].Instances {
			w.snapshot.GPUs[1].Instances[n].Processes = gpu.Some(1)
			busy++
		}

		e.active.observe(w.snapshot)
		was := w.drawLayout()

		if _, err := e.Rollback(t.Context(), everything, a.ID); err != nil {
			t.Log(err)
		}

		e.drive(t)

		if w.drawLayout() != was {
			t.Errorf("%d instances active in the last poll:\n%s\n%s", busy, was, w.drawLayout())
		}
	})
}

type oldKubelet struct {
	kubelet
	old gpu.MIGUUID
}

func (k oldKubelet) Allocatable(ctx context.Context) ([]gpu.Offer, error) {
	list, err := k.kubelet.Allocatable(ctx)
	return append(list, gpu.Offer{Device: gpu.DeviceRef{MIG: k.old}}), err
}

// TestKubeletStillOffersDestroyed: an operation settles until the kubelet does not offer what was
// destroyed.
func TestKubeletStillOffersDestroyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, func(o *Options) {
			o.Assignments = oldKubelet{kubelet{w}, w.gpu(gpu1).Instances[0].ComputeInstances[0].UUID}
			o.SettleTimeout = time.Hour
		})

		a, err := e.start(t, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		e.executeOperation(t.Context(), <-e.queue)
		time.Sleep(10 * time.Second)

		if got := e.now(t, a.ID); got.State != api.Settling || w.cordonedBy != "me" {
			t.Errorf("operation is %s, cordoned by %q, warnings %v", got.State, w.cordonedBy, got.Warnings)
		}

		_, _ = e.EndSettling(t.Context(), everything, a.ID)
		e.await()
	})
}
