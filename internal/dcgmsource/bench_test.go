package dcgmsource

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// BenchmarkPoll is what one cycle costs the exporter by go-dcgm, with an engine that answers at
// once: 8 GPUs of 7 slices, each with one compute instance or two.
func BenchmarkPoll(b *testing.B) {
	file := filepath.Join(b.TempDir(), libraryName)
	buildEngine(b, file)

	if handle, text := openLibrary(file); handle == nil { // go-dcgm finds it by its name from now on
		b.Fatal(text)
	}

	for _, perInstance := range []int{1, 2} {
		b.Run(fmt.Sprintf("computes=%d", perInstance), func(b *testing.B) {
			b.Setenv("STUB_GPUS", "8")
			b.Setenv("STUB_INSTANCES", "7")
			b.Setenv("STUB_COMPUTES", fmt.Sprint(perInstance))
			node := &gpu.Snapshot{}

			for i := range 8 {
				g := gpu.GPU{Facts: gpu.Facts{UUID: gpu.UUID(fmt.Sprintf("GPU-00000000-0000-0000-0000-%012x", i)), Index: i},
					Device: gpu.Device{Up: true}}

				g.MIG = gpu.MIGState{Enabled: gpu.Some(true), LayoutGeneration: 1}
				for gi := range 7 {
					one := gpu.GPUInstance{ID: gpu.InstanceID(gi + 1), ComputeSlices: gpu.Some(perInstance),
						Placement: gpu.Some(gpu.Placement{Start: gi, Size: 1})}
					for c := range perInstance {
						one.ComputeInstances = append(one.ComputeInstances,
							gpu.ComputeInstance{ID: gpu.ComputeID(c), ComputeSlices: gpu.Some(1)})
					}

					g.Instances = append(g.Instances, one)
				}

				node.GPUs = append(node.GPUs, g)
			}

			ahead := time.Duration(0)
			s := New(Open(ModeEmbedded, ""),
				Options{Mode: ModeEmbedded, Now: func() time.Time { return time.Now().Add(-ahead) }})
			defer s.Close(b.Context())
			ahead = 10 * time.Second
			ask := func() map[gpu.UUID]gpu.Profiling {
				answer, err := s.Profile(node)
				if err != nil {
					b.Fatal(err)
				}

				return answer
			}
			ask()
			ahead = 0
			ask()
			ask()

			if got := ask()[node.GPUs[7].UUID]; len(got.Instances) != 7 || len(got.ComputeInstances) != 7*perInstance {
				b.Fatalf("%d instances, %d compute instances", len(got.Instances), len(got.ComputeInstances))
			}

			b.ReportAllocs()

			before := processorTime(b)
			for b.Loop() {
				ask()
			}

			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// processorTime is what the process has used, its garbage collector included.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}

	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
