package promtest

import (
	"maps"
	"slices"
	"testing"
	"time"
)

// mostRecorded is how many series the shipped rules may add to those of a node.
const mostRecorded = 200

// recordingFiles are all shipped rule files, those included that are loaded only if an operator
// adds them.
func recordingFiles(t *testing.T) []string {
	t.Helper()

	return append(findFiles(t, "../../deploy/prometheus/*.rules.yaml"),
		findFiles(t, "../../deploy/prometheus/optional/*.rules.yaml")...)
}

// recordedNames are the names of the series that the shipped rules record.
func recordedNames(t *testing.T) []string {
	t.Helper()
	var names []string

	for _, file := range recordingFiles(t) {
		for _, rule := range rulesOf(t, file) {
			if rule.Record != "" {
				names = append(names, rule.Record)
			}
		}
	}

	return names
}

// TestRulesCost: for a node of eight GPUs with seven slices each, all of them held, the rules
// record few series, and for one of eight whole GPUs, too, also with the use of media engines.
func TestRulesCost(t *testing.T) {
	t.Parallel()

	for _, scenario := range []string{"h100-56", "h100-underused"} {
		n := startNode(t, readFile(t, "../../testdata/scenarios/"+scenario+".yaml"), "--collectors=+media")
		node := fleetNode{name: "n"}

		for n.elapsed < 70*time.Minute {
			n.elapsed += time.Minute
			n.request("POST", "/-/sim/advance?by=1m")
			n.scrapePods(t, n, node)
		}

		n.recordAll(t, time.Minute, n.now())

		byName := map[string]int{}
		all := 0

		for _, name := range recordedNames(t) {
			v, err := n.EvalAt(`last_over_time({__name__="`+name+`"}[1h])`, n.now())
			if err != nil {
				t.Fatal(err)
			}

			byName[name] = len(v)
			all += len(v)
		}

		for _, name := range slices.Sorted(maps.Keys(byName)) {
			t.Logf("%4d %s", byName[name], name)
		}

		t.Logf("%s: %d series", scenario, all)

		if all > mostRecorded {
			t.Errorf("%s: the rules record %d series, want at most %d", scenario, all, mostRecorded)
		}
	}
}
