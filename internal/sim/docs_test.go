package sim

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// docs/simulated-node.md is true: its examples are scenarios, and it names everything that a
// scenario can.
func TestPageOfTheSimulatedNode(t *testing.T) {
	text, err := os.ReadFile("../../docs/simulated-node.md")
	if err != nil {
		t.Fatal(err)
	}

	page := string(text)

	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(examples) < 4 {
		t.Errorf("only %d examples", len(examples))
	}

	for _, e := range examples {
		s, err := Parse("docs/simulated-node.md", []byte(e[1]))
		if err != nil {
			t.Errorf("%v\n%s", err, e[1])
			continue
		}

		startScenario(t, s)
	}

	names := slices.AppendSeq(slices.Collect(maps.Keys(faultKinds())), maps.Keys(faultReadings()))
	for kind, keys := range keysOfFaults() {
		names = append(append(names, keys[0]...), keys[1]...)

		if !regexp.MustCompile("(?m)^\\| .*`" + string(kind) + "`").MatchString(page) {
			t.Errorf("the fault %s is not in the table", kind)
		}
	}

	for _, b := range gpuModels() {
		names = append(names, b.key)
	}

	for _, section := range []any{
		&scenarioFile{}, &NodeSpec{}, &gpuEntry{}, &SharingSpec{}, &layoutEntry{}, &workloadEntry{}, &signalShape[share]{},
		&sineEntry[share]{},
		&stepEntry[share]{}, &podEntry{}, &ContainerSpec{}, &processEntry{}, &faultEntry{}, &phaseEntry{}, &Requests{}, &Server{},
	} {
		names = append(names, keysOf(t, section)...)
	}

	for _, name := range names {
		if !strings.Contains(page, "`"+name+"`") && !regexp.MustCompile(`[{ ]`+name+`: `).MatchString(page) {
			t.Errorf("the page does not name %s", name)
		}
	}
}

// keysOf lists the keys of a mapping in scenarios: those that the error of an unknown key names.
func keysOf(t *testing.T, section any) []string {
	t.Helper()

	err := strictyaml.Decode("keys.yaml", []byte("unknown: 1"), section)
	if err == nil {
		t.Fatalf("%T takes an unknown key", section)
	}

	found := regexp.MustCompile(`unknown: is not known here; expected one of (.*)`).FindStringSubmatch(err.Error())
	if found == nil {
		t.Fatalf("%T: %v", section, err)
	}

	return strings.Split(found[1], ", ")
}
