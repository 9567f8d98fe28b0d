package kubelet_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

func simulated(t *testing.T, text string) *sim.Node {
	t.Helper()

	scenario, err := sim.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	n, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	return n
}

// heldDevice returns the one device that is held.
func heldDevice(t *testing.T, c *podresources.Client) gpu.DeviceRef {
	t.Helper()

	held, err := c.List(within(t))
	if err != nil {
		t.Fatal(err)
	}

	if len(held.List) != 1 {
		t.Fatalf("held: %+v, want one device", held.List)
	}

	return held.List[0].Device
}

// TestAllocatableFollowsALayoutChange: what was destroyed is gone from the answer, what was created
// is in it, held or not.
func TestAllocatableFollowsALayoutChange(t *testing.T) {
	n := simulated(t, `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4", "1g.5gb@0"]}, {model: A100-40GB}]
workloads: [{name: w, memory: 4GiB, sm: 20}]
pods: [{name: held, resource: nvidia.com/mig-3g.20gb, workload: w}]
`)
	c := client(t, serve(t, n).Socket())
	allocatable := func() []gpu.Offer {
		t.Helper()

		got, err := c.Allocatable(within(t))
		if err != nil {
			t.Fatal(err)
		}

		return got
	}

	before := allocatable()
	if len(before) != 3 {
		t.Fatalf("got %+v, want two MIG devices and a GPU", before)
	}

	offer := gpu.Offer{Device: heldDevice(t, c), Resource: "nvidia.com/mig-3g.20gb"}
	if !slices.Contains(before, offer) {
		t.Fatalf("what is held, %+v, is not allocatable: %+v", offer, before)
	}

	gpu0, err := n.Read(0, gpu.ReadingMIG)
	if err != nil {
		t.Fatal(err)
	}

	for _, i := range gpu0.Instances {
		if i.Placement.Start != 0 {
			continue
		}

		if err := errors.Join(n.DestroyComputeInstance(0, i.ID, i.ComputeInstances[0].ID),
			n.DestroyGPUInstance(0, i.ID)); err != nil {
			t.Fatal(err)
		}
	}

	if got := allocatable(); len(got) != 2 {
		t.Errorf("after a destruction: %+v", got)
	}

	id, err := n.CreateGPUInstance(0, 14, gpu.Some(0)) // 2g.10gb
	if err != nil {
		t.Fatal(err)
	}

	if got := allocatable(); len(got) != 2 {
		t.Errorf("a GPU instance without a compute instance is allocatable: %+v", got)
	}

	if _, err := n.CreateComputeInstance(0, id, 2); err != nil {
		t.Fatal(err)
	}

	after := allocatable()
	cmptest.Equal(t, "devices afterwards", len(after), 3)

	if slices.Equal(after, before) {
		t.Errorf("afterwards %+v, as before", after)
	}

	if !slices.Contains(after, offer) {
		t.Errorf("what is held, %+v, is no longer allocatable: %+v", offer, after)
	}
}

func TestAllocatableWithoutADevicePlugin(t *testing.T) {
	n := simulated(t, "version: 1\nnode: {allocator: dra}\ngpus: [{model: A100-40GB}]\n")

	c := client(t, serve(t, n).Socket())
	if got, err := c.Allocatable(within(t)); err != nil || len(got) != 0 {
		t.Errorf("got %+v, %v, want nothing", got, err)
	}
}

func TestAllocatableOfAKubeletInTrouble(t *testing.T) {
	s := serve(t, &fakeNode{})
	c := client(t, s.Socket())
	follow := func(state sim.KubeletState) {
		t.Helper()

		if err := s.Follow(state); err != nil {
			t.Fatal(err)
		}
	}
	follow(sim.KubeletState{Down: true})

	if _, err := c.Allocatable(within(t)); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("while it is down: %v", err)
	}

	if _, err := c.List(within(t)); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("the backoff is not shared: %v", err)
	}

	follow(sim.KubeletState{Restarts: 1})

	if got, err := c.Allocatable(within(t)); err != nil || len(got) != 2 {
		t.Errorf("after a restart: %+v, %v", got, err)
	}

	follow(sim.KubeletState{Restarts: 1, Delay: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()

	if _, err := c.Allocatable(ctx); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("while it is slow: %v", err)
	}
}
