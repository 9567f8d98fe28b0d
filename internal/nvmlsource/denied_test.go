package nvmlsource_test

import (
	"errors"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestDeniedCallsAreTriedOnceAMinute: each refused call can print a line to the kernel's log (open
// kernel modules, kernel_mig_manager.c), so a right that is missing is asked for once a minute at
// most. That it is missing is an error of every reading all the same.
func TestDeniedCallsAreTriedOnceAMinute(t *testing.T) {
	const minutes = 10
	n := newNode(t, "", oneHalf)

	denied := []string{"GetMemoryInfo", "GetComputeRunningProcesses", "GetGpuInstances", "GetFieldValues", "GetPowerUsage"}
	for _, call := range denied {
		n.spy.set(call, nvml.ERROR_NO_PERMISSION)
	}

	id := n.discover()[0]
	n.read(id)

	n.spy.taken()

	for range minutes * 60 {
		n.advance(time.Second)

		if err := errorOf(n.read(id).Errors, gpu.ReadingPower); !errors.Is(err, gpu.ErrNoPermission) {
			t.Fatalf("error of the power: %v", err)
		}
	}

	for call, times := range n.spy.taken() {
		for _, d := range denied {
			if call == d && times > minutes*callsInOneTry(call) {
				t.Errorf("%s was refused %d times in %d minutes", call, times, minutes)
			}
		}
	}

	for _, call := range denied {
		n.spy.set(call, nvml.SUCCESS)
	}

	n.advance(time.Minute)
	cmptest.Equal(t, "power is read once the right is there", n.read(id).Readings.PowerWatts.Present(), true)
}

// callsInOneTry is how often a reading makes a call that is refused: instances are listed by
// profile.
func callsInOneTry(call string) int {
	if call == "GetGpuInstances" {
		return 7
	}

	return 1
}
