package nvmlsource_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const oneHalf = `  - {model: A100-40GB, mig: true, layout: ["3g.20gb@0"]}`

// countErrors counts the errors of a reading, and those among them that are new.
func countErrors(errs []gpu.ReadError, of gpu.Reading) (all, fresh int) {
	for _, e := range errs {
		if e.Reading == of {
			all++

			if !e.Remembered {
				fresh++
			}
		}
	}

	return all, fresh
}

// The layout changes while an instance is read, and all is read again: of the processes, only the
// last attempt counts.
func TestRepeatedReadingReportsItsLastAttempt(t *testing.T) {
	const ownList, gpuList = "MIG.GetComputeRunningProcesses", "GetComputeRunningProcesses"
	for name, tt := range map[string]struct {
		whole, own nvml.Return // of the lists of the GPU and of its MIG devices
		during     string      // the call before which the layout changes
		repaired   bool        // with the change, the lists can be read
		want       int         // errors of the processes
	}{
		"own lists serve":   {nvml.ERROR_NO_PERMISSION, nvml.SUCCESS, ownList, false, 0},
		"failed, then read": {nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN, "MIG.GetMemoryInfo", true, 0},
		"failed twice":      {nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN, "MIG.GetMemoryInfo", false, 1},
		"denied twice":      {nvml.ERROR_NO_PERMISSION, nvml.ERROR_NO_PERMISSION, "MIG.GetMemoryInfo", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "", oneHalf)
			id := n.discover()[0]
			before := n.read(id).Instances[0]
			n.awaitEvents()
			n.logged.Reset()
			n.spy.set(gpuList, tt.whole)
			n.spy.set(ownList, tt.own)
			n.spy.do(tt.during, func() {
				if tt.repaired {
					n.spy.set(gpuList, nvml.SUCCESS)
				}

				repartitionTo(t, n, before.ID, "2g.10gb@0")
			})

			g := n.readLists(id)
			if got := g.Instances[0].Profile; got != "2g.10gb" {
				t.Errorf("the result has profile %s", got)
			}

			if all, fresh := countErrors(g.Errors, gpu.ReadingProcesses); all != tt.want || fresh != tt.want {
				t.Errorf("%d errors, %d new, want %d new: %v", all, fresh, tt.want, g.Errors)
			}

			if known := g.Readings.Processes.Present(); known != (tt.want == 0) {
				t.Errorf("processes are known: %t", known)
			}

			if log := n.logged.String(); tt.want == 0 && strings.Contains(log, "processes of MIG GPUs") {
				t.Errorf("the log says that processes are missing: %s", log)
			}
		})
	}
}

// A denial that only a repeated attempt has met first is new, once.
func TestDenialIsNewOnceInRepeatedReadings(t *testing.T) {
	n := newNode(t, "", oneHalf)
	n.spy.set("GetGpuInstances", nvml.ERROR_NO_PERMISSION)
	n.spy.set("MIG.GetAttributes", nvml.ERROR_NOT_FOUND)
	id := n.discover()[0]
	var counts [][2]int

	for range 4 {
		all, fresh := countErrors(slices.DeleteFunc(n.read(id).Errors, func(e gpu.ReadError) bool {
			return !errors.Is(e.Err, gpu.ErrNoPermission)
		}), gpu.ReadingMIG)
		counts = append(counts, [2]int{all, fresh})
		n.advance(20 * time.Second)
	}

	if diff := cmp.Diff([][2]int{{1, 1}, {1, 0}, {1, 0}, {1, 0}}, counts); diff != "" {
		t.Errorf("denials, and new ones, by reading (-want +got):\n%s", diff)
	}
}

// While the layout changes, an attempt in which something has vanished and a call has failed is
// repeated, too.
func TestFailedScanDuringChangeIsRepeated(t *testing.T) {
	n := newNode(t, "", `  - {model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}`)
	id := n.discover()[0]
	before := n.read(id).Instances[0]
	set := n.spy.set
	do := n.spy.do
	do("MIG.GetMemoryInfo", func() { // of the first attempt: an instance vanishes
		repartitionTo(t, n, before.ID, "2g.10gb@0")
		do("MIG.GetAttributes", func() { // of the second: another one
			set("MIG.GetAttributes", nvml.ERROR_NOT_FOUND)
			do("MIG.GetGpuInstanceId", func() { // of the third: one has vanished, the next call fails
				set("MIG.GetAttributes", nvml.SUCCESS)
				set("MIG.GetGpuInstanceId", nvml.ERROR_NOT_FOUND)
				do("MIG.GetGpuInstanceId", func() {
					set("MIG.GetGpuInstanceId", nvml.ERROR_UNKNOWN)
					do("GetGpuInstances", func() { set("MIG.GetGpuInstanceId", nvml.SUCCESS) })
				})
			})
		})
	})

	g := n.read(id)
	if len(g.Errors) > 0 || len(g.Instances) != 2 {
		t.Errorf("%d instances, errors %v", len(g.Instances), g.Errors)
	}

	for _, gi := range g.Instances {
		if !gi.Up {
			t.Errorf("instance %d is down: %v", gi.ID, gi.Errors)
		}
	}
}

// A layout that changes makes the slow tier due in the reading that finds that, and its event,
// which comes after that reading began, none in the next one.
func TestLayoutChangeMakesSlowTierDueOnce(t *testing.T) {
	n := newNode(t, "", oneHalf)
	id := n.discover()[0]
	before := n.read(id).Instances[0]
	n.spy.do("GetMigMode", func() {
		repartitionTo(t, n, before.ID, "2g.10gb@0")
		n.AwaitHandled(t.Context())
	})
	n.spy.taken()

	for i, want := range []int{1, 0, 0} {
		n.advance(time.Second)
		n.read(id)

		if got := n.spy.taken()["GetEnforcedPowerLimit"]; got != want {
			t.Errorf("reading %d after the change reads the slow tier %d times, want %d", i, got, want)
		}
	}
}

// While fields cannot be read, those of the slow tier keep their values; once the driver does not
// support the call any more, there are none.
func TestSlowFieldsOfAFailedCall(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]

	want := len(n.read(id).Readings.NVLink.Errors)
	if want == 0 {
		t.Fatal("the GPU has no counters of NVLink errors")
	}

	for _, tt := range []struct {
		ret  nvml.Return
		want int
	}{{nvml.ERROR_UNKNOWN, want}, {nvml.ERROR_NOT_SUPPORTED, 0}} {
		n.spy.set("GetFieldValues", tt.ret)
		n.advance(20 * time.Second)

		if got := len(n.read(id).Readings.NVLink.Errors); got != tt.want {
			t.Errorf("GetFieldValues returns %d: %d counters, want %d", tt.ret, got, tt.want)
		}
	}
}
