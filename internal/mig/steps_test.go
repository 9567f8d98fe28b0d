package mig_test

import (
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestStepsTo: the steps lead from one layout to the other, whatever ids the driver gives;
// instances in the same places stay. What was read after a step shows that the step was done, and
// nothing else.
func TestStepsTo(t *testing.T) {
	layouts := map[string][]mig.Instance{
		"none":      nil,
		"split":     {existing(1, 9, 0, 4, computeAt(0, 0, 1), computeAt(2, 1, 2)), existing(5, 19, 6, 1)},
		"joined":    {existing(2, 9, 0, 4, computeAt(0, 0, 3)), existing(5, 19, 6, 1, computeAt(0, 0, 1))},
		"elsewhere": {existing(7, 19, 0, 1, computeAt(1, 0, 1)), existing(3, 9, 4, 4, computeAt(0, 0, 3))},
	}
	for from, before := range layouts {
		for to, wanted := range layouts {
			g := mig.GPULayout{Facts: gpu.Facts{UUID: "GPU-1"}, Instances: before}
			next := gpu.InstanceID(20)
			var ops []mig.StepOp

			for _, s := range mig.StepsTo(&g, wanted) {
				ops = append(ops, s.Op)
				next++
				done := mig.Done{Instance: next, ComputeID: gpu.Some(gpu.ComputeID(next)), UUID: "MIG-new"}
				after := mig.AfterStep(g.Instances, s, done)

				if got, ok := s.Verify(g.Instances, after); !ok || !mig.SameInstances(got, after) {
					t.Errorf("%s to %s: %s reads as %+v, %t; want %+v", from, to, s.Op, got, ok, after)
				}

				if _, ok := s.Verify(g.Instances, g.Instances); ok {
					t.Errorf("%s to %s: %s counts as done, and nothing has changed", from, to, s.Op)
				}

				foreign := append(slices.Clone(after), existing(99, 14, 9, 1))
				if _, ok := s.Verify(g.Instances, foreign); ok {
					t.Errorf("%s to %s: %s counts as done, and something else has changed", from, to, s.Op)
				}

				g.Instances = after
			}

			if left := mig.StepsTo(&g, wanted); len(left) > 0 || len(g.Instances) != len(wanted) {
				t.Errorf("%s to %s leads to %+v: %+v is left", from, to, g.Instances, left)
			}

			order := []mig.StepOp{mig.DestroyCompute, mig.DestroyInstance, mig.CreateInstance, mig.CreateCompute}
			inOrder := slices.IsSortedFunc(ops, func(a, b mig.StepOp) int {
				return slices.Index(order, a) - slices.Index(order, b)
			})

			if !inOrder || from == to && len(ops) > 0 {
				t.Errorf("%s to %s: steps %v", from, to, ops)
			}
		}
	}
}

// TestVerifyKeepsUUIDs: of two readings one may lack a MIG UUID. Two different ones are another
// device.
func TestVerifyKeepsUUIDs(t *testing.T) {
	named := func(id gpu.MIGUUID) mig.Instance {
		c := computeAt(0, 0, 3)
		c.UUID = id

		return existing(1, 9, 0, 4, c)
	}
	s := mig.Step{Op: mig.CreateInstance, ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}}

	for _, c := range []struct{ before, read, want gpu.MIGUUID }{
		{"MIG-1", "", "MIG-1"}, {"", "MIG-1", "MIG-1"}, {"MIG-1", "MIG-1", "MIG-1"}, {"MIG-1", "MIG-2", ""},
	} {
		after, ok := s.Verify([]mig.Instance{named(c.before)}, []mig.Instance{named(c.read), existing(2, 19, 6, 1)})
		if ok != (c.want != "") || ok && after[0].ComputeInstances[0].UUID != c.want {
			t.Errorf("%q, then %q: %+v, %t", c.before, c.read, after, ok)
		}
	}

	full := []mig.Instance{named("MIG-1")}
	s = mig.Step{Op: mig.DestroyInstance, ProfileID: 9, Placement: gpu.Placement{Start: 0, Size: 4}}

	if _, ok := s.Verify(full, nil); ok {
		t.Error("the driver destroys no GPU instance that has compute instances: another client has")
	}
}
