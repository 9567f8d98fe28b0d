package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// world is a node in memory with everything that an engine speaks to. It lives on when an engine is
// dropped.
type world struct {
	mu        sync.Mutex
	asked     [][]gpu.UUID // what each reading was limited to
	gpus      []mig.GPULayout
	next      gpu.InstanceID
	epoch     int // part of new UUIDs
	processes map[gpu.UUID][]gpu.Process
	snapshot  *gpu.Snapshot

	documents Documents // on disk
	opening   error     // of the state folder

	points int // crash points passed
	dieAt  int // -1: never
	dead   bool

	calls      int                                   // of PerformStep that reached the driver
	before     func(n int, s mig.Step) error         // an error instead of the step
	after      func(n int, s mig.Step) error         // an error although it was done
	reading    func() error                          // an error instead of a reading
	unreadable map[gpu.UUID]error                    // GPUs that are left out of readings
	saving     func(n int, document []byte) error    // an error instead of saving
	saves      int                                   //
	mode       func(on bool) (mig.ModeChange, error) //
	asking     func(id gpu.UUID) ([]Handle, error)   //

	pods        gpu.Assignments
	podsErr     error
	processErr  error
	kubeletLags bool
	hung        gpu.UUID // of the GPU for which a call has not returned

	owners            map[gpu.UUID][]string
	mute              bool   // the API server does not answer who owns the GPUs
	cordonedBy        string // "", "me", "other"
	released, resumed int
	hooks             [][]string
	hookFails         bool
	states            []string
	unsettled         []int // the numbers that were reported

	watcher mig.LayoutWatcher
	blind   bool // the driver reports no changes of layouts

	silent     gpu.UUID // of a GPU that hangs: calls for it return when their time is over
	unversion  bool     // Snapshots have no driver version yet
	unrestored []gpu.UUID
	whenRead   func() // changes the Snapshot of PollGPUs
}

var (
	errDead = errors.New("the process is dead")
	errLie  = errors.New("says that it is done, and it is not")
)

const (
	gpu0 = gpu.UUID("GPU-00000000-0000-0000-0000-000000000000")
	gpu1 = gpu.UUID("GPU-11111111-1111-1111-1111-111111111111")
)

// newWorld has two GPUs: on the first a 3g that a process is on, and an idle 3g; on the second an
// idle 7g.
func newWorld(t *testing.T) *world {
	t.Helper()

	model, ok := mig.FindModel("A100-40GB")
	if !ok {
		t.Fatal("no such model")
	}

	w := &world{next: 1, dieAt: -1, processes: map[gpu.UUID][]gpu.Process{}}
	for n, id := range []gpu.UUID{gpu0, gpu1} {
		w.gpus = append(w.gpus,
			mig.GPULayout{MIG: gpu.Some(true), Pending: gpu.Some(true), Facts: gpu.Facts{UUID: id, Index: n, Minor: gpu.Some(n),
				Name: model.Name, PCIBusID: fmt.Sprintf("00000000:0%d:00.0", n+1), Profiles: model.Profiles}})
	}

	w.create(gpu0, "3g.20gb", 0)
	w.create(gpu0, "3g.20gb", 4)
	w.create(gpu1, "7g.40gb", 0)
	w.processes[gpu0] = []gpu.Process{{PID: 42, Instance: gpu.Some(gpu.InstanceID(1)),
		Compute: gpu.Some(gpu.ComputeID(0))}}
	w.look()

	return w
}

// create creates an instance with one compute instance of all its slices.
func (w *world) create(id gpu.UUID, profile string, start int) {
	g := w.gpu(id)
	at := slices.IndexFunc(g.Profiles, func(p gpu.Profile) bool { return p.Name == profile })
	p := g.Profiles[at]
	place := gpu.Placement{Start: start, Size: p.MemorySlices}

	s := mig.Step{Op: mig.CreateInstance, GPU: id, ProfileID: p.ID, Profile: p.Name, Placement: place}
	if _, err := w.perform(s); err != nil {
		panic(err)
	}

	s.Op, s.Compute = mig.CreateCompute, gpu.Some(gpu.Placement{Size: p.ComputeSlices})
	if _, err := w.perform(s); err != nil {
		panic(err)
	}
}

func (w *world) gpu(id gpu.UUID) *mig.GPULayout {
	at := slices.IndexFunc(w.gpus, func(g mig.GPULayout) bool { return g.UUID == id })
	return &w.gpus[at]
}

// look publishes a Snapshot of the current layout.
func (w *world) look() {
	s := &gpu.Snapshot{Generation: 1, Time: time.Now(), Driver: gpu.Some(gpu.Driver{Version: "580.95.05"})}
	if w.unversion {
		s.Driver = gpu.None[gpu.Driver]()
	}

	if w.snapshot != nil {
		s.Generation = w.snapshot.Generation + 1
	}

	for _, g := range w.gpus {
		seen := gpu.GPU{Facts: gpu.Facts{UUID: g.UUID, Index: g.Index}, Device: gpu.Device{Up: g.UUID != w.silent},
			LastRead: s.Time,
			MIG:      gpu.MIGState{Enabled: g.MIG, LayoutGeneration: uint64(w.next)}}
		for _, i := range g.Instances {
			seen.Instances = append(seen.Instances,
				gpu.GPUInstance{ID: i.ID, Profile: i.Profile, ProfileID: gpu.Some(i.ProfileID),
					Placement: gpu.Some(i.Placement), Device: gpu.Device{Up: true}})
		}

		s.GPUs = append(s.GPUs, seen)
	}

	w.snapshot = s
}

// point is a place where a crash can be: after it, nothing that the engine does has an effect.
func (w *world) point() bool {
	if w.points == w.dieAt {
		w.dead = true
	}

	w.points++

	return w.dead
}

func (w *world) revive() { w.dead, w.dieAt, w.points = false, -1, 0 }

func (w *world) Layouts(ctx context.Context, only ...gpu.UUID) ([]mig.GPULayout, map[gpu.UUID]error, error) {
	failed := w.hang(ctx, only...)
	w.mu.Lock()
	defer w.mu.Unlock()

	w.asked = append(w.asked, only)
	if w.dead {
		return nil, nil, errDead
	}

	if w.reading != nil {
		if err := w.reading(); err != nil {
			return nil, nil, err
		}
	}

	list := slices.DeleteFunc(slices.Clone(w.gpus), func(g mig.GPULayout) bool { return w.unreadable[g.UUID] != nil })
	if len(only) > 0 {
		list = slices.DeleteFunc(list, func(g mig.GPULayout) bool { return !slices.Contains(only, g.UUID) })
	}

	list = slices.DeleteFunc(list, func(g mig.GPULayout) bool { return failed[g.UUID] != nil })
	for n := range list {
		list[n].Instances = copyInstances(list[n].Instances)
	}

	if len(failed) > 0 {
		maps.Copy(failed, w.unreadable)
		return list, failed, nil
	}

	return list, maps.Clone(w.unreadable), ctx.Err()
}

func (w *world) Processes(_ context.Context, id gpu.UUID) ([]gpu.Process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.dead {
		return nil, errDead
	}

	return slices.Clone(w.processes[id]), w.processErr
}

func (w *world) PerformStep(ctx context.Context, s mig.Step, expected []mig.Instance) (mig.Outcome, error) {
	if failed := w.hang(ctx, s.GPU); failed != nil {
		return mig.Outcome{}, failed[s.GPU]
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if w.point() {
		return mig.Outcome{}, errDead
	}

	switch out, err := w.outcome(s.GPU, nil); {
	case err != nil:
		return out, fmt.Errorf("%w: %w", mig.ErrNotTried, err)
	case !mig.SameInstances(out.Instances, expected):
		return out, mig.ErrLayoutChanged
	}

	done, err := w.do(s)
	if w.point() {
		return mig.Outcome{}, errDead
	}

	if errors.Is(err, gpu.ErrTimeout) {
		return mig.Outcome{}, err
	}

	out, reading := w.outcome(s.GPU, err)
	out.Done = done

	return out, cmp.Or(err, reading)
}

func (w *world) do(s mig.Step) (mig.Done, error) {
	n := w.calls

	w.calls++
	if w.before != nil {
		switch err := w.before(n, s); {
		case errors.Is(err, errLie):
			return mig.Done{}, nil
		case err != nil:
			return mig.Done{}, err
		}
	}

	done, err := w.perform(s)
	if err == nil && w.after != nil {
		err = w.after(n, s)
	}

	return done, err
}

// perform is what a driver does with a step.
func (w *world) perform(s mig.Step) (mig.Done, error) {
	done, err := w.change(s)
	if err == nil {
		w.report(s.GPU)
	}

	return done, err
}

func (w *world) change(s mig.Step) (mig.Done, error) {
	g := w.gpu(s.GPU)

	at := slices.IndexFunc(g.Instances, func(i mig.Instance) bool {
		return i.ProfileID == s.ProfileID && i.Placement == s.Placement
	})
	if s.Op == mig.CreateInstance {
		if slices.ContainsFunc(g.Instances, func(i mig.Instance) bool { return i.Placement.Overlaps(s.Placement) }) {
			return mig.Done{}, gpu.ErrInsufficientResources
		}

		i := mig.Instance{ID: w.next, Placed: mig.Placed{ProfileID: s.ProfileID, Profile: s.Profile, Placement: s.Placement}}
		w.next++
		g.Instances = append(g.Instances, i)
		slices.SortFunc(g.Instances, func(a, b mig.Instance) int { return a.Placement.Start - b.Placement.Start })

		return mig.Done{Instance: i.ID}, nil
	}

	if at < 0 {
		return mig.Done{}, gpu.ErrNotFound
	}

	i := &g.Instances[at]

	used := slices.ContainsFunc(w.processes[s.GPU], func(p gpu.Process) bool { return p.Instance.Or(0) == i.ID })
	switch s.Op {
	case mig.DestroyInstance:
		if len(i.ComputeInstances) > 0 || used {
			return mig.Done{}, gpu.ErrInUse
		}

		g.Instances = slices.Delete(g.Instances, at, at+1)

		return mig.Done{}, nil
	case mig.CreateCompute:
		if slices.ContainsFunc(i.ComputeInstances, func(c mig.ComputeInstance) bool {
			return c.Placement.Or(gpu.Placement{}).Overlaps(s.Compute.Or(gpu.Placement{}))
		}) {
			return mig.Done{}, gpu.ErrInsufficientResources
		}

		c := mig.ComputeInstance{ID: gpu.ComputeID(len(i.ComputeInstances)), Slices: s.Compute.Or(gpu.Placement{}).Size,
			Placement: s.Compute,
			UUID: gpu.MIGUUID(fmt.Sprintf("MIG-%d-%s-%s-e%d", g.Index, s.Placement, s.Compute.Or(gpu.Placement{}),
				w.epoch))}
		i.ComputeInstances = append(i.ComputeInstances, c)

		return mig.Done{Instance: i.ID, ComputeID: gpu.Some(c.ID), UUID: c.UUID}, nil
	default:
		k := slices.IndexFunc(i.ComputeInstances, func(c mig.ComputeInstance) bool { return c.Placement == s.Compute })
		if k < 0 {
			return mig.Done{}, gpu.ErrNotFound
		}

		if used {
			return mig.Done{}, gpu.ErrInUse
		}

		i.ComputeInstances = slices.Delete(i.ComputeInstances, k, k+1)

		return mig.Done{Instance: i.ID}, nil
	}
}

func (w *world) SetMIGMode(_ context.Context, id gpu.UUID, on bool) (mig.ModeChange, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.point() {
		return mig.ModeChange{}, errDead
	}

	if w.mode != nil {
		return w.mode(on)
	}

	g := w.gpu(id)
	g.MIG, g.Pending = gpu.Some(on), gpu.Some(on)

	if w.point() {
		return mig.ModeChange{}, errDead
	}

	return mig.ModeChange{Current: on, Pending: on}, nil
}

func (w *world) Current() *gpu.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.snapshot
}

func (w *world) Poll(context.Context, func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look()

	return nil
}

// folder is the state folder of a world.
type folder struct{ *world }

func (f *folder) Open() (Documents, error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.dead {
		return Documents{}, errDead
	}

	return f.documents, f.opening
}

func (f *folder) Reserve(int) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.dead {
		return errDead
	}

	return f.opening
}

func (f *folder) SaveOperation(document []byte) error {
	return f.save(&f.documents.Operation, document)
}

func (f *folder) SaveHistory(document []byte) error { return f.save(&f.documents.History, document) }

func (f *folder) save(to *[]byte, document []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.point() {
		return errDead
	}

	n := f.saves

	f.saves++
	if f.saving != nil {
		if err := f.saving(n, document); err != nil {
			return err
		}
	}

	*to = slices.Clone(document)

	if f.point() {
		return errDead
	}

	return nil
}

type kubelet struct{ *world }

func (k kubelet) List(context.Context) (gpu.Assignments, error) { return k.pods, k.podsErr }

func (k kubelet) ConfirmFree(epoch uint64, devices []gpu.DeviceRef, unconfirmed []gpu.Assignment) bool {
	if epoch != k.pods.Epoch {
		return false
	}

	k.pods.Free = append(slices.Clone(k.pods.Free), devices...)
	k.pods.List = slices.DeleteFunc(slices.Clone(k.pods.List), func(a gpu.Assignment) bool {
		return a.Holder.Unconfirmed != "" && slices.ContainsFunc(unconfirmed, func(u gpu.Assignment) bool {
			return a.Device == u.Device && a.Holder.Container == u.Holder.Container
		})
	})

	return true
}

func (k kubelet) Allocatable(context.Context) ([]gpu.Offer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []gpu.Offer

	for _, g := range k.gpus {
		for _, i := range g.Instances {
			for _, c := range i.ComputeInstances {
				if !k.kubeletLags {
					list = append(list, gpu.Offer{Device: gpu.DeviceRef{MIG: c.UUID}})
				}
			}
		}
	}

	return list, nil
}

type cluster struct{ *world }

func (c *cluster) Owners(ctx context.Context) (map[gpu.UUID][]string, error) {
	if c.mute {
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", gpu.ErrUnavailable, gpu.ErrTimeout)
	}

	return c.owners, nil
}

func (c *cluster) Cordon(context.Context) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.dead {
		return false, errDead
	}

	if c.cordonedBy != "" {
		return false, nil
	}

	c.cordonedBy = "me"

	return true, nil
}

func (c *cluster) Uncordon(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.dead {
		return errDead
	}

	if c.cordonedBy == "me" {
		c.cordonedBy = ""
	}

	return nil
}

type files struct{ *world }

func (f files) Open(_ context.Context, g mig.GPULayout) ([]Handle, error) {
	if f.asking == nil {
		return nil, nil
	}

	return f.asking(g.UUID)
}

type profiling struct{ *world }

func (p *profiling) Release(context.Context) (func(), error) {
	p.released++
	return func() { p.resumed++ }, nil
}

type observer struct{ *world }

func (o *observer) Operation(api.Verb, string, time.Duration) {}

func (o *observer) State(s string) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.states = append(o.states, s)
}

func (w *world) setUnsettled(number int) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.unsettled = append(w.unsettled, number)
}

func (w *world) setUnrestored(list []api.Unrestored) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.unrestored = nil
	for _, u := range list {
		w.unrestored = append(w.unrestored, u.GPU)
	}
}

var everything = Actor{Name: "uid:0", Rights: Rights{Read: true, Plan: true, Apply: true, Mode: true, Force: true,
	TakeOver: true}}

// engine starts one over the world, as a process would.
func (w *world) engine(t *testing.T, change func(*Options)) *Engine {
	t.Helper()

	o := Options{Hostname: "node", BootID: "boot-1", Apply: true, Actuator: w, Poller: w, Assignments: kubelet{w},
		Handles: files{w},
		Cluster: &cluster{w}, Cordon: true, Profiling: &profiling{w}, Store: &folder{w}, Observer: &observer{w},
		Unsettled:   w.setUnsettled,
		Unrestored:  w.setUnrestored,
		CallTimeout: 10 * time.Second,
		IdleFor:     time.Minute, SettleTimeout: 20 * time.Second, Hooks: []Hook{{Argv: []string{"restart"}}},
		RunHook: func(_ context.Context, h Hook, env []string) api.HookResult {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.hooks = append(w.hooks, env)

			return api.HookResult{Argv: h.Argv, OK: !w.hookFails}
		},
		Layouts: map[string][]api.LayoutRule{
			"mixed": {
				{Devices: api.DeviceList{Indexes: []int{0}}, MIGEnabled: true,
					MIGDevices: map[string]int{"3g.20gb": 1, "1g.5gb": 1, "2g.10gb": 1}},
				{Devices: api.DeviceList{Indexes: []int{1}}, MIGEnabled: true, MIGDevices: map[string]int{"3g.20gb": 2}},
			},
		}}
	if change != nil {
		change(&o)
	}

	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}

	e.recoverOperations(t.Context())
	e.await()

	return e
}

// await waits until nothing is done beside the current operation any more.
func (e *Engine) await() {
	e.following.Wait()
	e.report()
}

// report has the observers called, as Run does.
func (e *Engine) report() {
	for len(e.reports) > 0 {
		(<-e.reports)()
	}
}

// drive does what Run does, as far as there is something to do.
func (e *Engine) drive(t *testing.T) {
	t.Helper()

	select {
	case op := <-e.queue:
		e.executeOperation(t.Context(), op)
		e.await()
	default:
	}
}

// free finds out whether an operation on a GPU could begin.
func (e *Engine) free(t *testing.T, id gpu.UUID) *api.Problem {
	t.Helper()

	p := e.reserve(t.Context(), nil, id)
	if p == nil {
		e.releaseReservation()
	}

	return p
}

// start plans and starts; the operation is not driven yet.
func (e *Engine) start(t *testing.T, r api.PlanRequest) (*api.Operation, error) {
	t.Helper()

	plan, err := e.Plan(t.Context(), everything, r)
	if err != nil {
		return nil, err
	}

	return e.Start(t.Context(), everything, api.OperationRequest{Plan: plan.ID, Hash: plan.Hash})
}

// applied starts an operation and drives it to its end.
func (e *Engine) applied(t *testing.T, r api.PlanRequest) *api.Operation {
	t.Helper()

	op, err := e.start(t, r)
	if err != nil {
		t.Fatal(err)
	}

	e.drive(t)

	return e.now(t, op.ID)
}

func (e *Engine) now(t *testing.T, id string) *api.Operation {
	t.Helper()

	op, err := e.Operation(id)
	if err != nil {
		t.Fatal(err)
	}

	return op
}

func mixed() api.PlanRequest { return api.PlanRequest{Spec: api.Spec{Layout: "mixed"}} }

// drawLayout draws the current layout: "0: 3g.20gb@0:4[0:3] ...".
func (w *world) drawLayout() string {
	text := ""
	for _, g := range w.gpus {
		text += fmt.Sprintf("%d:", g.Index)
		for _, i := range g.Instances {
			text += fmt.Sprintf(" %s@%s", i.Profile, i.Placement)
			for _, at := range mig.ComputePlacements(i) {
				text += fmt.Sprintf("[%s]", at)
			}
		}

		text += "\n"
	}

	return text
}

func isProblem(t *testing.T, err error, kind api.ProblemType) *api.Problem {
	t.Helper()

	var p *api.Problem
	if !errors.As(err, &p) || p == nil {
		t.Fatalf("error %v, want a problem %s", err, kind)
	}

	if p.Type != kind {
		t.Fatalf("problem %s, want %s: %v", p.Type, kind, err)
	}

	return p
}

// wantText fails the test, which continues, unless a text contains a part.
func wantText(t *testing.T, what, got, part string) {
	t.Helper()

	if !strings.Contains(got, part) {
		t.Errorf("%s: %q, want it to contain %q", what, got, part)
	}
}
