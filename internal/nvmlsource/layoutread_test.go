package nvmlsource_test

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestReadLayoutReadsNoReadings: it finds the instances that a Read finds, and leaves to the next Read what that does anew
// after a change of the layout.
func TestReadLayoutReadsNoReadings(t *testing.T) {
	b := newBench(t, nil)
	b.poll(0)
	inventory, err := b.source.Discover()
	if err != nil {
		t.Fatal(err)
	}
	id := inventory.GPUs[0].UUID
	if err := b.Advance(repartitionAt); err != nil {
		t.Fatal(err)
	}
	b.calls.taken()

	layout, whole, err := b.source.ReadLayout(id)
	if err != nil || whole || len(layout.Errors) > 0 {
		t.Fatalf("whole %v, errors %v, %v", whole, layout.Errors, err)
	}
	for c := range b.calls.taken() {
		switch c.function {
		case "nvmlDeviceGetMemoryErrorCounter", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetComputeRunningProcesses":
			t.Errorf("%s is called", c.function)
		}
	}

	g, err := b.source.Read(id)
	if err != nil {
		t.Fatal(err)
	}
	slow := 0
	for c := range b.calls.taken() {
		if c.function == "nvmlDeviceGetMemoryErrorCounter" {
			slow++
		}
	}
	if slow == 0 {
		t.Error("the slow tier is not read after a change of the layout")
	}
	cmptest.Equal(t, "instances", len(layout.Instances), 3)
	cmptest.Equal(t, "MIG mode", layout.MIG, g.MIG)
	for i := range g.Instances {
		cmptest.Equal(t, "memory used", layout.Instances[i].Memory.Used.Present(), false)
		g.Instances[i].Memory, g.Instances[i].Processes = gpu.Memory{}, gpu.None[int]()
		for c := range g.Instances[i].ComputeInstances {
			g.Instances[i].ComputeInstances[c].Processes = gpu.None[int]()
		}
	}
	cmptest.Equal(t, "layout", layout.Instances, g.Instances)
}

// TestReadLayoutOfAnUnreadGPU: nothing is known of the GPU, so that everything is read.
func TestReadLayoutOfAnUnreadGPU(t *testing.T) {
	b := newBench(t, nil)
	inventory, err := b.source.Discover()
	if err != nil {
		t.Fatal(err)
	}
	g, whole, err := b.source.ReadLayout(inventory.GPUs[0].UUID)
	if err != nil || !whole {
		t.Fatalf("whole %v, %v", whole, err)
	}
	cmptest.Equal(t, "power", g.Readings.PowerWatts.Present(), true)
	if _, _, err := b.source.ReadLayout("GPU-none"); err == nil {
		t.Error("a GPU that isn't listed is read")
	}
}
