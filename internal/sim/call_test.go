package sim

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// repartitioning is a node with two GPUs that can be partitioned, in the mode and the layout that
// most tests begin with.
func repartitioning(t *testing.T, faults string) *Node {
	t.Helper()

	return start(t,
		"version: 1\ngpus: [{model: A100-40GB, count: 2, mig: true, layout: [\"3g.20gb@0\"]}]\nfaults:\n"+faults)
}

// attempts makes the same call again and again, and returns what came of it.
func attempts(times int, do func() error) (errs []error) {
	for range times {
		errs = append(errs, do())
	}

	return errs
}

// wantErrors holds errors to sentinels, nil to none.
func wantErrors(t *testing.T, got []error, want ...error) {
	t.Helper()

	if !slices.EqualFunc(got, want,
		func(e, sentinel error) bool { return errors.Is(e, sentinel) && (e == nil) == (sentinel == nil) }) {
		t.Errorf("errors %v, want %v", got, want)
	}
}

func TestChangesThatFail(t *testing.T) {
	n := repartitioning(t,
		"  - {gpu: 0, kind: change-fails, on: create-gi, after: 1, times: 2, error: insufficient-resources}\n")
	id := func(index int, start int) func() error {
		return func() error {
			id, err := n.CreateGPUInstance(index, 19, gpu.Some(start))
			if err == nil {
				err = n.DestroyGPUInstance(index, id)
			}

			return err
		}
	}
	none := gpu.ErrInsufficientResources
	wantErrors(t, attempts(5, id(0, 5)), nil, none, none, nil, nil)
	wantErrors(t, attempts(2, id(1, 5)), nil, nil)

	if s := state(t, n, 0); len(s.Instances) != 1 {
		t.Errorf("%d instances: a creation that failed has made one", len(s.Instances))
	}
}

func TestInstanceThatStaysInUse(t *testing.T) {
	n := repartitioning(t, "  - {kind: change-fails, on: destroy-gi, times: 2, error: in-use}\n")

	i := state(t, n, 0).Instances[0]
	if err := n.DestroyComputeInstance(0, i.ID, 0); err != nil {
		t.Fatal(err)
	}

	wantErrors(t, attempts(4, func() error { return n.DestroyGPUInstance(0, i.ID) }), gpu.ErrInUse, gpu.ErrInUse, nil,
		gpu.ErrNotFound)
}

func TestCreationElsewhere(t *testing.T) {
	n := repartitioning(t, "  - {kind: create-elsewhere, on: create-gi}\n  - {kind: create-elsewhere, on: create-ci}\n")
	old := state(t, n, 0).Instances[0].ID

	id, err := n.CreateGPUInstance(0, 19, gpu.Some(6))
	if err == nil {
		err = n.DestroyComputeInstance(0, old, 0)
	}

	if err == nil {
		_, err = n.CreateComputeInstanceAt(0, old, 1, gpu.Some(0))
	}

	if err != nil {
		t.Fatal(err)
	}

	s := state(t, n, 0)
	made, _ := s.Instance(id)

	parent, _ := s.Instance(old)
	if made.Placement.Start == 6 || parent.ComputeInstances[0].Placement.Start == 0 {
		t.Errorf("made at %v, %v", made.Placement, parent.ComputeInstances[0].Placement)
	}
}

func TestProcessThatStartsInTheLastMoment(t *testing.T) {
	n := repartitioning(t, "  - {gpu: 0, kind: process-starts}\n")
	i := state(t, n, 0).Instances[0]
	wantErrors(t, attempts(2, func() error { return n.DestroyComputeInstance(0, i.ID, 0) }), gpu.ErrInUse, gpu.ErrInUse)

	s := state(t, n, 0)
	if len(s.Processes) != 1 {
		t.Fatalf("processes %+v, want one", s.Processes)
	}

	cmptest.Equal(t, "GPU instance of the process", s.Processes[0].Instance, gpu.Some(i.ID))
	cmptest.Equal(t, "compute instance of the process", s.Processes[0].Compute, gpu.Some(gpu.ComputeID(0)))
}

// Faults that last begin with the call that they have waited for, and strike it.
func TestFaultsInTheMiddleOfChanges(t *testing.T) {
	for _, tc := range []struct {
		fault string
		want  error
	}{
		{"{gpu: 0, kind: lost, on: change, after: 2}", gpu.ErrLost},
		{"{gpu: 0, kind: reset-required, on: change, after: 2}", gpu.ErrResetRequired},
		{"{gpu: 0, kind: no-permission, on: change, after: 2}", gpu.ErrNoPermission},
		{"{gpu: 0, kind: external-reconfigure, on: create-gi, after: 1, layout: [\"7g.40gb@0\"]}",
			gpu.ErrInsufficientResources},
	} {
		n := repartitioning(t, "  - "+tc.fault+"\n")

		id, err := n.CreateGPUInstance(0, 19, gpu.Some(5))
		if err == nil {
			_, err = n.CreateComputeInstance(0, id, 1)
		}

		if err != nil {
			t.Fatalf("%s: %v", tc.fault, err)
		}

		state(t, n, 0)

		if _, err := n.CreateGPUInstance(0, 19, gpu.Some(6)); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.fault, err)
		}

		state(t, n, 1)

		if _, err := n.CreateGPUInstance(1, 19, gpu.Some(6)); err != nil {
			t.Errorf("%s: the other GPU: %v", tc.fault, err)
		}
	}
}

func TestXIDInTheMiddleOfAChange(t *testing.T) {
	n := repartitioning(t, "  - {gpu: 0, kind: xid, xid: 48, on: create-gi}\n")
	if _, err := n.CreateGPUInstance(0, 19, gpu.Some(6)); err != nil {
		t.Fatal(err)
	}

	if s := state(t, n, 0); s.ECC.UncorrectedVolatile != 1 {
		t.Errorf("ECC %+v", s.ECC)
	}
}

func TestChangeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := repartitioning(t, "  - {gpu: 0, kind: hang, on: create-gi, for: 10s}\n")
		done := make(chan error, 1)
		go func() {
			_, err := n.CreateGPUInstance(0, 19, gpu.Some(6))
			done <- err
		}()
		synctest.Wait()

		select {
		case err := <-done:
			t.Fatalf("it did not hang: %v", err)
		default:
		}

		advance(t, n, 10*time.Second)

		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Counts of calls are shared, whichever process made the call, and a late one goes through all of
// them.
func TestFaultsOfChangesAreShared(t *testing.T) {
	s, err := Parse("test.yaml", []byte(`
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0"]}]
faults:
- {kind: change-fails, on: create-gi, after: 1, times: 2, error: unknown}
- {gpu: 0, kind: process-starts}
`))
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "state")
	join := func() *Node {
		n, err := Join(s, ClockStep, path)
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { n.Close() })

		return n
	}
	a := join()
	b := join()
	create := func(n *Node, start int) error {
		_, err := n.CreateGPUInstance(0, 19, gpu.Some(start))
		return err
	}
	wantErrors(t, []error{create(a, 4), create(b, 5), create(a, 5), create(b, 5)}, nil, gpu.ErrDriver, gpu.ErrDriver, nil)
	i := state(t, a, 0).Instances[0]
	wantErrors(t, []error{a.DestroyComputeInstance(0, i.ID, 0)}, gpu.ErrInUse)
	same(t, a, b)
	same(t, b, join())

	if err := b.Reboot(); err != nil {
		t.Fatal(err)
	}

	same(t, a, b)
	after := state(t, a, 0)
	cmptest.Equal(t, "instances and processes after a reboot", [2]int{len(after.Instances), len(after.Processes)},
		[2]int{})
	cmptest.Equal(t, "MIG is on after a reboot", after.MIGEnabled, true)
}

func TestReboot(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0"]}, {model: A100-40GB, mig: pending}, {model: H100-80GB, mig: true, layout: ["3g.40gb@0"]}]
workloads: [{name: work, memory: 1GiB, sm: 10}]
processes: [{device: "0/3g.20gb@0/0", workload: work}]
faults: [{at: 10s, kind: reboot}]
`)
	advance(t, n, 10*time.Second)

	for index, on := range []bool{true, true, false} {
		s := state(t, n, index)
		cmptest.Equal(t, fmt.Sprintf("MIG of GPU %d now and pending", index), [2]bool{s.MIGEnabled, s.MIGPending},
			[2]bool{on, on})
		cmptest.Equal(t, fmt.Sprintf("instances and processes of GPU %d", index), [2]int{len(s.Instances), len(s.Processes)},
			[2]int{})
	}
}

// A MIG mode that cannot be had now is pending, and comes with the next reset.
func TestPendingMode(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: H100-80GB}, {model: H100-80GB}, {model: H100-80GB}]
workloads: [{name: work, memory: 1GiB, sm: 10}]
processes: [{gpu: 0, workload: work, for: 5s}]
faults: [{gpu: 1, kind: change-fails, on: mig-mode, error: reset-required}, {gpu: 2, kind: change-fails, on: mig-mode, error: in-use}]
`)
	for index, want := range []error{gpu.ErrInUse, nil, gpu.ErrInUse} {
		wantErrors(t, []error{n.SetMIGMode(index, true)}, want)

		if s := state(t, n, index); s.MIGEnabled || !s.MIGPending {
			t.Errorf("GPU %d: MIG %v, %v", index, s.MIGEnabled, s.MIGPending)
		}
	}

	advance(t, n, 5*time.Second)

	for index := range 3 {
		if err := n.Reset(index); err != nil {
			t.Fatal(err)
		}

		if !state(t, n, index).MIGEnabled {
			t.Errorf("GPU %d is not in MIG mode after a reset", index)
		}
	}
}
