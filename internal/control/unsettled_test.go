package control

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// run runs an engine until the test ends.
func (e *Engine) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// pause lets time pass, and then all goroutines come to rest.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// set changes the world while an engine runs.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// TestUnsettledIsCured: an operation becomes succeeded by itself once the kubelet offers its
// devices and its hook has succeeded, also after a restart of the exporter. The node is cordoned
// until the kubelet has followed.
func TestUnsettledIsCured(t *testing.T) {
	for name, tt := range map[string]struct {
		lags, hookFails, restarted bool
		cordonedBy                 string // while it is unsettled
		within                     time.Duration
	}{
		"the kubelet follows":                {lags: true, cordonedBy: "me", within: 10 * time.Second},
		"the kubelet follows after a start":  {lags: true, restarted: true, cordonedBy: "me", within: 10 * time.Second},
		"the hook succeeds":                  {hookFails: true, within: time.Minute},
		"the hook succeeds after a start":    {hookFails: true, restarted: true, within: time.Minute},
		"the kubelet and the hook, one late": {lags: true, hookFails: true, cordonedBy: "me", within: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.kubeletLags = tt.lags
				w.hookFails = tt.hookFails
				e := w.engine(t, nil)
				op := e.applied(t, second(two3g))
				cmptest.Equal(t, "state of the operation", op.State, api.Unsettled)
				cmptest.Equal(t, "cordoned by", w.cordonedBy, tt.cordonedBy)

				if tt.restarted {
					e = w.engine(t, nil)
				}

				e.run(t)
				pause(2 * time.Hour)
				cmptest.Equal(t, "state of the operation after two hours", e.now(t, op.ID).State, api.Unsettled)
				cmptest.Equal(t, "cordoned by", w.cordonedBy, tt.cordonedBy)

				if tt.hookFails && (len(w.hooks) < 20 || len(w.hooks) > 40) {
					t.Errorf("the hook was run %d times, want once in 5 minutes", len(w.hooks))
				}

				w.set(func() { w.kubeletLags = false })
				pause(time.Minute)
				cmptest.Equal(t, "cordoned by, once the kubelet has followed", w.cordonedBy, "")
				w.set(func() { w.hookFails = false })

				if tt.hookFails {
					pause(maxBackoff)
				}

				pause(tt.within)

				got := e.now(t, op.ID)
				cmptest.Equal(t, "state of the operation at last", got.State, api.Succeeded)
				cmptest.Equal(t, "state of the GPU", got.GPUs[0].State, api.Succeeded)
				cmptest.Equal(t, "number of what it waits for", len(got.WaitsFor), 0)
				cmptest.Equal(t, "the operation is cordoned", got.Cordoned, false)

				if !slices.Equal(w.unsettled[len(w.unsettled)-1:], []int{0}) {
					t.Errorf("unsettled operations: %v, want 0 at last", w.unsettled)
				}
			})
		})
	}
}

// TestUnsettledByWord: an operator can say that nothing is left to be done.
func TestUnsettledByWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kubeletLags = true
		w.hookFails = true
		e := w.engine(t, nil)
		op := e.applied(t, second(two3g))
		_, err := e.EndSettling(t.Context(), Actor{Name: "uid:7"}, op.ID)
		isProblem(t, err, api.Forbidden)

		got, err := e.EndSettling(t.Context(), everything, op.ID)
		if err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "state of the operation", got.State, api.Succeeded)
		cmptest.Equal(t, "cordoned by", w.cordonedBy, "")
		wantText(t, "warnings", strings.Join(got.Warnings, "\n"), "uid:0 has said that nothing is left to be done")
		_, err = e.EndSettling(t.Context(), everything, op.ID)
		isProblem(t, err, api.BadSpec)
		cmptest.Equal(t, "state after a start", w.engine(t, nil).now(t, op.ID).State, api.Succeeded)
	})
}

// TestUnsettledByWordWhileWatched: what is found out too late changes nothing of an operation that
// has succeeded.
func TestUnsettledByWordWhileWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := newDevicePlugin(w)
		d.err = gpu.ErrNoPermission
		e := w.engine(t, func(o *Options) { o.Assignments, o.DevicePlugin = d, d })
		w.hookFails = true
		op := e.applied(t, second(two3g))
		cmptest.Equal(t, "state of the operation", op.State, api.Unsettled)

		d.hangs = true
		e.run(t)
		pause(firstHookRetry + time.Second) // the plugin is asked to restart, the hook is due
		number := len(w.hooks)

		got, err := e.EndSettling(t.Context(), everything, op.ID)
		if err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "state of the operation", got.State, api.Succeeded)

		pause(time.Hour)
		got = e.now(t, op.ID)
		cmptest.Equal(t, "state an hour later", got.State, api.Succeeded)
		cmptest.Equal(t, "what it waits for", len(got.WaitsFor), 0)
		cmptest.Equal(t, "number of runs of the hook", len(w.hooks), number)
	})
}

// TestUnsettledByWordAtOnce: an operator's word and the goroutine that watches share the operation.
// The race detector finds what is not guarded.
func TestUnsettledByWordAtOnce(t *testing.T) {
	w := newWorld(t)
	w.kubeletLags = true
	e := w.engine(t, func(o *Options) { o.SettleTimeout, o.Hooks = time.Millisecond, nil })
	op := e.applied(t, second(two3g))
	cmptest.Equal(t, "state of the operation", op.State, api.Unsettled)

	watched, _ := e.findOperation(op.ID)

	var looking sync.WaitGroup
	s := &kubeletWait{e: e, op: watched}
	looking.Go(func() { s.lookAgain(t.Context()) })

	if _, err := e.EndSettling(t.Context(), everything, op.ID); err != nil {
		t.Error(err)
	}

	looking.Wait()
}

// TestUnsettledAfterAnotherChange: what a later operation has destroyed is not waited for.
func TestUnsettledAfterAnotherChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kubeletLags = true
		e := w.engine(t, nil)
		first := e.applied(t, second(two3g))
		cmptest.Equal(t, "state of the first operation", first.State, api.Unsettled)

		e.run(t)

		next, err := e.start(t, second(map[string]api.DeviceRequest{}))
		if err != nil {
			t.Fatal(err)
		}

		pause(time.Minute)
		cmptest.Equal(t, "state of the next operation", e.now(t, next.ID).State, api.Succeeded)
		cmptest.Equal(t, "state of the first operation", e.now(t, first.ID).State, api.Succeeded)
		cmptest.Equal(t, "cordoned by", w.cordonedBy, "")
	})
}

// TestUnsettledIsRestored: its layout is made again after a reboot, as that of an operation which
// has succeeded.
func TestUnsettledIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.kubeletLags = true
		op := w.engine(t, nil).applied(t, second(two3g))
		cmptest.Equal(t, "state of the operation", op.State, api.Unsettled)

		w.gpu(gpu1).Instances = nil
		w.kubeletLags = false
		w.look()
		e := w.engine(t, func(o *Options) { o.Restore, o.BootID = true, "boot-2" })
		wantText(t, "layout", w.drawLayout(), "1: 3g.20gb@0:4[0:3] 3g.20gb@4:4[0:3]")
		e.run(t)
		pause(time.Minute)
		cmptest.Equal(t, "state after the reboot", e.now(t, op.ID).State, api.Succeeded)
		cmptest.Equal(t, "cordoned by", w.cordonedBy, "")
	})
}

// TestSplitGPUStillOffered: a GPU whose MIG mode was switched on is no device any more: as long as
// the kubelet offers it, the next pod gets one that it cannot use.
func TestSplitGPUStillOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := bare(t)
		w.gpus[1].MIG, w.gpus[1].Pending = gpu.Some(false), gpu.Some(false)
		w.mode = func(on bool) (mig.ModeChange, error) {
			w.gpus[1].MIG, w.gpus[1].Pending = gpu.Some(on), gpu.Some(on)
			return mig.ModeChange{Current: on, Pending: on}, nil
		}
		k := &slowKubelet{kubelet: kubelet{w}, begun: time.Now(), stale: []gpu.DeviceRef{{GPU: gpu1}}, lags: time.Hour}
		e := w.engine(t, func(o *Options) { o.Assignments = k })

		op, err := e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{Enabled: true})
		if err != nil {
			t.Fatal(err)
		}

		e.drive(t)
		got := e.now(t, op.ID)
		cmptest.Equal(t, "state of the operation", got.State, api.Unsettled)

		if len(got.WaitsFor) != 1 || !strings.Contains(got.WaitsFor[0], string(gpu1)+" as a whole") {
			t.Errorf("it waits for %q", got.WaitsFor)
		}

		e.run(t)
		pause(2 * time.Hour)
		cmptest.Equal(t, "state once the kubelet has followed", e.now(t, op.ID).State, api.Succeeded)
	})
}
