package control

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// hangingWorld is a world of whose calls those of one name do not return once they are armed:
// driver calls for gpu1, all others for any GPU. A call that has a context gives up with it.
type hangingWorld struct {
	*world
	name    string
	armed   atomic.Bool
	reached chan struct{} // closed when the first call hangs
	once    sync.Once
	release chan struct{} // closed when all return
}

func (h *hangingWorld) hangs(ctx context.Context, name string) error {
	if name != h.name || !h.armed.Load() {
		return nil
	}

	h.once.Do(func() { close(h.reached) })

	select {
	case <-ctx.Done():
		return gpu.ErrTimeout
	case <-h.release:
		return nil
	}
}

func (h *hangingWorld) Layouts(ctx context.Context, only ...gpu.UUID) ([]mig.GPULayout, map[gpu.UUID]error, error) {
	if len(only) == 1 && only[0] == gpu1 {
		if err := h.hangs(ctx, "Layouts"); err != nil {
			return nil, nil, err
		}
	}

	return h.world.Layouts(ctx, only...)
}

func (h *hangingWorld) Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error) {
	if id == gpu1 {
		if err := h.hangs(ctx, "Processes"); err != nil {
			return nil, err
		}
	}

	return h.world.Processes(ctx, id)
}

func (h *hangingWorld) PerformStep(ctx context.Context, s mig.Step, expected []mig.Instance) (mig.Outcome, error) {
	if err := h.hangs(ctx, "PerformStep"); err != nil {
		return mig.Outcome{}, err
	}

	return h.world.PerformStep(ctx, s, expected)
}

func (h *hangingWorld) SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (mig.ModeChange, error) {
	if err := h.hangs(ctx, "SetMIGMode"); err != nil {
		return mig.ModeChange{}, err
	}

	return h.world.SetMIGMode(ctx, id, on)
}

func (h *hangingWorld) PollGPUs(ctx context.Context, ids ...gpu.UUID) error {
	if err := h.hangs(ctx, "PollGPUs"); err != nil {
		return err
	}

	return h.world.PollGPUs(ctx, ids...)
}

// Current implements Poller. While Poll hangs, nothing was polled yet.
func (h *hangingWorld) Current() *gpu.Snapshot {
	if h.name == "Poll" && h.armed.Load() {
		return nil
	}

	return h.world.Current()
}

func (h *hangingWorld) Poll(ctx context.Context, first func() error) error {
	if err := h.hangs(ctx, "Poll"); err != nil {
		return err
	}

	return h.world.Poll(ctx, first)
}

// Restart implements DevicePlugin.
func (h *hangingWorld) Restart(ctx context.Context) ([]string, error) {
	return []string{"pod"}, h.hangs(ctx, "Restart")
}

// Gone implements DevicePlugin.
func (h *hangingWorld) Gone(ctx context.Context, _ []string) (bool, error) {
	return true, h.hangs(ctx, "Gone")
}

func (h *hangingWorld) runHook(ctx context.Context, hook Hook, _ []string) api.HookResult {
	return api.HookResult{Argv: hook.Argv, OK: h.hangs(ctx, "RunHook") == nil}
}

type hangingFolder struct {
	folder
	h *hangingWorld
}

func (f *hangingFolder) Open() (Documents, error) {
	_ = f.h.hangs(context.Background(), "Store.Open")
	return f.folder.Open()
}

func (f *hangingFolder) Reserve(size int) error {
	_ = f.h.hangs(context.Background(), "Reserve")
	return f.folder.Reserve(size)
}

func (f *hangingFolder) SaveOperation(document []byte) error {
	_ = f.h.hangs(context.Background(), "SaveOperation")
	return f.folder.SaveOperation(document)
}

func (f *hangingFolder) SaveHistory(document []byte) error {
	_ = f.h.hangs(context.Background(), "SaveHistory")
	return f.folder.SaveHistory(document)
}

type hangingKubelet struct {
	kubelet
	h *hangingWorld
}

func (k hangingKubelet) List(ctx context.Context) (gpu.Assignments, error) {
	if err := k.h.hangs(ctx, "List"); err != nil {
		return gpu.Assignments{}, err
	}

	return k.kubelet.List(ctx)
}

func (k hangingKubelet) Allocatable(ctx context.Context) ([]gpu.Offer, error) {
	if err := k.h.hangs(ctx, "Allocatable"); err != nil {
		return nil, err
	}

	return k.kubelet.Allocatable(ctx)
}

type hangingCluster struct {
	cluster
	h *hangingWorld
}

func (c *hangingCluster) Owners(ctx context.Context) (map[gpu.UUID][]string, error) {
	return nil, c.h.hangs(ctx, "Owners")
}

func (c *hangingCluster) Cordon(ctx context.Context) (bool, error) {
	if err := c.h.hangs(ctx, "Cordon"); err != nil {
		return false, err
	}

	return c.cluster.Cordon(ctx)
}

func (c *hangingCluster) Uncordon(ctx context.Context) error {
	if err := c.h.hangs(ctx, "Uncordon"); err != nil {
		return err
	}

	return c.cluster.Uncordon(ctx)
}

type hangingFiles struct{ h *hangingWorld }

func (f hangingFiles) Open(ctx context.Context, _ mig.GPULayout) ([]Handle, error) {
	return nil, f.h.hangs(ctx, "Open")
}

type hangingProfiling struct{ h *hangingWorld }

func (p hangingProfiling) Release(ctx context.Context) (func(), error) {
	return func() {}, p.h.hangs(ctx, "Release")
}

type hangingObserver struct {
	observer
	h *hangingWorld
}

func (o *hangingObserver) Operation(api.Verb, string, time.Duration) {
	_ = o.h.hangs(context.Background(), "Observer.Operation")
}

func (o *hangingObserver) State(state string) {
	_ = o.h.hangs(context.Background(), "Observer.State")
	o.observer.State(state)
}

func (h *hangingWorld) set(o *Options) {
	o.Actuator, o.Poller, o.DevicePlugin, o.RunHook = h, h, h, h.runHook
	o.Store = &hangingFolder{folder{h.world}, h}
	o.Assignments = hangingKubelet{kubelet{h.world}, h}
	o.Cluster = &hangingCluster{cluster{h.world}, h}
	o.Handles, o.Profiling = hangingFiles{h}, hangingProfiling{h}
	o.Observer = &hangingObserver{observer{h.world}, h}
	h.setCallbacks(o)
}

// setCallbacks sets the functions that receive what the engine reports.
func (h *hangingWorld) setCallbacks(o *Options) {
	hang := func(name string) { _ = h.hangs(context.Background(), name) }

	o.Ended = func(Ended) { hang("Ended") }
	o.Wanted = func([]WantedLayout) { hang("Wanted") }

	o.Unsettled = func(number int) {
		hang("Unsettled")
		h.setUnsettled(number)
	}
	o.Unrestored = func(list []api.Unrestored) {
		hang("Unrestored")
		h.setUnrestored(list)
	}
}

// TestAnyCallHangs: whatever hangs in the middle of an operation, or of the request for it, what
// the engine knows can be read at once, another GPU is planned, no request waits forever, and the
// program stops. The next start goes on.
func TestAnyCallHangs(t *testing.T) {
	type row struct {
		inRequest bool // it hangs while the operation is asked for
		mode      bool // the operation changes the MIG mode
		everyPlan bool // each plan asks it, and without an answer nothing is known to be idle or without another owner
		lags      bool // the kubelet does not offer the new devices, so that the operation is unsettled
	}

	for name, c := range map[string]row{
		"PerformStep":            {},
		"Layouts":                {},
		"Processes":              {},
		"SetMIGMode":             {mode: true},
		"Release":                {mode: true},
		"PollGPUs":               {},
		"Poll":                   {everyPlan: true},
		"Poll, accepts":          {mode: true, inRequest: true, everyPlan: true},
		"Open":                   {everyPlan: true},
		"List":                   {everyPlan: true},
		"Allocatable":            {},
		"Owners":                 {inRequest: true, everyPlan: true},
		"Cordon":                 {},
		"Uncordon":               {},
		"Reserve":                {inRequest: true},
		"SaveOperation":          {},
		"SaveOperation, accepts": {inRequest: true},
		"SaveHistory":            {},
		"Restart":                {},
		"Gone":                   {},
		"RunHook":                {},
		"Observer.State":         {},
		"Observer.Operation":     {},
		"Ended":                  {},
		"Unsettled":              {lags: true},
		"Unrestored":             {},
		"Wanted":                 {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if c.mode {
					w = bare(t)
				}

				w.kubeletLags = c.lags
				h := &hangingWorld{world: w, reached: make(chan struct{}), release: make(chan struct{})}
				h.name, _, _ = strings.Cut(name, ",")
				e := w.engine(t, h.set)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				var requests sync.WaitGroup

				h.armed.Store(c.inRequest)
				requests.Go(func() {
					var err error
					if c.mode {
						_, err = e.SetMode(t.Context(), everything, gpu1, api.ModeRequest{})
					} else {
						_, err = e.start(t, second(two3g))
					}

					if (err != nil) != c.inRequest {
						t.Errorf("error of the request: %v", err)
					}
				})
				synctest.Wait()
				h.armed.Store(true)

				go func() { ended <- e.Run(ctx) }()

				within(t, "the call that hangs", time.Minute, func() {
					select {
					case <-h.reached:
					case <-time.After(time.Hour):
					}
				})
				synctest.Wait()
				e.readsAtOnce(t)

				requests.Go(func() {
					plan, err := e.Plan(t.Context(), everything, oneG0())
					if (err != nil) != c.everyPlan {
						t.Errorf("plan of another GPU: %v", err)
					}

					if err == nil { // it is accepted, or refused
						_, _ = e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
					}
				})
				within(t, "requests", 4*e.o.CallTimeout, requests.Wait)
				e.readsAtOnce(t)

				within(t, "Run", grace+lastSave, func() {
					cancel()
					cmptest.Equal(t, "error of Run", <-ended, nil)
				})

				close(h.release)
				synctest.Wait()

				w.kubeletLags = false
				next := w.engine(t, nil)
				next.watchUnsettled(t.Context())
				next.await()
				cmptest.Equal(t, "state after the next start", next.State(), idle)
				cmptest.Equal(t, "cordoned by", w.cordonedBy, "")
			})
		})
	}
}

// TestStateFolderHangsAtStart: while the folder cannot be opened, requests are refused and the
// program stops. Once it can be, the engine is usable.
func TestStateFolderHangsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := &hangingWorld{world: w, name: "Store.Open", reached: make(chan struct{}), release: make(chan struct{})}
		h.armed.Store(true)

		e := w.engine(t, h.set) // tries to open it
		cmptest.Equal(t, "state", e.State(), readOnly)

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()

		time.Sleep(time.Minute)
		e.readsAtOnce(t)

		if _, err := e.start(t, second(two3g)); err == nil {
			t.Error("an operation was accepted without a state folder")
		}

		close(h.release)
		time.Sleep(10 * time.Second)
		cmptest.Equal(t, "state once it can be opened", e.State(), idle)

		cancel()
		cmptest.Equal(t, "error of Run", <-ended, nil)
	})
}

// TestPollHangsAtStart: the last process has left an operation, and the first poll hangs. The
// operation waits for the driver's version; meanwhile it can be read, requests are answered, and the
// program stops. The next start rolls it back.
func TestPollHangsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.after = func(_ int, s mig.Step) error {
			w.dead = s.Op == mig.CreateCompute
			return nil
		}
		last := w.engine(t, nil)

		op, err := last.start(t, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		last.drive(t)
		w.revive()
		w.after = nil

		// The folder cannot be opened before Run, so that Run reads it, and then polls.
		w.opening = syscall.EIO
		h := &hangingWorld{world: w, name: "Poll", reached: make(chan struct{}), release: make(chan struct{})}
		h.armed.Store(true)

		e := w.engine(t, h.set)
		w.opening = nil

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()

		within(t, "the first poll", time.Minute, func() {
			select {
			case <-h.reached:
			case <-time.After(time.Hour):
			}
		})
		synctest.Wait()
		e.readsAtOnce(t)

		// Before the first poll, no instance is known to be idle.
		refused := func() {
			_, err := e.start(t, oneG0())
			isProblem(t, err, api.Infeasible)
		}
		within(t, "a request while it is recovered", 2*e.o.CallTimeout, refused)
		time.Sleep(2 * e.o.CallTimeout)
		e.readsAtOnce(t)
		cmptest.Equal(t, "what it waits for", e.now(t, op.ID).WaitsFor, []string{"the driver to say its version"})
		within(t, "a request while it waits", 2*e.o.CallTimeout, refused)

		within(t, "Run", grace+lastSave, func() {
			cancel()
			cmptest.Equal(t, "error of Run", <-ended, nil)
		})

		close(h.release)
		w.sound(t, w.engine(t, nil), mixedBefore, mixedBefore)
	})
}

// TestOutcomeAfterTheGracePeriod: a step that ends only with the grace period is on disk with its
// outcome.
func TestOutcomeAfterTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := &hangingWorld{world: w, name: "PerformStep", reached: make(chan struct{}), release: make(chan struct{})}
		e := w.engine(t, h.set)

		if _, err := e.start(t, second(two3g)); err != nil {
			t.Fatal(err)
		}

		h.armed.Store(true)

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()

		<-h.reached
		cancel()
		cmptest.Equal(t, "error of Run", <-ended, nil)
		cmptest.Equal(t, "why it is read-only", e.Reason(), "")

		close(h.release)
	})
}

// within fails the test if f takes longer than limit.
func within(t *testing.T, what string, limit time.Duration, f func()) {
	t.Helper()

	began := time.Now()

	f()

	if took := time.Since(began); took > limit {
		t.Errorf("%s: it took %s, want at most %s", what, took, limit)
	}
}

// readsAtOnce reads what the engine knows.
func (e *Engine) readsAtOnce(t *testing.T) {
	t.Helper()

	within(t, "reading", 0, func() {
		_ = e.State()
		_ = e.Reason()

		for _, op := range e.Operations().Operations {
			ctx, cancel := context.WithCancel(t.Context())
			events, err := e.Events(ctx, op.ID, 0)

			if err != nil || (<-events).Seq == 0 {
				t.Errorf("events of operation %s: %v", op.ID, err)
			}

			cancel()
			e.now(t, op.ID)
		}
	})
}

// TestOneRequestAtATime: while a request is being checked, which here takes as long as the API
// server hangs, no other one can become the current operation.
func TestOneRequestAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := &hangingWorld{world: w, name: "Owners", reached: make(chan struct{}), release: make(chan struct{})}
		e := w.engine(t, h.set)

		plan, err := e.Plan(t.Context(), everything, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		h.armed.Store(true)

		var first sync.WaitGroup
		first.Go(func() {
			_, err := e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
			if err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		wantText(t, "refusal", e.free(t, gpu0).Detail, "another request is being checked")

		close(h.release)
		first.Wait()
		e.drive(t)
		cmptest.Equal(t, "operations", len(e.Operations().Operations), 1)
	})
}

// TestEndIsSavedBeforeTheNextBegins: an operation keeps the slots until the history has its end. If
// that cannot be saved, no other operation overwrites them.
func TestEndIsSavedBeforeTheNextBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.engine(t, nil)
		plan, _ := e.Plan(t.Context(), everything, oneG0())
		full := make(chan struct{})
		committed := false
		w.saving = func(_ int, document []byte) error { // from the commit on, histories find no room
			committed = committed || strings.Contains(string(document), `"settling"`)
			if !committed || !strings.HasPrefix(string(document), `{"operations"`) {
				return nil
			}

			w.mu.Unlock()
			<-full
			w.mu.Lock()

			return syscall.ENOSPC
		}

		op, err := e.start(t, second(two3g))
		if err != nil {
			t.Fatal(err)
		}

		var both sync.WaitGroup
		both.Go(func() { e.drive(t) })
		synctest.Wait()
		both.Go(func() {
			_, err := e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
			isProblem(t, err, api.ReadOnly)
		})
		synctest.Wait()
		close(full)
		both.Wait()

		w.saving = nil
		cmptest.Equal(t, "state at the next start", w.engine(t, nil).now(t, op.ID).State, api.Succeeded)
	})
}
