package main

import (
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A misspelled name would be a function that cannot be called.
func TestTablesNameFunctions(t *testing.T) {
	names := functionNames()

	answered := tables()
	for name := range initCalls() {
		if answered[name] != nil {
			t.Errorf("%s is in two tables", name)
		}

		answered[name] = initCalls()[name]
	}

	for name := range answered {
		if !slices.Contains(names, name) {
			t.Errorf("%s is no function of nvml.h", name)
		}
	}

	if len(answered) < 130 {
		t.Errorf("only %d functions are answered", len(answered))
	}
}

func TestHandlesKeepTheirMeaning(t *testing.T) {
	seen := make(map[uintptr]bool)

	for kind := aGPU; kind <= aSystemEventSet; kind++ {
		for _, index := range []int{0, 1, 7, maxGPUs - 1} {
			for _, gi := range []gpu.InstanceID{0, 1, 14, maxInstances - 1} {
				for _, ci := range []gpu.ComputeID{0, maxComputeInstances - 1} {
					h := handle{kind, index, gi, ci}
					if got, ok := handleOf(h.raw()); !ok || got != h {
						t.Errorf("%+v becomes %+v, %t", h, got, ok)
					}

					if seen[h.raw()] {
						t.Errorf("%+v has the same form as another handle", h)
					}

					seen[h.raw()] = true
				}
			}
		}
	}

	last := handle{aSystemEventSet, maxGPUs - 1, maxInstances - 1, maxComputeInstances - 1}.raw()
	for _, raw := range []uintptr{0, 1, handle{}.raw() - 1, last + 1, ^uintptr(0)} {
		if h, ok := handleOf(raw); ok {
			t.Errorf("%#x stands for %+v", raw, h)
		}
	}
}
