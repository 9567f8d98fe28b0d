package mig_test

import (
	"context"
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// The profiles of a known model: where their instances can be placed, and how many of each fit on
// an empty GPU.
func ExampleFindModel() {
	model, _ := mig.FindModel("A30")

	capacity := mig.CapacityOf(model.Profiles, nil)
	for i, p := range model.Profiles {
		fmt.Println(p.Name, p.Placements, "at most", capacity.Profiles[i].Max)
	}

	// Output:
	// 1g.6gb [0:1 1:1 2:1 3:1] at most 4
	// 1g.6gb+me [0:1 1:1 2:1 3:1] at most 1
	// 2g.12gb [0:2 2:2] at most 2
	// 2g.12gb+me [0:2 2:2] at most 1
	// 4g.24gb [0:4] at most 1
}

// Two further instances with 9 GiB each, on a GPU with two instances: the plan destroys the idle
// one and keeps the busy one.
func ExamplePlanNode() {
	model, _ := mig.FindModel("A100-40GB")
	instance := func(id gpu.InstanceID, start int, busy bool) mig.Instance {
		return mig.Instance{
			ID: id, Busy: busy,
			Placed:           mig.Placed{ProfileID: 9, Profile: "3g.20gb", Placement: gpu.Placement{Start: start, Size: 4}},
			ComputeInstances: []mig.ComputeInstance{{Slices: 3, Placement: gpu.Some(gpu.Placement{Start: 0, Size: 3})}},
		}
	}
	node := []mig.GPULayout{{
		Facts:     gpu.Facts{UUID: "GPU-0", Profiles: model.Profiles},
		MIG:       gpu.Some(true),
		Instances: []mig.Instance{instance(1, 0, true), instance(2, 4, false)},
	}}

	plan, err := mig.PlanNode(context.Background(), node, mig.Spec{Demand: []mig.Need{{MemoryBytes: 9 << 30, Count: 2}}})
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, step := range plan.Steps {
		fmt.Println(step.Op, step.Profile, "at", step.Placement)
	}

	fmt.Printf("largest profile left: %q\n", plan.GPUs[0].Left)
	// Output:
	// destroy-ci 3g.20gb at 4:4
	// destroy-gi 3g.20gb at 4:4
	// create-gi 1g.10gb at 4:2
	// create-gi 1g.10gb at 6:2
	// create-ci 1g.10gb at 4:2
	// create-ci 1g.10gb at 6:2
	// largest profile left: ""
}
