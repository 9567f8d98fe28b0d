package sim

import (
	"sync"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// All methods may be called at once; the race detector judges, and the node must be consistent
// afterwards.
func TestConcurrentUse(t *testing.T) {
	n := shipped(t, "dgx-a100-mixed")
	q := n.Subscribe()
	defer q.Close()

	if err := q.Watch(7, gpu.EventMIGChange); err != nil {
		t.Fatal(err)
	}

	var callers sync.WaitGroup
	repeat := func(do func() error) {
		callers.Go(func() {
			for range 50 {
				if err := do(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	repeat(func() error { return n.Advance(time.Second) })
	repeat(func() error {
		n.Containers()
		n.Allocatable()
		n.Records()

		return nil
	})

	for i := range n.Count() {
		repeat(func() error { _, err := n.Read(i, gpu.ReadingPower); return err })
	}

	repeat(func() error {
		id, err := n.CreateGPUInstance(7, 9, gpu.None[int]())
		if err != nil {
			return err
		}

		ci, err := n.CreateComputeInstance(7, id, 3)
		if err != nil {
			return err
		}

		if err := n.DestroyComputeInstance(7, id, ci); err != nil {
			return err
		}

		return n.DestroyGPUInstance(7, id)
	})
	callers.Wait()

	if s := state(t, n, 7); len(s.Instances) != 0 || s.Time.Sub(StepStart()) != 50*time.Second {
		t.Errorf("%s: instances %+v", s.Time, s.Instances)
	}

	for events := 0; ; events++ {
		if _, err := q.Next(0); err != nil {
			if events != 200 {
				t.Errorf("%d events of 200 changes", events)
			}

			break
		}
	}
}
