package gpu_test

import (
	"encoding/json"
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A power of 0 W is a reading; a power that the hardware does not report is absent.
func ExampleOpt() {
	type reading struct {
		Watts   gpu.Opt[float64] `json:"watts,omitzero"`
		Celsius gpu.Opt[float64] `json:"celsius,omitzero"`
	}
	r := reading{Watts: gpu.Some(0.0)}
	fmt.Println(r.Watts.Get())
	fmt.Println(r.Celsius.Get())
	fmt.Println(r.Celsius.Or(25))
	text, err := json.Marshal(r)
	fmt.Println(string(text), err)
	// Output:
	// 0 true
	// 0 false
	// 25
	// {"watts":0} <nil>
}

// A repartitioned GPU reuses the ids of its GPU instances. Their generations show that they are not
// the same instances.
func ExampleDiff() {
	snapshot := func(layout uint64, profile string) *gpu.Snapshot {
		return &gpu.Snapshot{GPUs: []gpu.GPU{{
			Facts:     gpu.Facts{UUID: "GPU-a"},
			MIG:       gpu.MIGState{Enabled: gpu.Some(true), LayoutGeneration: layout},
			Instances: []gpu.GPUInstance{{ID: 1, Generation: layout, Profile: profile}},
		}}}
	}
	before := snapshot(1, "3g.20gb")
	after := snapshot(2, "4g.20gb")
	changes := gpu.Diff(before, after)
	fmt.Printf("destroyed %s %v\n", changes.Destroyed[0].Profile, changes.Destroyed[0].ID)
	fmt.Printf("created   %s %v\n", changes.Created[0].Profile, changes.Created[0].ID)
	fmt.Println("unchanged", len(gpu.Diff(after, after).Created) == 0)
	// Output:
	// destroyed 3g.20gb GPU-a/1 (generation 1)
	// created   4g.20gb GPU-a/1 (generation 2)
	// unchanged true
}

// An allocator names a device by what it knows of it: here the ids in a legacy MIG UUID.
func ExampleResolver_Resolve() {
	const uuid = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	gpus := []gpu.GPU{{
		Facts:     gpu.Facts{UUID: uuid},
		Instances: []gpu.GPUInstance{{ID: 7, ComputeInstances: []gpu.ComputeInstance{{ID: 0}}}},
	}}
	devices := gpu.NewResolver(gpus)

	for _, text := range []string{"MIG-" + uuid + "/7/0", "MIG-" + uuid + "/8/0"} {
		ref, err := gpu.ParseMIGRef(text)
		if err != nil {
			fmt.Println(err)
		}

		device, match := devices.Resolve(ref)
		fmt.Println(device, match == gpu.MatchDevice, match == gpu.MatchParent)
	}

	// Output:
	// {0 0 0} true false
	// {0 -1 -1} false true
}
