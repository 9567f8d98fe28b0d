package main

import (
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

func TestPreviewText(t *testing.T) {
	var out strings.Builder

	writePreview(&out, []rollout.Preview{
		{Node: "a", Plan: &api.Plan{}},
		{Node: "b", Refused: "no\x1b[2J room"},
		{Node: "c", Evicts: []rollout.Pod{{Namespace: "ml", Name: "train-0"}}, InTheWay: []string{"GPU 0 1g.10gb@4"}},
	})

	for _, want := range []string{"has the layout already", "refused: no?[2J room", "pod ml/train-0", "in the way: GPU 0 1g.10gb@4\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// The question before a run is resumed names the pods that it was evicting.
func TestRunTextNamesPods(t *testing.T) {
	var out strings.Builder

	writeRun(&out, &rollout.Run{Nodes: []rollout.Node{{
		Name: "a", Phase: rollout.Evicting,
		Pods: []rollout.Pod{{Namespace: "ml", Name: "train-0"}, {Namespace: "ml", Name: "train-1"}},
	}}})

	for _, want := range []string{"a: was evicting pod ml/train-0\n", "a: was evicting pod ml/train-1\n", "asked again"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
