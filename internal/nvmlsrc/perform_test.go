package nvmlsrc_test

import (
	"errors"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// perform does a step with the instances expected that stand.
func (n *node) perform(s mig.Step) (mig.Outcome, error) {
	n.t.Helper()
	return n.source.Actuator().PerformStep(n.t.Context(), s, n.layout(0).Instances)
}

// Each step leaves what mig.AfterStep says, and the layout read afterwards is the same.
func TestPerformEachStep(t *testing.T) {
	n := newNode(t, "", cutBoard)
	s := steps{n.discover()[0]}
	a := n.source.Actuator()
	expected := n.layout(0).Instances
	perform := func(step mig.Step) mig.Done {
		t.Helper()
		out, err := a.PerformStep(t.Context(), step, expected)
		if err != nil || !out.Read {
			t.Fatalf("%s: %+v, %v", step.Op, out, err)
		}
		expected = mig.AfterStep(expected, step, out.Done)
		if !mig.SameInstances(out.Instances, expected) || !mig.SameInstances(out.Instances, n.layout(0).Instances) {
			t.Fatalf("%s leaves %+v, want %+v", step.Op, out.Instances, expected)
		}
		expected = out.Instances
		return out.Done
	}
	gi := s.createGI(14, 4, 2)
	gi.Profile = "2g.10gb"
	madeGI := perform(gi)
	ci := s.createCI(gi, 1, 1)
	madeCI := perform(ci)
	if c := n.layout(0).Instances[1].Computes[0]; madeCI.UUID == "" || c.UUID != madeCI.UUID || gpu.Some(c.ID) != madeCI.ComputeID {
		t.Errorf("created %+v, standing %+v", madeCI, c)
	}
	perform(s.destroy(ci, madeCI))
	perform(s.destroy(gi, madeGI))
}

func TestPerformStepOnAnotherLayout(t *testing.T) {
	n := newNode(t, "", cutBoard)
	s := steps{n.discover()[0]}
	n.spy.taken()
	out, err := n.source.Actuator().PerformStep(t.Context(), s.createGI(14, 4, 2), nil)
	if !errors.Is(err, mig.ErrLayoutChanged) || !out.Read || !mig.SameInstances(out.Instances, n.layout(0).Instances) {
		t.Errorf("%+v, %v", out, err)
	}
	noChange(t, n)
}
