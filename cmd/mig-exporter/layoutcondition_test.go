package main

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/nodelabels"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health/nodestatus"
)

// TestLayoutConditionKnowsTheLabel: a layout that the node's label names and that does not stand is
// not hidden by partition control, which may be off, or content with what its operations have made.
func TestLayoutConditionKnowsTheLabel(t *testing.T) {
	named := func(applied gpu.Opt[bool]) nodelabels.Status {
		return nodelabels.Status{
			Read: true, Config: "all-1g.10gb", State: nodelabels.Failed, Applied: applied,
		}
	}

	off := layoutFollower{}
	label := layoutFollower{labelled: true}
	both := layoutFollower{labelled: true, controlled: true, known: true}
	degraded := layoutFollower{labelled: true, controlled: true, known: true, state: "degraded"}

	for _, tc := range []struct {
		name     string
		follower *layoutFollower
		label    nodelabels.Status
		status   nodestatus.Status
		reason   string
	}{
		{"the label is not read at all", &off, nodelabels.Status{}, nodestatus.True, "NoLayoutWanted"},
		{"unreadable", &label, nodelabels.Status{}, nodestatus.Unknown, "LabelUnread"},
		{"no label", &label, nodelabels.Status{Read: true}, nodestatus.True, "NoLayoutWanted"},
		{"unknown", &label, named(gpu.None[bool]()), nodestatus.Unknown, "LabelUnknown"},
		{"stands", &label, named(gpu.Some(true)), nodestatus.True, "LayoutApplied"},
		{"does not stand", &label, named(gpu.Some(false)), nodestatus.False, "LabelNotApplied"},
		{"control wants nothing", &both, named(gpu.Some(false)), nodestatus.False, "LabelNotApplied"},
		{"worse than unknown", &degraded, named(gpu.None[bool]()), nodestatus.False, "OperationDegraded"},
		{"control is worse", &degraded, named(gpu.Some(true)), nodestatus.False, "OperationDegraded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.follower.setLabel(tc.label)

			c := tc.follower.condition(&gpu.Snapshot{})
			cmptest.Equal(t, "status", c.Status, tc.status)
			cmptest.Equal(t, "reason", c.Reason, tc.reason)
		})
	}
}
