package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/rollout"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

func TestFleetCommands(t *testing.T) {
	dir := t.TempDir()
	fleet := filepath.Join(dir, "fleet.yaml")
	node := filepath.Join(dir, "node.yaml")

	for path, text := range map[string]string{
		fleet: "apiVersion: mig-exporter/v1\nkind: Fleet\n",
		node:  "layout: all-balanced\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	for line, want := range map[string]bool{
		"apply -f " + fleet:                     true,
		"-n gpu plan --file=" + fleet:           true,
		"apply --resume mig-1":                  true,
		"apply --resume=mig-1 --yes":            true,
		"rollback --run mig-1 gpu-01":           true,
		"runs":                                  true,
		"apply gpu-01 -f " + node:               false,
		"apply gpu-01 --layout all-balanced":    false,
		"rollback gpu-01 op-1":                  false,
		"get gpu-01":                            false,
		"plan -f " + filepath.Join(dir, "none"): false,
		"--help":                                false,
	} {
		if got := isFleetCommand(strings.Fields(line)); got != want {
			t.Errorf("%s: got %t", line, got)
		}
	}
}

func TestPreviewText(t *testing.T) {
	var out strings.Builder

	refused := writePreview(&out, []rollout.Preview{
		{Node: "a", Plan: &api.Plan{}},
		{Node: "b", Refused: "no\x1b[2J room"},
		{Node: "c", Evicts: []rollout.Pod{{Namespace: "ml", Name: "train-0"}}, Blocking: []api.Blocker{{Instance: "MIG-1", Profile: "1g.10gb"}}},
	})

	for _, want := range []string{"has the layout already", "refused: no?[2J room", "pod ml/train-0", "MIG-1, 1g.10gb"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}

	if refused != 1 {
		t.Errorf("%d nodes are refused", refused)
	}
}
