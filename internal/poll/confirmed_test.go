package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestFreeByConfirmation: while we do not know who holds devices, those that an operator has
// confirmed to be free are marked, and what is free once it is known is not.
func TestFreeByConfirmation(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	src.gpus[uuidA] = migGPU()
	pods := &fakePods{list: gpu.Assignments{Incomplete: "the kubelet has restarted",
		Free: []gpu.DeviceRef{{MIG: "MIG-3"}, {GPU: uuidB}}}}
	h := newHarness(t, src, func(o *Options) { o.Pods = pods })
	defer h.startLoop()()
	s := h.pollAfter(time.Second)

	a := findGPU(t, s, uuidA)

	b := findGPU(t, s, uuidB)
	if !b.ConfirmedFree || a.ConfirmedFree {
		t.Errorf("GPUs: %v of the one that was confirmed, %v of the other", b.ConfirmedFree, a.ConfirmedFree)
	}

	for i := range a.Instances {
		gi := &a.Instances[i]

		want := gi.ComputeInstances[0].UUID == "MIG-3"
		if gi.ConfirmedFree != want || gi.ComputeInstances[0].ConfirmedFree != want {
			t.Errorf("GPU instance %d: %v, its compute instance %v; want %v", gi.ID, gi.ConfirmedFree,
				gi.ComputeInstances[0].ConfirmedFree, want)
		}
	}

	pods.list = gpu.Assignments{}
	s = h.pollAfter(time.Second)
	a, b = findGPU(t, s, uuidA), findGPU(t, s, uuidB)
	got := []bool{a.ConfirmedFree, b.ConfirmedFree, a.Instances[0].ConfirmedFree}
	cmptest.Equal(t, "confirmed with a complete list: A, B, an instance of A", got, []bool{false, false, false})
	cmptest.Equal(t, "B is allocated", b.Allocated, gpu.Some(false))
}

// TestFreeByConfirmationWithoutAKubelet: what an operator has confirmed doesn't depend on when the
// kubelet answered.
func TestFreeByConfirmationWithoutAKubelet(t *testing.T) {
	src := newFakeSource(uuidA)
	src.gpus[uuidA] = migGPU()
	pods := &fakePods{err: gpu.ErrUnavailable, list: gpu.Assignments{Incomplete: "the kubelet does not answer",
		Free: []gpu.DeviceRef{{MIG: "MIG-3"}}}}
	h := newHarness(t, src, func(o *Options) { o.Pods = pods })
	defer h.startLoop()()

	a := findGPU(t, h.pollAfter(time.Second), uuidA)
	for i := range a.Instances {
		ci := &a.Instances[i].ComputeInstances[0]

		want := gpu.None[bool]()
		if ci.UUID == "MIG-3" {
			want = gpu.Some(false)
		}

		cmptest.Equal(t, "allocated: "+string(ci.UUID), ci.Allocated, want)
		cmptest.Equal(t, "confirmed: "+string(ci.UUID), ci.ConfirmedFree, want.Present())
	}
}
