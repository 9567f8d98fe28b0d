package gpu

import (
	"os"
	"strings"
	"testing"
)

// TestJobOwnersInRules: the rule for underused GPUs without an advisor leaves out the same owners.
func TestJobOwnersInRules(t *testing.T) {
	rules, err := os.ReadFile("../../deploy/prometheus/alerts-recording.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}

	if want := `workload=~"(` + strings.Join(jobOwners(), "|") + `)/.+"`; !strings.Contains(string(rules), want) {
		t.Errorf("no rule has %s", want)
	}
}
