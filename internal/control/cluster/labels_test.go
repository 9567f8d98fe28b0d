package cluster

import (
	"encoding/json"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestLastManagerOfALabel: of several managers of a label, the one that wrote it last is who asks for
// the layout, in whatever order the API server lists them.
func TestLastManagerOfALabel(t *testing.T) {
	const (
		argocd = `{"manager": "argocd", "time": "2026-03-04T05:06:07Z",
			"fieldsV1": {"f:metadata": {"f:labels": {"f:nvidia.com/mig.config": {}, "f:team": {}}}}}`
		kubectl = `{"manager": "kubectl-label", "time": "2026-03-04T05:06:08Z",
			"fieldsV1": {"f:metadata": {"f:labels": {"f:nvidia.com/mig.config": {}}}}}`
	)

	for _, fields := range []string{argocd + "," + kubectl, kubectl + "," + argocd} {
		var n node
		if err := json.Unmarshal([]byte(`{"metadata": {"managedFields": [`+fields+`]}}`), &n); err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "managers", n.forLabels().Managers,
			map[string]string{"nvidia.com/mig.config": "kubectl-label", "team": "argocd"})
	}
}
