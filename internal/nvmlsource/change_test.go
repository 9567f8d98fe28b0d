package nvmlsource_test

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// A driver may give a compute instance a longer place than it has slices. It is made, found again
// and destroyed all the same, and the current layout is what is planned for.
func TestAPlaceThatIsLongerThanItsSlices(t *testing.T) {
	n := newNode(t, "", "  - {model: A100-40GB, mig: true}")
	n.spy.wideSeven = true
	s := steps{n.discover()[0]}
	gi := s.createGI(0, 0, 8)
	madeGI := n.do(gi)
	ci := s.createCI(gi, 0, 7)
	madeCI := n.do(ci)
	g := n.layout(0)
	c := g.Instances[0].ComputeInstances[0]
	cmptest.Equal(t, "placement of the compute instance", c.Placement, gpu.Some(gpu.Placement{Start: 0, Size: 7}))
	cmptest.Equal(t, "its slices", c.Slices, 7)
	cmptest.Equal(t, "its UUID", c.UUID, madeCI.UUID)

	plan, err := mig.PlanNode(t.Context(), []mig.GPULayout{g},
		mig.Spec{Rules: []mig.Rule{{GPUs: []string{"0"}, Enabled: true, Want: []mig.Want{{Profile: "7g.40gb", Count: 1}}}}})
	if err != nil || len(plan.Steps) != 0 {
		t.Errorf("%+v, %v", plan.Steps, err)
	}

	n.do(s.destroy(ci, madeCI))
	n.do(s.destroy(gi, madeGI))

	if left := n.layout(0).Instances; len(left) != 0 {
		t.Errorf("left %+v", left)
	}
}
