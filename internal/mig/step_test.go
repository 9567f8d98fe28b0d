package mig_test

import (
	"reflect"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

func existing(id gpu.InstanceID, profile uint32, start, size int, computeInstances ...mig.ComputeInstance) mig.Instance {
	return mig.Instance{ID: id, Placed: mig.Placed{ProfileID: profile,
		Placement: gpu.Placement{Start: start, Size: size}}, ComputeInstances: computeInstances}
}

func computeAt(id gpu.ComputeID, start, size int) mig.ComputeInstance {
	return mig.ComputeInstance{ID: id, Slices: size, Placement: gpu.Some(gpu.Placement{Start: start, Size: size})}
}

// Compute instances whose placements the driver does not report are in the first room that is left.
func TestComputePlacements(t *testing.T) {
	got := mig.ComputePlacements(existing(1, 9, 0, 4, mig.ComputeInstance{ID: 0, Slices: 1}, computeAt(1, 0, 1),
		mig.ComputeInstance{ID: 2}))

	want := []gpu.Placement{{Start: 1, Size: 1}, {Start: 0, Size: 1}, {Start: 2, Size: 1}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAfterStep(t *testing.T) {
	place := func(start, size int) gpu.Placement { return gpu.Placement{Start: start, Size: size} }
	before := []mig.Instance{existing(1, 9, 0, 4, computeAt(0, 0, 1), computeAt(2, 1, 2)), existing(5, 19, 6, 1)}

	ofFirst := mig.Step{ProfileID: 9, Placement: place(0, 4)}
	for about, tc := range map[string]struct {
		step mig.Step
		done mig.Done
		want []mig.Instance
	}{
		"create a GPU instance": {
			mig.Step{Op: mig.CreateInstance, ProfileID: 14, Placement: place(4, 2)}, mig.Done{Instance: 3},
			[]mig.Instance{before[0], existing(3, 14, 4, 2), before[1]},
		},
		"destroy a GPU instance": {mig.Step{Op: mig.DestroyInstance, ProfileID: 19, Placement: place(6, 1)},
			mig.Done{Instance: 5}, before[:1]},
		"create a compute instance": {
			mig.Step{Op: mig.CreateCompute, ProfileID: 19, Placement: place(6, 1), Compute: gpu.Some(place(0, 1))},
			mig.Done{Instance: 5, ComputeID: gpu.Some(gpu.ComputeID(0))},
			[]mig.Instance{before[0], existing(5, 19, 6, 1, computeAt(0, 0, 1))},
		},
		"create a compute instance between others": {
			mig.Step{Op: mig.CreateCompute, ProfileID: 9, Placement: place(0, 4), Compute: gpu.Some(place(3, 1))},
			mig.Done{Instance: 1, ComputeID: gpu.Some(gpu.ComputeID(1))},
			[]mig.Instance{existing(1, 9, 0, 4, computeAt(0, 0, 1), computeAt(1, 3, 1), computeAt(2, 1, 2)), before[1]},
		},
		"destroy a compute instance": {
			mig.Step{Op: mig.DestroyCompute, ProfileID: 9, Placement: place(0, 4), Compute: gpu.Some(place(0, 1))}, mig.Done{},
			[]mig.Instance{existing(1, 9, 0, 4, computeAt(2, 1, 2)), before[1]},
		},
		"an instance that does not exist": {mig.Step{Op: mig.DestroyInstance, ProfileID: 14, Placement: place(4, 2)},
			mig.Done{}, before},
		"no step": {ofFirst, mig.Done{}, before},
	} {
		if got := mig.AfterStep(before, tc.step, tc.done); !mig.SameInstances(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", about, got, tc.want)
		}
	}

	if !mig.SameInstances(before, []mig.Instance{existing(1, 9, 0, 4, computeAt(0, 0, 1), computeAt(2, 1, 2)),
		existing(5, 19, 6, 1)}) {
		t.Errorf("the list before was modified: %+v", before)
	}
}

func TestSameInstances(t *testing.T) {
	list := func(change func(i *mig.Instance)) []mig.Instance {
		i := existing(1, 9, 0, 4, computeAt(0, 0, 1))
		i.Profile = "3g.20gb"
		i.ComputeInstances[0].UUID = "MIG-1"
		change(&i)

		return []mig.Instance{i}
	}

	unchanged := list(func(*mig.Instance) {})
	for about, change := range map[string]func(i *mig.Instance){
		"busy":            func(i *mig.Instance) { i.Busy, i.ComputeInstances[0].Busy = true, true },
		"without a UUID":  func(i *mig.Instance) { i.ComputeInstances[0].UUID = "" },
		"name of profile": func(i *mig.Instance) { i.Profile = "" },
	} {
		if !mig.SameInstances(unchanged, list(change)) {
			t.Errorf("%s: not the same", about)
		}
	}

	for about, change := range map[string]func(i *mig.Instance){
		"id":         func(i *mig.Instance) { i.ID = 2 },
		"profile":    func(i *mig.Instance) { i.ProfileID = 10 },
		"placement":  func(i *mig.Instance) { i.Placement.Start = 4 },
		"UUID":       func(i *mig.Instance) { i.ComputeInstances[0].UUID = "MIG-2" },
		"compute id": func(i *mig.Instance) { i.ComputeInstances[0].ID = 1 },
		"place in it": func(i *mig.Instance) {
			i.ComputeInstances[0].Placement = gpu.Some(gpu.Placement{Start: 1, Size: 1})
		},
		"compute is gone":  func(i *mig.Instance) { i.ComputeInstances = nil },
		"place is unknown": func(i *mig.Instance) { i.ComputeInstances[0].Placement = gpu.None[gpu.Placement]() },
	} {
		if mig.SameInstances(unchanged, list(change)) {
			t.Errorf("%s: the same", about)
		}
	}

	if mig.SameInstances(unchanged, nil) || !mig.SameInstances(nil, []mig.Instance{}) {
		t.Error("of none")
	}
}
