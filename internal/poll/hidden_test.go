package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestSharingByWhatIsKnown: a list of processes that is unknown has no client of MPS, and is no
// evidence of time-slicing.
func TestSharingByWhatIsKnown(t *testing.T) {
	known := gpu.Some([]gpu.Process{})
	clients := gpu.Some([]gpu.Process{{PID: 7, MPS: true}})

	var hidden gpu.Opt[[]gpu.Process]
	for _, tt := range []struct {
		mode      gpu.Opt[bool]
		processes gpu.Opt[[]gpu.Process]
		want      gpu.Sharing
	}{
		{gpu.None[bool](), hidden, gpu.SharingUnknown},
		{gpu.Some(true), hidden, gpu.SharingMPS},
		{gpu.Some(false), hidden, gpu.SharingUnknown},
		{gpu.Some(false), known, gpu.SharingTimeSlicing},
		{gpu.None[bool](), known, gpu.SharingTimeSlicing},
		{gpu.None[bool](), clients, gpu.SharingMPS},
	} {
		g := gpu.GPU{Readings: gpu.Readings{SlowReadings: gpu.SlowReadings{ExclusiveComputeMode: tt.mode}, Processes: tt.processes}}

		whole := gpu.Visit{Device: &g.Device, GPU: &g}
		if got := replicaSharing(whole, gpu.Holder{Resource: "nvidia.com/gpu"}); got != tt.want {
			t.Errorf("mode %v, processes %v: %s, want %s", tt.mode, tt.processes, got, tt.want)
		}
	}
}

// TestMemoryOfAPartByWhatIsKnown: nothing runs on a part of an instance if the list of processes
// says so, not if there is none.
func TestMemoryOfAPartByWhatIsKnown(t *testing.T) {
	g := migGPU()
	for _, tt := range []struct {
		processes gpu.Opt[[]gpu.Process]
		want      gpu.Opt[uint64]
	}{
		{g.Readings.Processes, gpu.Some(uint64(150))},
		{gpu.Some([]gpu.Process{}), gpu.Some(uint64(0))},
		{gpu.None[[]gpu.Process](), gpu.None[uint64]()},
	} {
		g.Readings.Processes = tt.processes
		if got := memoryOfProcesses(&g, 2, 0); got != tt.want {
			t.Errorf("processes %v: memory %v, want %v", tt.processes, got, tt.want)
		}
	}
}

// TestAllocationBesideHiddenDevices: a GPU none of whose instances show is not free if they are
// denied; one that has none is, and one of which a holder is known is held.
func TestAllocationBesideHiddenDevices(t *testing.T) {
	held := []gpu.Assignment{newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "p", 1)}
	for _, tt := range []struct {
		what   string
		hidden bool
		list   []gpu.Assignment
		seen   bool
		want   gpu.Opt[bool]
	}{
		{"no instance", false, nil, false, gpu.Some(false)},
		{"none shows", true, nil, false, gpu.None[bool]()},
		{"none of those that show is held", true, nil, true, gpu.None[bool]()},
		{"one that shows is held", true, held, true, gpu.Some(true)},
	} {
		g := migGPU()

		g.MIG.DevicesHidden = tt.hidden
		if !tt.seen {
			g.Instances = nil
		}

		gpus := []gpu.GPU{g}
		attachHolders(gpus, gpu.Assignments{List: tt.list}, time.Unix(1, 0), nil)
		cmptest.Equal(t, tt.what, gpus[0].Allocated, tt.want)
	}
}
