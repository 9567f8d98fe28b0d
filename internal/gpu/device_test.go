package gpu

import (
	"iter"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// dividedGPU is a GPU with a split instance, one that its only compute instance has all of, and an
// empty one. Each device shows one error.
func dividedGPU() GPU {
	shown := Device{Errors: []ReadError{{Reading: ReadingActivity}}}

	return GPU{Facts: Facts{UUID: "GPU-a"}, Device: shown, Instances: []GPUInstance{
		{Device: shown, ID: 0, Generation: 1, ComputeSlices: Some(3), ComputeInstances: []ComputeInstance{
			{Device: shown, ID: 0, Generation: 1, ComputeSlices: Some(1)},
			{Device: shown, ID: 1, Generation: 2, ComputeSlices: Some(2)},
		}},
		{Device: shown, ID: 2, Generation: 1, ComputeSlices: Some(2), ComputeInstances: []ComputeInstance{
			{Device: shown, ID: 0, Generation: 1, ComputeSlices: Some(2)},
		}},
		{Device: shown, ID: 9, Generation: 2},
	}}
}

func idsOf(devices iter.Seq[Visit]) []string {
	var ids []string
	for d := range devices {
		ids = append(ids, d.ID().String())
	}

	return ids
}

func TestDevicesInOrder(t *testing.T) {
	s := node(dividedGPU(), GPU{Facts: Facts{UUID: "GPU-b"}})
	cmptest.Equal(t, "devices", idsOf(s.Devices()), []string{
		"GPU-a",
		"GPU-a/0 (generation 1)", "GPU-a/0/0 (generation 1)", "GPU-a/0/1 (generation 2)",
		"GPU-a/2 (generation 1)", "GPU-a/2/0 (generation 1)",
		"GPU-a/9 (generation 2)",
		"GPU-b",
	})
}

// TestDevicesStop: a walk ends where its caller leaves it.
func TestDevicesStop(t *testing.T) {
	s := node(dividedGPU(), dividedGPU())

	for last := range 14 {
		seen := 0

		for range s.Devices() {
			if seen == last {
				break
			}

			seen++
		}

		cmptest.Equal(t, "devices before the last", seen, last)
	}
}

// TestDistinctDevicesCountOnce: the compute instance that is all of its GPU instance has the same
// readings.
func TestDistinctDevicesCountOnce(t *testing.T) {
	g := dividedGPU()
	errors := 0

	for d := range g.DistinctDevices() {
		errors += len(d.Errors)
	}

	cmptest.Equal(t, "errors", errors, 6)
	cmptest.Equal(t, "devices", idsOf(g.DistinctDevices()), []string{
		"GPU-a",
		"GPU-a/0 (generation 1)", "GPU-a/0/0 (generation 1)", "GPU-a/0/1 (generation 2)",
		"GPU-a/2 (generation 1)",
		"GPU-a/9 (generation 2)",
	})
}

// TestDeviceIDs: GPU instance 0 and compute instance 0 are devices of their own, and only no device
// has the zero id.
func TestDeviceIDs(t *testing.T) {
	g := dividedGPU()
	gi := &g.Instances[0]
	again := *gi
	again.Generation = 2

	ids := map[DeviceID]bool{
		{}:                            true,
		IDOfGPU("GPU-a"):              true,
		IDOfGPU("GPU-b"):              true,
		IDOfInstance("GPU-a", gi):     true,
		IDOfInstance("GPU-a", &again): true,
		IDOfInstance("GPU-b", gi):     true,
		IDOfCompute("GPU-a", gi, &gi.ComputeInstances[0]):   true,
		IDOfCompute("GPU-a", gi, &gi.ComputeInstances[1]):   true,
		IDOfCompute("GPU-a", &again, &ComputeInstance{}):    true,
		IDOfInstance("", &GPUInstance{}):                    true,
		IDOfCompute("", &GPUInstance{}, &ComputeInstance{}): true,
	}
	cmptest.Equal(t, "different ids", len(ids), 11)
	cmptest.Equal(t, "a GPU without a handle", IDOfGPU(""), DeviceID{})

	id := IDOfCompute("GPU-a", gi, &gi.ComputeInstances[0])
	cmptest.Equal(t, "GPU", id.GPU(), "GPU-a")
	cmptest.Equal(t, "GPU instance", id.Instance(), Some(InstanceID(0)))
	cmptest.Equal(t, "compute instance", id.Compute(), Some(ComputeID(0)))
	cmptest.Equal(t, "compute instance of a GPU instance", IDOfInstance("GPU-a", gi).Compute(), None[ComputeID]())
	cmptest.Equal(t, "GPU instance of a GPU", IDOfGPU("GPU-a").Instance(), None[InstanceID]())
}
