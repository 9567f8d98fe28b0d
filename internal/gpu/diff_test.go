package gpu

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

func node(gpus ...GPU) *Snapshot { return &Snapshot{GPUs: gpus} }

// newMIGGPU is a GPU that is up, with one GPU instance of one compute instance.
func newMIGGPU(id UUID, layout uint64) GPU {
	return GPU{
		Facts:  Facts{UUID: id},
		Device: Device{Up: true},
		MIG:    MIGState{Enabled: Some(true), Pending: Some(true), LayoutGeneration: layout},
		Instances: []GPUInstance{{ID: 1, Generation: layout, Profile: "3g.20gb",
			ComputeInstances: []ComputeInstance{{ID: 0, Generation: layout, UUID: "MIG-x", Profile: "3g.20gb"}}}},
	}
}

func TestDiff(t *testing.T) {
	first := newMIGGPU("GPU-a", 1).Instances[0]
	gi := InstanceChange{ID: IDOfInstance("GPU-a", &first), Profile: "3g.20gb"}
	ci := InstanceChange{
		ID: IDOfCompute("GPU-a", &first, &first.ComputeInstances[0]), Profile: "3g.20gb", UUID: "MIG-x",
	}
	again := func(c InstanceChange) InstanceChange { c.ID.generation = 2; return c }
	down := newMIGGPU("GPU-a", 1)
	off := newMIGGPU("GPU-a", 1)
	down.Up = false
	off.MIG.Pending = Some(false)

	tests := []struct {
		name          string
		before, after *Snapshot
		want          Delta
	}{
		{"nothing", node(newMIGGPU("GPU-a", 1)), node(newMIGGPU("GPU-a", 1)), Delta{}},
		{"the first", nil, node(newMIGGPU("GPU-a", 1)), Delta{Appeared: []UUID{"GPU-a"}, Created: []InstanceChange{gi, ci}}},
		{"a GPU vanishes", node(newMIGGPU("GPU-a", 1)), node(),
			Delta{Vanished: []UUID{"GPU-a"}, Destroyed: []InstanceChange{gi, ci}}},
		{"a GPU without a handle", node(GPU{Facts: Facts{Index: 1}}), node(GPU{Facts: Facts{Index: 1}}), Delta{}},
		{"a GPU without a handle is found", node(GPU{}), node(GPU{Facts: Facts{UUID: "GPU-a"}}),
			Delta{Appeared: []UUID{"GPU-a"}}},
		{"a GPU goes down", node(newMIGGPU("GPU-a", 1)), node(down), Delta{WentDown: []UUID{"GPU-a"}}},
		{"a GPU comes back", node(down), node(newMIGGPU("GPU-a", 1)), Delta{WentUp: []UUID{"GPU-a"}}},
		{"a mode change is pending", node(newMIGGPU("GPU-a", 1)), node(off), Delta{ModeChanged: []UUID{"GPU-a"}}},
		{"the same ids, repartitioned", node(newMIGGPU("GPU-a", 1)), node(newMIGGPU("GPU-a", 2)), Delta{
			Created: []InstanceChange{again(gi), again(ci)}, Destroyed: []InstanceChange{gi, ci}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmptest.Equal(t, "changes", Diff(tt.before, tt.after), tt.want)
		})
	}
}

// TestDiffOfAComputeInstance: a compute instance that is created within a GPU instance that stays.
func TestDiffOfAComputeInstance(t *testing.T) {
	before := newMIGGPU("GPU-a", 1)
	after := newMIGGPU("GPU-a", 1)
	after.MIG.LayoutGeneration = 2
	after.Instances[0].ComputeInstances = append(after.Instances[0].ComputeInstances,
		ComputeInstance{ID: 1, Generation: 2, UUID: "MIG-y"})
	gi := &after.Instances[0]
	want := Delta{Created: []InstanceChange{{ID: IDOfCompute("GPU-a", gi, &gi.ComputeInstances[1]), UUID: "MIG-y"}}}
	cmptest.Equal(t, "changes", Diff(node(before), node(after)), want)
}
