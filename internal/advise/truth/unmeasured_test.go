package truth

import (
	"fmt"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// unmeasuredNodes is how many nodes are observed without SM activity.
const unmeasuredNodes = 4

// TestUnmeasuredNodesGetNoSlice: on generated nodes whose SM and DRAM activity is not read, as on
// A100 and A30 without DCGM, nothing is a candidate, not even where the worst case would be within
// the limit.
func TestUnmeasuredNodesGetNoSlice(t *testing.T) {
	unknown := 0

	for i := range unmeasuredNodes {
		n := newNode(*seed, i)
		o := options(false)
		o.MaxStretch = 100

		a := advise.New(o)

		s := n.snapshot()
		for minute := range weekMinutes + dayMinutes {
			n.advance(s, minute)

			for k := range s.GPUs {
				s.GPUs[k].Activity.SM, s.GPUs[k].Activity.DRAM = gpu.None[float64](), gpu.None[float64]()
			}

			a.Observe(s)
		}

		report := a.Recommend(s)
		report.Pack(s)

		for k := range report.Devices {
			r := &report.Devices[k]
			if r.Action == advise.ActionUnknown {
				unknown++
			}

			if r.Action == advise.ActionSlice || r.Predicted != nil || report.Packing != nil {
				t.Errorf("%s GPU %d: %s %s, by activity that was not read", report.Node, r.Index, r.Action, r.Recommended)
			}
		}
	}

	if unknown == 0 {
		t.Error("no answer is unknown: nothing was tested")
	}
}

// checkMeasured notes the figures in a report that nothing was measured for.
func (res *result) checkMeasured(report *advise.Report) {
	for i := range report.Devices {
		r := &report.Devices[i]
		if r.Evidence == nil || !r.Evidence.NeverBusy && !r.Evidence.ActivityUnread {
			continue
		}

		figures := r.Predicted != nil && r.Predicted.StretchP95 != (advise.Stretch{})
		for _, c := range r.Considered {
			figures = figures || c.StretchP95 != (advise.Stretch{})
		}

		if figures || r.Confidence > 0.5 {
			res.wrong = append(res.wrong, fmt.Sprintf("%s GPU %d: a stretch, or a confidence of %v, of what was not measured",
				report.Node, r.Index, r.Confidence))
		}
	}
}
