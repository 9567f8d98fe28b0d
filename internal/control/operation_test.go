package control

import (
	"cmp"
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

func TestEventsAreReplayedAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()

		op, err := e.start(t, mixed())
		if err != nil {
			t.Fatal(err)
		}

		slow, err := e.Events(ctx, op.ID, 0) // it is not read until the operation is over
		if err != nil {
			t.Fatal(err)
		}

		quick, err := e.Events(ctx, op.ID, 0)
		if err != nil {
			t.Fatal(err)
		}

		var list []api.Event
		for ev := range quick {
			list = append(list, ev)
		}

		n := len(list)
		if n < 10 {
			t.Errorf("n is %v, want at least 10", n)
		}

		cmptest.Equal(t, "list[0].Seq", list[0].Seq, 1)
		cmptest.Equal(t, "list[n-1].State", list[n-1].State, api.Succeeded)
		cmptest.Equal(t, "list[n-1].Seq", list[n-1].Seq, n)
		synctest.Wait()

		var late []api.Event
		for ev := range slow {
			late = append(late, ev)
		}

		rest, err := e.Events(ctx, op.ID, 3)
		if err != nil {
			t.Fatal(err)
		}

		for ev := range rest {
			if ev.Seq <= 3 {
				t.Errorf("event %d again", ev.Seq)
			}
		}

		if !slices.Equal(list, late) {
			t.Errorf("the slow reader got %d events, want %d", len(late), len(list))
		}

		if _, err := e.Events(ctx, "unknown", 0); err == nil {
			t.Error("events of no operation")
		}

		cancel()

		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestStopInMidOperation has Run end while an operation is under way: its steps and hooks are
// brought to their end, and the wait for the kubelet is left to the next start, which does not run
// the hooks again.
func TestStopInMidOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kubeletLags = true
		e := w.engine(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		w.after = func(int, mig.Step) error { cancel(); return nil }

		op, err := e.start(t, mixed())
		if err != nil {
			t.Fatal(err)
		}

		begun := time.Now()

		if err := e.Run(ctx); err != nil {
			t.Fatal(err)
		}

		got := e.now(t, op.ID)
		cmptest.Equal(t, "state of the operation", got.State, api.Settling)

		if time.Since(begun) > 2*time.Second {
			t.Errorf("time.Since(begun) is %v, want at most 2*time.Second", time.Since(begun))
		}

		cmptest.Equal(t, "cordoned by", w.cordonedBy, "me")

		w.kubeletLags = false
		w.after = nil
		got = w.engine(t, nil).now(t, op.ID)
		cmptest.Equal(t, "state of the operation after the next start", got.State, api.Succeeded)
		cmptest.Equal(t, "cordoned by", w.cordonedBy, "")
		cmptest.Equal(t, "number of hooks run", len(w.hooks), 1)
	})
}

// TestUnsettled: an operation that neither the kubelet nor a hook has followed keeps its layout,
// says what it waits for, blocks nothing, and can be rolled back. Without a cure it stays
// unsettled.
func TestUnsettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kubeletLags = true
		w.hookFails = true
		e := w.engine(t, nil)
		begun := time.Now()
		op := e.applied(t, mixed())
		cmptest.Equal(t, "state", op.State, api.Unsettled)

		if took := time.Since(begun); took != 20*time.Second {
			t.Errorf("it took %s, want 20s", took)
		}

		if len(op.WaitsFor) != 2 {
			t.Fatalf("it waits for %q, want the kubelet and the hook", op.WaitsFor)
		}

		wantText(t, "op.WaitsFor", op.WaitsFor[0], "the kubelet to offer MIG-0-4:2-0:2-e0, ")
		cmptest.Equal(t, "op.WaitsFor[1]", op.WaitsFor[1], "the hook restart to succeed")
		cmptest.Equal(t, "state of a GPU", op.GPUs[0].State, api.Unsettled)
		cmptest.Equal(t, "state of the engine", e.State(), idle)

		if p := e.free(t, gpu1); p != nil {
			t.Errorf("GPU 1 is blocked: %v", p)
		}

		if len(op.Hooks) != 1 || op.Hooks[0].OK {
			t.Errorf("hooks %+v", op.Hooks)
		}

		if !slices.Contains(w.hooks[0], "MIG_CONTROL_OLD_UUIDS=MIG-0-0:4-0:3-e0,MIG-0-4:4-0:3-e0,"+sevenG) ||
			!slices.Contains(w.hooks[0], "MIG_CONTROL_RESULT=succeeded") {
			t.Errorf("environment %v", w.hooks[0])
		}

		if s := w.snapshot; len(s.GPUs[1].Instances) != 2 {
			t.Error("the Snapshot has not followed")
		}

		if len(w.hooks) != 1 || !slices.Equal(w.states, []string{running, idle, running, idle}) {
			t.Errorf("states %v", w.states)
		}

		cmptest.Equal(t, "unsettled operations", w.unsettled, []int{1})

		back, err := e.Rollback(t.Context(), everything, op.ID)
		if err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		cmptest.Equal(t, "state of the rollback", e.now(t, back.ID).State, api.Unsettled)
		wantText(t, "layout", w.drawLayout(), "1: 7g.40gb@0:8[0:7]")
	})
}

func TestCordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, by := range []string{"", "other"} {
			w := newWorld(t)
			w.cordonedBy = by
			during := ""
			w.before = func(int, mig.Step) error { during = w.cordonedBy; return nil }
			w.engine(t, nil).applied(t, mixed())
			cmptest.Equal(t, "cordoned during and after", [2]string{during, w.cordonedBy}, [2]string{cmp.Or(by, "me"), by})
		}
	})
}

func TestRollbackOfWhatHasSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		op := e.applied(t, mixed())
		made := w.gpu(gpu1).Instances[1]
		w.processes[gpu1] = []gpu.Process{{PID: 8, Instance: gpu.Some(made.ID)}}

		_, err := e.Rollback(t.Context(), everything, op.ID)
		if p := isProblem(t, err, api.Busy); p.Blocking[0].Holders[0].PID != 8 {
			t.Errorf("blocking %+v", p.Blocking)
		}

		w.processes[gpu1] = nil
		w.epoch = 1

		next, err := e.Rollback(t.Context(), everything, op.ID)
		if err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		got := e.now(t, next.ID)
		cmptest.Equal(t, "state of the operation", got.State, api.Succeeded)
		cmptest.Equal(t, "got.Verb", got.Verb, api.VerbRollback)
		cmptest.Equal(t, "got.RollbackOf", got.RollbackOf, op.ID)
		cmptest.Equal(t, "layout", w.drawLayout(), mixedBefore)
		cmptest.Equal(t, "got.Renamed[sevenG]", got.Renamed[sevenG], "MIG-1-0:8-0:7-e1")
	})
}

func TestRollbackLeavesWhatCameLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		op := e.applied(t,
			api.PlanRequest{Spec: api.Spec{GPUs: []api.Selector{"1"},
				Devices: map[string]api.DeviceRequest{"3g.20gb": {Count: 1}}}})

		start := 4
		if w.gpu(gpu1).Instances[0].Placement.Start == 4 {
			start = 0
		}

		w.create(gpu1, "1g.5gb", start)
		w.look()

		_, err := e.Rollback(t.Context(), everything, op.ID)
		if p := isProblem(t, err, api.StalePlan); !strings.Contains(p.Detail, "not the one that the operation left") {
			t.Errorf("detail %q", p.Detail)
		}

		_, err = e.Rollback(t.Context(), everything, "unknown")
		isProblem(t, err, api.NotFound)
	})
}

func TestRenamedDevicesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		w.epoch = 1
		w.before = first(mig.CreateInstance, gpu1, gpu.ErrDriver)
		op := e.applied(t, mixed())
		cmptest.Equal(t, "state of the operation", op.State, api.RolledBack)
		cmptest.Equal(t, "op.Renamed[sevenG]", op.Renamed[sevenG], "MIG-1-0:8-0:7-e1")

		if len(op.Renamed) != 2 {
			t.Fatalf("op.Renamed: %+v, want 2 of them", op.Renamed)
		}

		if len(w.hooks) != 1 || !slices.Contains(w.hooks[0], "MIG_CONTROL_RESULT=rolled-back") {
			t.Errorf("hooks %v", w.hooks)
		}
	})
}

// TestHistoryIsBounded has many operations: what is on disk stays small, and the last ones are
// known after a restart.
func TestHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		var last *api.Operation
		size := 0

		for n := range 2 * maxOperations {
			count := 1 + n%2

			last = e.applied(t, second(map[string]api.DeviceRequest{"3g.20gb": {Count: count}}))
			if last.State != api.Succeeded {
				t.Fatalf("operation %d is %s: %v", n, last.State, last.Error)
			}

			if n == maxOperations+1 {
				size = len(w.documents.History)
			}
		}

		if now := len(w.documents.History); now > size+size/10 {
			t.Errorf("the history has %d bytes, and had %d when it was full", now, size)
		}

		e = w.engine(t, nil)

		list := e.Operations().Operations
		if len(list) != maxOperations {
			t.Fatalf("list: %+v, want maxOperations of them", list)
		}

		cmptest.Equal(t, "list[0].ID", list[0].ID, last.ID)
		cmptest.Equal(t, "len(list[0].Steps)", len(list[0].Steps), len(last.Steps))
		_, err := e.Rollback(t.Context(), everything, last.ID) // it is known, but what came after it is not
		isProblem(t, err, api.StalePlan)
	})
}

func TestRestoreAfterReboot(t *testing.T) {
	reboot := func(o *Options) { o.Restore, o.BootID = true, "boot-2" }
	for name, c := range map[string]struct {
		change  func(w *world)
		options func(o *Options)
		want    string
	}{
		"both GPUs":     {nil, reboot, mixedAfter},
		"not asked for": {nil, func(o *Options) { o.BootID = "boot-2" }, "0:\n1:\n"},
		"same boot":     {nil, func(o *Options) { o.Restore = true }, "0:\n1:\n"},
		"plans only":    {nil, func(o *Options) { reboot(o); o.Apply = false }, "0:\n1:\n"},
		"instances exist": {func(w *world) { w.create(gpu0, "1g.5gb", 0) }, reboot, "0: 1g.5gb@0:1[0:1]\n" +
			strings.SplitAfter(mixedAfter, "\n")[1]},
		"mode off": {func(w *world) { w.gpu(gpu1).MIG = gpu.Some(false) }, reboot,
			strings.SplitAfter(mixedAfter, "\n")[0] + "1:\n"},
		"foreign": {func(w *world) { w.owners = map[gpu.UUID][]string{gpu1: {"slurm"}} }, reboot,
			strings.SplitAfter(mixedAfter, "\n")[0] + "1:\n"},
		"driver refuses": {func(w *world) { w.before = always(mig.CreateCompute, gpu1, gpu.ErrDriver) }, reboot,
			strings.SplitAfter(mixedAfter, "\n")[0] + "1:\n"},
		"driver says less": {func(w *world) { w.before = first(mig.CreateInstance, gpu1, errLie) }, reboot,
			strings.SplitAfter(mixedAfter, "\n")[0] + "1:\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.engine(t, nil).applied(t, mixed())

				w.gpu(gpu0).Instances = nil
				w.gpu(gpu1).Instances = nil

				w.processes = map[gpu.UUID][]gpu.Process{}
				if c.change != nil {
					c.change(w)
				}

				e := w.engine(t, c.options)
				if w.drawLayout() != c.want || e.State() != idle {
					t.Errorf("state %s, layout\n%s want\n%s", e.State(), w.drawLayout(), c.want)
				}

				w.before = nil

				w.gpu(gpu0).Instances = nil
				if w.engine(t, c.options); strings.HasPrefix(w.drawLayout(), "0: ") {
					t.Error("it was restored a second time in the same boot")
				}
			})
		})
	}
}

func TestRestoreWaitsForTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.engine(t, nil).applied(t, mixed())
		w.gpu(gpu0).Instances = nil
		w.gpu(gpu1).Instances = nil
		w.processes = map[gpu.UUID][]gpu.Process{}
		w.reading = func() error { return gpu.ErrNoDriver }
		e := w.engine(t, func(o *Options) { o.Restore, o.BootID = true, "boot-2" })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(15*time.Second, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reading = nil
		})

		if err := e.Run(ctx); err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "layout", w.drawLayout(), mixedAfter)
		cmptest.Equal(t, "e.Operations().Operations[0].Verb", e.Operations().Operations[0].Verb, api.VerbRestore)
		cmptest.Equal(t, "e.Operations().Operations[0].State", e.Operations().Operations[0].State, api.Succeeded)
	})
}

func TestCrashDuringRestore(t *testing.T) {
	for n := 0; ; n++ {
		died := true
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.engine(t, nil).applied(t, mixed())
			w.gpu(gpu0).Instances = nil
			w.gpu(gpu1).Instances = nil
			w.processes = map[gpu.UUID][]gpu.Process{}
			reboot := func(o *Options) { o.Restore, o.BootID = true, "boot-2" }
			w.points = 0
			w.dieAt = n
			w.engine(t, reboot)
			died = w.dead
			w.revive()
			e := w.engine(t, reboot)
			cmptest.Equal(t, "layout", w.drawLayout(), mixedAfter)
			cmptest.Equal(t, "state of the engine", e.State(), idle)
			cmptest.Equal(t, "cordoned by", w.cordonedBy, "")
		})

		if t.Failed() {
			t.Fatalf("crash point %d", n)
		}

		if !died {
			return
		}
	}
}
