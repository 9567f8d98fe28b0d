package sim

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// faulty is a node with four GPUs and the given faults.
func faulty(t *testing.T, faults string) *Node {
	t.Helper()
	return start(t, "version: 1\ngpus: [{model: H100-80GB, count: 4}]\nfaults:\n"+faults)
}

func TestHangHoldsCallsUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := faulty(t, "  - {at: 10s, for: 30s, gpu: 2, kind: hang}\n")
		advance(t, n, 15*time.Second)
		done := make(chan error, 1)
		go func() {
			_, err := n.Read(2, gpu.ReadingPower)
			done <- err
		}()
		state(t, n, 1) // the others answer
		advance(t, n, 20*time.Second)
		synctest.Wait()

		select {
		case err := <-done:
			t.Fatalf("the call returned in the fault: %v", err)
		default:
		}

		advance(t, n, 5*time.Second)

		if err := <-done; err != nil {
			t.Errorf("after the fault: %v", err)
		}
	})
}

func TestCloseReleasesHungCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := faulty(t, "  - {kind: driver-lock}\n")
		done := make(chan error, 4)

		for i := range 4 {
			go func() {
				_, err := n.Read(i, gpu.ReadingPower)
				done <- err
			}()
		}

		if err := n.Driver(); err != nil {
			t.Errorf("the driver as a whole: %v", err)
		}

		synctest.Wait()

		if err := n.Close(); err != nil {
			t.Fatal(err)
		}

		for range 4 {
			if err := <-done; !errors.Is(err, ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		}
	})
}

func TestHangOnARunningClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Parse("test.yaml", []byte("version: 1\ngpus: [{model: A30}]\nfaults: [{for: 1h, kind: hang}]\n"))
		if err != nil {
			t.Fatal(err)
		}

		n, err := New(s, NewClock(ClockX60))
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		begin := time.Now()
		state(t, n, 0)

		if took := time.Since(begin); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("took %s, want the minute that an hour takes", took)
		}
	})
}

func TestSlowTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := faulty(t, "  - {gpu: 1, kind: slow, delay: 300ms}\n")
		begin := time.Now()
		state(t, n, 1)

		if took := time.Since(begin); took != 300*time.Millisecond {
			t.Errorf("took %s", took)
		}

		state(t, n, 0)

		if took := time.Since(begin); took != 300*time.Millisecond {
			t.Errorf("another GPU is slow too")
		}
	})
}

func TestFaultsThatFailCalls(t *testing.T) {
	for _, tc := range []struct {
		fault   string
		index   int
		reading gpu.Reading
		want    error
	}{
		{"{gpu: 1, kind: lost}", 1, gpu.ReadingPower, gpu.ErrLost},
		{"{gpu: 1, kind: lost}", 0, gpu.ReadingPower, nil},
		{"{gpu: 1, kind: reset-required}", 1, gpu.ReadingDevice, gpu.ErrResetRequired},
		{"{gpu: 1, kind: not-supported, reading: power}", 1, gpu.ReadingPower, gpu.ErrNotSupported},
		{"{gpu: 1, kind: not-supported, reading: power}", 1, gpu.ReadingEnergy, nil},
		{"{kind: no-permission, reading: ecc}", 3, gpu.ReadingECC, gpu.ErrNoPermission},
		{"{kind: version-mismatch}", 0, gpu.ReadingDevice, gpu.ErrVersionMismatch},
		{"{at: 1h, kind: version-mismatch}", 0, gpu.ReadingDevice, nil},
		{"{kind: no-driver}", 3, gpu.ReadingPower, gpu.ErrNoDriver},
		{"{for: 1s, kind: no-driver}", 3, gpu.ReadingPower, nil},
		{"{for: 1s, gpu: 0, kind: lost}", 0, gpu.ReadingDevice, nil},
	} {
		n := faulty(t, "  - "+tc.fault+"\n")
		advance(t, n, time.Second)

		if _, err := n.Read(tc.index, tc.reading); !errors.Is(err, tc.want) {
			t.Errorf("%s: %s of GPU %d: %v, want %v", tc.fault, tc.reading, tc.index, err, tc.want)
		}
	}

	n := faulty(t, "  - {kind: version-mismatch}\n  - {gpu: 0, kind: lost}\n")
	if err := n.Driver(); !errors.Is(err, gpu.ErrVersionMismatch) {
		t.Errorf("the driver as a whole: %v", err)
	}

	if err := faulty(t, "  - {kind: no-driver}\n  - {kind: lost}\n").Driver(); !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("the driver as a whole: %v", err)
	}

	if _, err := n.Read(4, gpu.ReadingDevice); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("a GPU that is not there: %v", err)
	}
}

func TestNoPermissionTakesRightsAway(t *testing.T) {
	n := faulty(t, "  - {at: 1s, for: 1s, gpu: 1, kind: no-permission}\n")
	for _, want := range []bool{true, false, true} {
		if s := state(t, n, 1); s.Privileged != want {
			t.Errorf("%s: privileged %v", s.Time, s.Privileged)
		}

		advance(t, n, time.Second)
	}
}

func TestXID(t *testing.T) {
	n := faulty(t,
		"  - {at: 5s, for: 10s, gpu: 1, kind: xid, xid: 48, recovery: reset}\n  - {at: 6s, gpu: 1, kind: xid, xid: 63}\n")
	q := n.Subscribe()
	defer q.Close()

	if err := q.Watch(1, gpu.EventXID); err != nil {
		t.Fatal(err)
	}

	advance(t, n, 7*time.Second)

	for _, want := range []uint64{48, 63} {
		e, err := q.Next(0)
		if err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "XID", e.XID, want)
		cmptest.Equal(t, "its GPU", e.GPU, 1)
		cmptest.Equal(t, "its GPU instance", e.Instance, gpu.None[gpu.InstanceID]())
	}

	s := state(t, n, 1)
	rows, ok := s.Remapped.Get()
	cmptest.Equal(t, "remapped rows are reported", ok, true)
	cmptest.Equal(t, "uncorrectable remapped rows", rows.Uncorrectable, 1)
	cmptest.Equal(t, "a remapping is pending", rows.Pending, true)
	cmptest.Equal(t, "uncorrected errors since the boot and ever",
		[2]uint64{s.ECC.UncorrectedVolatile, s.ECC.UncorrectedAggregate}, [2]uint64{1, 1})
	cmptest.Equal(t, "recovery", s.Recovery, gpu.RecoveryReset)
	advance(t, n, 10*time.Second)

	if s := state(t, n, 1); s.Recovery != gpu.RecoveryNone {
		t.Errorf("recovery %s after the fault", s.Recovery)
	}
}

func TestExternalReconfigure(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}]
workloads: [{name: w, memory: 1GiB, sm: 10}]
pods: [{name: p, resource: nvidia.com/mig-3g.20gb, workload: w}]
faults: [{at: 10s, gpu: 0, kind: external-reconfigure, layout: ["7g.40gb@0"]}]
`)
	q := n.Subscribe()
	defer q.Close()

	if err := q.Watch(0, gpu.EventMIGChange); err != nil {
		t.Fatal(err)
	}

	old := mustContainer(t, n, "p").Devices[0].IDs[0]
	advance(t, n, 10*time.Second)

	if _, err := q.Next(0); err != nil {
		t.Errorf("no event: %v", err)
	}

	s := state(t, n, 0)
	if len(s.Instances) != 1 {
		t.Fatalf("instances %+v, want one", s.Instances)
	}

	cmptest.Equal(t, "profile", s.Instances[0].Profile.Name, "7g.40gb")
	cmptest.Equal(t, "processes", len(s.Processes), 0)

	c := mustContainer(t, n, "p")
	if c.Devices[0].IDs[0] != old || len(c.PIDs) != 0 {
		t.Errorf("the pod has %v and processes %v; want the id that it was given and none", c.Devices, c.PIDs)
	}
}

// TestNoSuchGPU: an index that no GPU has is an error, also the one that stands for the driver as a
// whole.
func TestNoSuchGPU(t *testing.T) {
	n := start(t, "version: 1\ngpus: [{model: A30}]\n")
	for _, index := range []int{-1, n.Count(), 1 << 31} {
		if _, err := n.Read(index, gpu.ReadingDevice); !errors.Is(err, gpu.ErrInvalidArgument) {
			t.Errorf("read GPU %d: %v", index, err)
		}
	}

	if err := n.Driver(); err != nil {
		t.Error(err)
	}
}
