package nvmlsource_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestReadLayoutReadsNoReadings: it finds the instances that a Read finds, and leaves to the next
// Read what that does anew after a change of the layout.
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

	layout, whole, err := b.source.ReadLayout(id, gpu.ReadCues{Asked: true})
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

	g, whole, err := b.source.ReadLayout(inventory.GPUs[0].UUID, gpu.ReadCues{Asked: true})
	if err != nil || !whole {
		t.Fatalf("whole %v, %v", whole, err)
	}

	cmptest.Equal(t, "power", g.Readings.PowerWatts.Present(), true)

	if _, _, err := b.source.ReadLayout("GPU-none", gpu.ReadCues{Asked: true}); err == nil {
		t.Error("a GPU that isn't listed is read")
	}
}

// TestReadLayoutKeepsErrors: why instances may be missing from a GPU, or what could be created on
// it is unknown, is in the errors of its layout as in those of a Read.
func TestReadLayoutKeepsErrors(t *testing.T) {
	for name, denied := range map[string][]string{
		"placements":               {"GetGpuInstancePossiblePlacements"},
		"instances and placements": {"GetGpuInstancePossiblePlacements", "GetGpuInstances"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "", twoCIs)
			for _, call := range denied {
				n.spy.set(call, nvml.ERROR_NO_PERMISSION)
			}

			id := n.discover()[0]
			n.read(id)

			texts := func(errs []gpu.ReadError) (list []string) {
				for _, e := range errs {
					if e.Reading == gpu.ReadingMIG {
						list = append(list, fmt.Sprint(e.Err, e.Remembered))
					}
				}

				slices.Sort(list)

				return list
			}
			want := texts(n.read(id).Errors)

			layout, whole, err := n.source.ReadLayout(id, gpu.ReadCues{Asked: true})
			if err != nil || whole || len(want) == 0 {
				t.Fatalf("whole %v, errors %v, %v", whole, want, err)
			}

			cmptest.Equal(t, "errors", texts(layout.Errors), want)
		})
	}
}
