package nvmlsource_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// performer does steps on GPU 0 of a node, a partitioned, each on the instances that the one before
// left.
type performer struct {
	*node
	steps
	expected []mig.Instance
}

func newPerformer(t *testing.T, faults ...string) *performer {
	t.Helper()
	n := newNode(t, "", partitioned+"\nfaults: ["+strings.Join(faults, ", ")+"]")

	return &performer{node: n, steps: steps{n.discover()[0]}, expected: n.layout(0).Instances}
}

// try does a step.
func (p *performer) try(s mig.Step) (mig.Outcome, error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
	defer cancel()

	return p.source.Actuator().PerformStep(ctx, s, p.expected)
}

// perform does a step that must succeed: it leaves what mig.AfterStep says, and a layout read
// afterwards is the same.
func (p *performer) perform(s mig.Step) mig.Done {
	p.t.Helper()

	out, err := p.try(s)
	if err != nil || !out.Read {
		p.t.Fatalf("%s: %+v, %v", s.Op, out, err)
	}

	if want := mig.AfterStep(p.expected, s, out.Done); !mig.SameInstances(out.Instances, want) {
		p.t.Fatalf("%s leaves %+v, want %+v", s.Op, out.Instances, want)
	}

	p.sameAsLayout(out)
	p.expected = out.Instances

	return out.Done
}

// sameAsLayout checks that an outcome has the current layout.
func (p *performer) sameAsLayout(out mig.Outcome) {
	p.t.Helper()

	if g := p.layout(0); !out.Read || !mig.SameInstances(out.Instances, g.Instances) {
		p.t.Errorf("outcome %+v; current %+v", out, g.Instances)
	}
}

// instance is a step that creates a 2g.10gb, compute one that creates a compute instance in it.
func (p *performer) instance() mig.Step {
	s := p.createGI(14, 4, 2)
	s.Profile = "2g.10gb"

	return s
}

func (p *performer) compute() mig.Step { return p.createCI(p.instance(), 1, 1) }

func TestPerformEachStep(t *testing.T) {
	p := newPerformer(t)
	before := p.expected
	gi := p.perform(p.instance())
	ci := p.perform(p.compute())
	c := p.expected[1].ComputeInstances[0]

	if ci.UUID == "" {
		t.Error("ci.UUID is empty")
	}

	cmptest.Equal(t, "c.UUID", c.UUID, ci.UUID)
	cmptest.Equal(t, "UUID in the layout", p.layout(0).Instances[1].ComputeInstances[0].UUID, ci.UUID)

	destroyed := p.perform(p.destroy(p.compute(), ci))
	if destroyed.ComputeID != ci.ComputeID || destroyed.Instance != gi.Instance {
		t.Errorf("destroyed %+v, created %+v", destroyed, ci)
	}

	p.perform(p.destroy(p.instance(), gi))

	if !mig.SameInstances(p.expected, before) {
		t.Errorf("%+v, then %+v", before, p.expected)
	}
}

// With a driver that does not report the placements of compute instances the lists of Layouts and
// of PerformStep are the same, too.
func TestPerformStepWithoutComputePlacements(t *testing.T) {
	p := newPerformer(t)
	p.spy.noPlacements = true
	p.expected = p.layout(0).Instances
	gi := p.perform(p.instance())
	ci := p.expected[0].ComputeInstances[1]
	p.perform(p.destroy(p.createCI(p.createGI(9, 0, 4), 1, 2),
		mig.Done{Instance: p.expected[0].ID, ComputeID: gpu.Some(ci.ID)}))
	p.perform(p.destroy(p.instance(), gi))
}

// Another client has changed the GPU since the instances expected were read: nothing is changed,
// and the outcome has the current layout. A reading that only differs because it was torn is no
// change.
func TestPerformStepOnAnotherLayout(t *testing.T) {
	for about, change := range map[string]func(p *performer){
		"another instance":             func(p *performer) { p.anotherClient(19, 6) },
		"one is gone":                  func(p *performer) { must(p.t, p.Reset(0)) },
		"created again as another one": func(p *performer) { must(p.t, p.Reset(0)); p.anotherClient(9, 4) },
		"MIG is off": func(p *performer) {
			must(p.t, p.Reset(0))
			must(p.t, p.SetMIGMode(0, false))
			must(p.t, p.Reset(0))
		},
	} {
		p := newPerformer(t)
		change(p)

		for _, s := range []mig.Step{p.instance(),
			p.destroy(p.createCI(p.createGI(9, 0, 4), 0, 1), mig.Done{Instance: p.expected[0].ID})} {
			p.spy.taken()
			out, err := p.try(s)
			cmptest.Equal(t, about+": error", err, mig.ErrLayoutChanged)

			if !strings.Contains(err.Error(), string(s.GPU)) {
				t.Errorf("err.Error(): %q, want it to contain %q", err.Error(), string(s.GPU))
			}

			cmptest.Equal(t, about+": out.Done", out.Done, (mig.Done{}))
			noChange(t, p.node)
			p.sameAsLayout(out)
		}
	}

	p := newPerformer(t)
	id := gpu.InstanceID(0)
	p.spy.do("GetGpuInstances", func() { id = p.anotherClient(19, 6) }) // and is gone before the next look
	p.spy.do("GetComputeInstancesOf", func() { must(t, p.DestroyGPUInstance(0, id)) })
	p.perform(p.instance())
}

// anotherClient creates a GPU instance.
func (p *performer) anotherClient(profile uint32, start int) gpu.InstanceID {
	p.t.Helper()
	id, err := p.CreateGPUInstance(0, profile, gpu.Some(start))
	must(p.t, err)

	return id
}

// A GPU that is changed all the time has another layout than expected, but nothing can be said of
// it.
func TestPerformStepOnAGPUThatIsChangedAllTheTime(t *testing.T) {
	p := newPerformer(t)
	looks := 0
	change := func() {
		p.spy.do("GetMigMode", func() {
			must(t, p.Reset(0))
			looks++
			p.anotherClient(19, looks)
		})
	}
	change()
	p.spy.mu.Lock()
	p.spy.every = change
	p.spy.mu.Unlock()
	p.spy.taken()
	out, err := p.try(p.instance())
	cmptest.Equal(t, "error", err, mig.ErrLayoutChanged)
	cmptest.Equal(t, "whether the instances were read", out.Read, false)

	if out.Instances != nil {
		t.Errorf("out.Instances is %v, want nil", out.Instances)
	}

	cmptest.Equal(t, "times that the GPU was read", looks, 4)
	noChange(t, p.node)
}

// From the call on it is changed all the time: the step has succeeded, but the current layout is
// not known.
func TestPerformStepBeforeAGPUIsChangedAllTheTime(t *testing.T) {
	p := newPerformer(t)
	looks := 0
	change := func() {
		p.spy.do("GetMigMode", func() { looks++; p.anotherClient(19, 7-looks) })
	}
	p.spy.do("CreateGpuInstance", func() {
		must(t, p.Reset(0))
		p.spy.mu.Lock()
		p.spy.every = change
		p.spy.mu.Unlock()
	})
	out, err := p.try(p.createGI(19, 0, 1))
	cmptest.Equal(t, "error", err, gpu.ErrDriver)

	if errors.Is(err, gpu.ErrInUse) {
		t.Errorf("error %v, want another one", err)
	}

	if errors.Is(err, mig.ErrLayoutChanged) {
		t.Errorf("error %v, want another one", err)
	}

	cmptest.Equal(t, "whether the instances were read", out.Read, false)
	cmptest.Equal(t, "times that the GPU was read", looks, 4)
}

// Another client is at work in the middle of a step: the outcome has the current layout, whether
// the step succeeded or not.
func TestAnotherClientInTheMiddleOfAStep(t *testing.T) {
	p := newPerformer(t, `{gpu: 0, kind: external-reconfigure, on: destroy-ci, layout: ["7g.40gb@0"]}`)
	i := p.expected[0]
	out, err := p.try(p.destroy(p.createCI(p.createGI(9, 0, 4), 0, 1),
		mig.Done{Instance: i.ID, ComputeID: gpu.Some(i.ComputeInstances[0].ID), UUID: i.ComputeInstances[0].UUID}))
	cmptest.Equal(t, "error", err, gpu.ErrNotFound)

	if errors.Is(err, mig.ErrLayoutChanged) {
		t.Errorf("error %v, want another one", err)
	}

	cmptest.Equal(t, "whether the instances are as expected", mig.SameInstances(out.Instances, p.expected), false)
	p.sameAsLayout(out)

	p = newPerformer(t)
	p.spy.do("CreateGpuInstance", func() { p.anotherClient(19, 6) })

	out, err = p.try(p.instance())
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "len(out.Instances)", len(out.Instances), 3)

	if mig.SameInstances(out.Instances, mig.AfterStep(p.expected, p.instance(), out.Done)) {
		t.Errorf("the other client's instance is missing: %+v", out.Instances)
	}

	p.sameAsLayout(out)

	p = newPerformer(t)
	p.spy.do("CreateGpuInstance", func() { p.anotherClient(14, 4) }) // at the same place

	out, err = p.try(p.instance())
	if !errors.Is(err, gpu.ErrInsufficientResources) || len(out.Instances) != 2 {
		t.Errorf("%+v, %v", out, err)
	}

	p.sameAsLayout(out)
}

// What the driver creates elsewhere, or beside what another client has just made of the GPU, is
// found out and left as it is.
func TestCreationNotAsAsked(t *testing.T) {
	for fault, want := range map[string]error{
		"{kind: create-elsewhere, on: create-gi}":                                  mig.ErrNotAsAsked,
		"{gpu: 0, kind: external-reconfigure, on: create-gi, layout: []}":          nil,
		"{gpu: 0, kind: external-reconfigure, on: create-gi, layout: [7g.40gb@0]}": gpu.ErrInsufficientResources,
	} {
		p := newPerformer(t, fault)
		p.spy.taken()

		out, err := p.try(p.createGI(19, 6, 1))
		if !errors.Is(err, want) || mig.SameInstances(out.Instances, p.expected) {
			t.Errorf("%s: %+v, %v", fault, out, err)
		}

		if destroyed := p.spy.taken()["Instance.Destroy"]; destroyed != 0 {
			t.Errorf("%s: %d destructions", fault, destroyed)
		}

		p.sameAsLayout(out)
	}
}

// A step that fails says so, and the outcome shows that nothing has changed. What was destroyed and
// is still there is an error.
func TestStepsThatFail(t *testing.T) {
	for fault, want := range map[string]error{
		"{kind: change-fails, on: destroy-ci, after: 1, error: in-use}":                gpu.ErrInUse,
		"{kind: change-fails, on: destroy-ci, after: 1, error: no-permission}":         gpu.ErrNoPermission,
		"{kind: change-fails, on: destroy-ci, after: 1, error: timeout}":               gpu.ErrTimeout,
		"{kind: change-fails, on: destroy-ci, after: 1, error: unknown}":               gpu.ErrDriver,
		"{kind: destroy-lies, on: destroy-ci, after: 1}":                               gpu.ErrDriver,
		"{kind: destroy-lies, on: destroy-gi, gpu: 0}":                                 gpu.ErrDriver,
		"{kind: change-fails, on: create-ci, after: 1, error: insufficient-resources}": gpu.ErrInsufficientResources,
	} {
		p := newPerformer(t, fault)
		gi := p.perform(p.instance())
		ci := p.perform(p.compute())
		p.perform(p.destroy(p.compute(), ci))

		step := p.compute()
		if strings.Contains(fault, "destroy-gi") {
			step = p.destroy(p.instance(), gi)
		} else if strings.Contains(fault, "destroy-ci") {
			step = p.destroy(p.createCI(p.createGI(9, 0, 4), 1, 2), mig.Done{Instance: p.expected[0].ID})
			step.ComputeID = gpu.Some(p.expected[0].ComputeInstances[1].ID)
		}

		out, err := p.try(step)
		cmptest.Equal(t, fault+": error", err, want)
		cmptest.Equal(t, fault+": whether the instances are as expected", mig.SameInstances(out.Instances, p.expected), true)
		cmptest.Equal(t, fault+": out.Done", out.Done, mig.Done{})
		p.sameAsLayout(out)
	}
}

// After a fault that lasts, the current layout is unknown: the outcome says so, with both errors.
func TestInstancesThatCannotBeReadAfterAStep(t *testing.T) {
	for fault, want := range map[string]error{
		"{gpu: 0, kind: lost, on: create-gi}":           gpu.ErrLost,
		"{gpu: 0, kind: reset-required, on: create-gi}": gpu.ErrResetRequired,
		"{gpu: 0, kind: no-permission, on: create-gi}":  gpu.ErrNoPermission,
	} {
		p := newPerformer(t, fault)
		out, err := p.try(p.instance())
		cmptest.Equal(t, fault+": error", err, want)
		cmptest.Equal(t, fault+": out.Read", out.Read, false)

		if out.Instances != nil {
			t.Errorf("out.Instances is %v, want nil", out.Instances)
		}

		cmptest.Equal(t, fault+": number of errors", strings.Count(err.Error(), want.Error()), 2)
		p.spy.taken()

		if out, err := p.try(p.instance()); !errors.Is(err, want) || out.Read {
			t.Errorf("%s, the next step: %+v, %v", fault, out, err)
		}

		noChange(t, p.node)
	}

	p := newPerformer(t)
	p.spy.do("CreateGpuInstance", func() { p.spy.set("GetGpuInstances", nvml.ERROR_NO_PERMISSION) })
	out, err := p.try(p.instance())
	cmptest.Equal(t, "error", err, gpu.ErrNoPermission)
	cmptest.Equal(t, "whether the instances were read", out.Read, false)

	if out.Instances != nil {
		t.Errorf("out.Instances is %v, want nil", out.Instances)
	}

	p.spy.set("GetGpuInstances", nvml.SUCCESS)

	if g := p.layout(0); len(g.Instances) != 2 || g.Instances[1].ID != out.Done.Instance {
		t.Errorf("created %+v; current %+v", out.Done, g.Instances)
	}
}

// Whichever call hangs, the step is given up in time, the GPU is known to hang, and after the call
// has returned nothing is changed that was not under way.
func TestStepsThatHangInEachCall(t *testing.T) {
	create := func(p *performer) mig.Step { return p.instance() }

	destroy := func(p *performer) mig.Step {
		return p.destroy(p.createCI(p.createGI(9, 0, 4), 0, 1),
			mig.Done{Instance: p.expected[0].ID, ComputeID: gpu.Some(gpu.ComputeID(0))})
	}
	for call, step := range map[string]func(p *performer) mig.Step{
		"GetUUID": create, "GetMigMode": create, "GetGpuInstances": create, "Instance.GetInfo": destroy,
		"GetComputeInstancesOf": destroy,
		"CreateGpuInstance":     create, "Compute.Destroy": destroy,
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPerformer(t)
			a := p.source.Actuator()
			s := step(p)
			returns := make(chan struct{})
			p.spy.do(call, func() { <-returns })
			p.spy.taken()
			out, err := p.try(s)
			cmptest.Equal(t, "error", err, gpu.ErrTimeout)
			cmptest.Equal(t, "whether the instances were read", out.Read, false)
			cmptest.Equal(t, "a.Hung(p.gpu)", a.Hung(p.gpu), true)
			cmptest.Equal(t, "a.Hung(p.discover()[1])", a.Hung(p.discover()[1]), false)
			cmptest.Equal(t, "number of hung calls", a.HungCalls(), 1)

			begun := time.Now()
			if _, err := p.try(s); !errors.Is(err, gpu.ErrTimeout) || time.Since(begun) > 0 {
				t.Errorf("%s hangs; a second step: %v", call, err)
			}

			close(returns)
			synctest.Wait()

			if a.Hung(p.gpu) || a.HungCalls() != 0 {
				t.Errorf("%s has returned; %d calls hang", call, a.HungCalls())
			}

			if same := mig.SameInstances(p.layout(0).Instances, p.expected); same == (p.spy.taken()[call] > 0 && changes(call)) {
				t.Errorf("%s has returned; the same instances: %t", call, same)
			}
		})
	}
}

// changes reports whether a call is one that changes the GPU.
func changes(call string) bool { return call == "CreateGpuInstance" || call == "Compute.Destroy" }
