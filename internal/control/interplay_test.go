package control

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// What happens at the same time, or again and again.

// TestUseThatBeginsBetweenCheckAndDestroy has every kind of use begin after an operation was
// accepted: nothing is destroyed.
func TestUseThatBeginsBetweenCheckAndDestroy(t *testing.T) {
	for name, c := range uses() {
		if name == "not polled yet" { // then it is polled
			continue
		}

		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				e := w.engine(t, nil)

				op, err := e.start(t, second(two3g))
				if err != nil {
					t.Fatal(err)
				}

				c.make(w)

				if w.snapshot != nil {
					seen := *w.snapshot
					seen.Generation++
					w.snapshot = &seen
				}

				e.drive(t)
				got := e.now(t, op.ID)
				cmptest.Equal(t, "state of the operation", got.State, api.Failed)

				if got.Error == nil {
					t.Fatal("the operation has no error")
				}

				cmptest.Equal(t, "problem of the operation", got.Error.Type, api.Busy)
				cmptest.Equal(t, "changes asked of the driver", w.calls, 0)

				if len(got.Error.Blocking) != 1 ||
					!slices.ContainsFunc(got.Error.Blocking[0].Holders, func(h api.Hold) bool { return h.Kind == c.kind }) {
					t.Errorf("blocking %+v, want %s", got.Error.Blocking, c.kind)
				}
			})
		})
	}
}

// TestRollBackBeforeTheFirstPoll: right after a start no poll has been yet. The rollback starts
// one.
func TestRollBackBeforeTheFirstPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		w.after = func(_ int, s mig.Step) error {
			w.dead = s.Op == mig.CreateCompute
			return nil
		}

		if _, err := e.start(t, second(two3g)); err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		w.revive()
		w.after = nil
		w.snapshot = nil
		w.sound(t, w.engine(t, nil), mixedBefore, mixedBefore)
	})
}

// TestEverythingAtOnce has many ask for everything while operations run, the disk is full now and
// then, and the driver refuses. Afterwards the journal must make sense to the next start.
func TestEverythingAtOnce(t *testing.T) {
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.before = func(int, mig.Step) error {
				if rand.IntN(40) == 0 {
					return []error{gpu.ErrInUse, gpu.ErrNoPermission, gpu.ErrTimeout, gpu.ErrInsufficientResources}[rand.IntN(4)]
				}

				return nil
			}
			w.saving = func(int, []byte) error {
				if rand.IntN(60) == 0 {
					return errors.New("no space left on device")
				}

				return nil
			}
			e := w.engine(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() { _ = e.Run(ctx) })

			for n := range 12 {
				all.Go(func() { e.bother(ctx, n) })
			}

			time.Sleep(time.Minute)
			cancel()
			all.Wait()
			w.before = nil
			w.saving = nil
			e.repairStore()
			e.report()

			if state := e.State(); w.states[len(w.states)-1] != state {
				t.Errorf("state %s, and the observer knows %s", state, w.states[len(w.states)-1])
			}

			if i := w.gpu(gpu0).Instances[0]; i.ID != 1 {
				t.Errorf("the busy instance was touched: %+v", i)
			}

			next := w.engine(t, nil)
			if state := next.State(); state != idle || w.cordonedBy != "" {
				t.Errorf("the next start: state %s, cordoned by %q; %s", state, w.cordonedBy, next.Reason())
			}

			if n := w.calls; n < 500 {
				t.Errorf("%d changes are no stress", n)
			}
		})
	}
}

// bother asks an engine for this and that until ctx ends.
func (e *Engine) bother(ctx context.Context, n int) {
	id := func() string {
		if list := e.Operations().Operations; len(list) > 0 {
			return list[rand.IntN(min(len(list), 3))].ID
		}

		return ""
	}
	wanted := []api.PlanRequest{mixed(), second(two3g), parts(),
		second(map[string]api.DeviceRequest{"7g.40gb": {Count: 1}})}

	for ctx.Err() == nil {
		switch n % 6 {
		case 0, 1, 2:
			if plan, err := e.Plan(ctx, everything, wanted[rand.IntN(len(wanted))]); err == nil {
				_, _ = e.Start(ctx, everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
			}
		case 3:
			_, _ = e.Rollback(ctx, everything, id())
			if rand.IntN(20) == 0 {
				_, _ = e.Accept(ctx, everything, id())
			}
		case 4:
			_ = e.saveHistory()
			_, _ = e.SetMode(ctx, everything, gpu1, api.ModeRequest{Enabled: true})
		default:
			follow, cancel := context.WithTimeout(ctx, time.Minute)
			if events, err := e.Events(follow, id(), rand.IntN(5)); err == nil {
				for range events {
				}
			}

			cancel()
			_ = e.State()
		}

		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rand.IntN(3000)) * time.Millisecond):
		}
	}
}

// hangingActuator never answers a change.
type hangingActuator struct{ *world }

func (hangingActuator) PerformStep(ctx context.Context, _ mig.Step, _ []mig.Instance) (mig.Outcome, error) {
	<-ctx.Done()
	return mig.Outcome{}, gpu.ErrTimeout
}

func (hangingActuator) SetMIGMode(ctx context.Context, _ gpu.UUID, _ bool) (mig.ModeChange, error) {
	<-ctx.Done()
	return mig.ModeChange{}, gpu.ErrTimeout
}

// TestStopWhileACallHangs: whatever time a call has, the program ends soon, and the next start goes
// on.
func TestStopWhileACallHangs(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T, e *Engine) error{
		"apply": func(t *testing.T, e *Engine) error { _, err := e.start(t, mixed()); return err },
		"mode": func(t *testing.T, e *Engine) error {
			_, err := e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if name == "mode" {
					w = bare(t)
				}

				before := w.drawLayout()
				e := w.engine(t, func(o *Options) { o.Actuator, o.CallTimeout = hangingActuator{w}, 10*time.Minute })

				ctx, cancel := context.WithCancel(t.Context())
				if err := begin(t, e); err != nil {
					t.Fatal(err)
				}

				ended := make(chan error)
				go func() { ended <- e.Run(ctx) }()
				time.Sleep(time.Minute)
				stopped := time.Now()
				cancel()

				if err := <-ended; err != nil || time.Since(stopped) > grace+time.Second {
					t.Errorf("Run has ended %s after it was asked to: %v", time.Since(stopped), err)
				}

				w.sound(t, w.engine(t, nil), before, before)
			})
		})
	}
}

// TestStopWhileAHookRuns: the next start runs it again.
func TestStopWhileAHookRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())

		e := w.engine(t, func(o *Options) {
			o.RunHook = func(ctx context.Context, h Hook, _ []string) api.HookResult {
				cancel()
				<-ctx.Done()

				return api.HookResult{Argv: h.Argv}
			}
		})
		if _, err := e.start(t, mixed()); err != nil {
			t.Fatal(err)
		}

		stopped := time.Now()
		if err := e.Run(ctx); err != nil || time.Since(stopped) > grace+time.Second {
			t.Errorf("Run has ended after %s: %v", time.Since(stopped), err)
		}

		next := w.engine(t, nil)
		w.sound(t, next, mixedAfter, mixedAfter)

		if op := next.Operations().Operations[0]; op.State != api.Succeeded || len(w.hooks) != 1 {
			t.Errorf("operation is %s, %d hooks", op.State, len(w.hooks))
		}
	})
}

// TestStuckForADay: a driver that answers each time that it has timed out does not fill the disk,
// nor the memory.
func TestStuckForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.before = func(_ int, s mig.Step) error {
			if s.GPU == gpu1 && !s.Destroys() {
				return gpu.ErrTimeout
			}

			return nil
		}
		e := w.engine(t, nil)

		op, err := e.start(t, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()

		if err := e.Run(ctx); err != nil {
			t.Fatal(err)
		}

		size := len(w.documents.History)
		events := read(e.state, func(b *book) int { return len(b.operations[0].in(b).events) })
		state := e.now(t, op.ID).State
		cmptest.Equal(t, "state", state, api.Stuck)

		if w.calls < 100 || w.calls > 400 {
			t.Errorf("%d driver calls, want 100 to 400", w.calls)
		}

		if size > reserveBase {
			t.Errorf("size is %v, want at most reserveBase", size)
		}

		if events > maxEvents {
			t.Errorf("events is %v, want at most maxEvents", events)
		}

		w.before = nil
		w.sound(t, w.engine(t, nil), mixedBefore, mixedBefore)
	})
}

// TestEventsOfAnotherProcess: a client that has followed an operation before a restart gets what
// comes after it.
func TestEventsOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		op := w.engine(t, nil).applied(t, mixed())

		events, err := w.engine(t, nil).Events(t.Context(), op.ID, 57)
		if err != nil {
			t.Fatal(err)
		}

		var last api.Event
		for last = range events {
		}

		if last.State != api.Succeeded {
			t.Errorf("last event %+v", last)
		}
	})
}

// TestEventsAreBounded: a reader goes on with those that are left.
func TestEventsAreBounded(t *testing.T) {
	e := newWorld(t).engine(t, nil)

	noted := e.newOperation(record{})
	for range 3*maxEvents + 5 {
		noted.addNote("")
	}

	op := &noted.entry
	for after, want := range map[int]int{0: op.seq - len(op.events) + 1, op.seq - 1: op.seq, op.seq - 100: op.seq - 99} {
		list := op.eventsAfter(after)
		cmptest.Equal(t, "list[0].Seq", list[0].Seq, want)
		cmptest.Equal(t, "list[len(list)-1].Seq", list[len(list)-1].Seq, op.seq)

		if len(list) > maxEvents {
			t.Errorf("len(list) is %v, want at most maxEvents", len(list))
		}
	}

	if list := op.eventsAfter(op.seq); len(list) != 0 {
		t.Errorf("%d events after the last", len(list))
	}
}

// noKubelet is what the program has on a node without one.
type noKubelet struct{ kubelet }

func (noKubelet) Allocatable(context.Context) ([]gpu.Offer, error) {
	return nil, gpu.ErrNoKubelet
}

// TestNoKubelet: without one an operation is complete at once.
func TestNoKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, func(o *Options) { o.Assignments = noKubelet{kubelet{w}} })
		begun := time.Now()
		op := e.applied(t, mixed())
		cmptest.Equal(t, "state of the operation", op.State, api.Succeeded)

		if len(op.Warnings) > 0 {
			t.Errorf("warnings: %v, want none", op.Warnings)
		}

		cmptest.Equal(t, "time taken", time.Since(begun), 0)
	})
}

// silentCluster does not answer when a cordon is to be undone.
type silentCluster struct {
	cluster
	silent atomic.Bool
}

func (c *silentCluster) Uncordon(ctx context.Context) error {
	if c.silent.Load() {
		return gpu.ErrUnavailable
	}

	return c.cluster.Uncordon(ctx)
}

// TestCordonIsUndoneLater: a node is not out of service until the next restart because the API
// server was away.
func TestCordonIsUndoneLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := &silentCluster{cluster: cluster{w}}
		c.silent.Store(true)

		e := w.engine(t, func(o *Options) { o.Cluster = c })
		if op := e.applied(t, mixed()); op.State != api.Succeeded || w.cordonedBy != "me" {
			t.Fatalf("operation is %s, cordoned by %q", op.State, w.cordonedBy)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		go func() { time.Sleep(time.Minute); c.silent.Store(false) }()

		if err := e.Run(ctx); err != nil {
			t.Fatal(err)
		}

		if w.cordonedBy != "" || e.Operations().Operations[0].Cordoned {
			t.Errorf("still cordoned by %q", w.cordonedBy)
		}
	})
}

// TestPlanOnlyFinishesNothing: with --control.mode=plan nothing is changed, not even for an
// operation that a crash has left.
func TestPlanOnlyFinishesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, before, after := prepared(t, "apply to two GPUs")
		w.points = 0
		w.dieAt = 20

		if _, err := e.start(t, mixed()); err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		half := w.drawLayout()
		calls := w.calls
		w.revive()

		for range 2 {
			planning := w.engine(t, func(o *Options) { o.Apply = false })

			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			if err := planning.Run(ctx); err != nil {
				t.Fatal(err)
			}

			cancel()
			op := planning.Operations().Operations[0]
			cmptest.Equal(t, "layout", w.drawLayout(), half)
			cmptest.Equal(t, "changes asked of the driver", w.calls, calls)
			cmptest.Equal(t, "planning.State()", planning.State(), degraded)
			wantText(t, "op.Error.Detail", op.Error.Detail, "--control.mode=apply")
		}

		next := w.engine(t, nil) // two hours later: nothing is done without being asked for
		cmptest.Equal(t, "layout", w.drawLayout(), half)
		cmptest.Equal(t, "changes asked of the driver", w.calls, calls)
		cmptest.Equal(t, "state of the next engine", next.State(), degraded)
		w.afterFailure(t, next, before, after)
	})
}

// TestPendingModeIsAFact: a mode that another client asks for after the plan was made would destroy
// what the plan creates.
func TestPendingModeIsAFact(t *testing.T) {
	w := newWorld(t)
	e := w.engine(t, nil)

	plan, err := e.Plan(t.Context(), everything, second(two3g))
	if err != nil {
		t.Fatal(err)
	}

	w.gpu(gpu1).Pending = gpu.Some(false)
	_, err = e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
	isProblem(t, err, api.StalePlan)
}

// TestActivityDuringAnOperation: what was active while another operation was executed is not idle
// after it.
func TestActivityDuringAnOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kubeletLags = true // the operation settles for 20 s
		e := w.engine(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()

		if _, err := e.start(t, api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"0"},
			Devices: map[string]api.DeviceRequest{"3g.20gb": {Count: 1}, "1g.5gb": {Count: 1}}}}); err != nil {
			t.Fatal(err)
		}

		show := func(sm float64) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.look()
			w.snapshot.GPUs[1].Instances[0].Activity.SM = gpu.Some(sm)
		}
		time.Sleep(5 * time.Second)
		show(0.9)
		time.Sleep(2 * time.Second)
		show(0)
		time.Sleep(30 * time.Second)
		_, err := e.Plan(t.Context(), everything, second(two3g))
		isProblem(t, err, api.Infeasible)
		time.Sleep(time.Minute)
		show(0)

		if _, err := e.Plan(t.Context(), everything, second(two3g)); err != nil {
			t.Error(err)
		}

		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
