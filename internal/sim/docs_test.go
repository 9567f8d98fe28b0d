package sim

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/simulated-node.md is true: its examples are scenarios, and it names everything that a scenario can.
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
	names := append(faultKinds(), readingNames()...)
	for kind, keys := range faultKeys() {
		names = append(append(names, keys[0]...), keys[1]...)
		if !regexp.MustCompile("(?m)^\\| .*`" + string(kind) + "`").MatchString(page) {
			t.Errorf("the fault %s is not in the table", kind)
		}
	}
	for _, b := range gpuModels() {
		names = append(names, b.key)
	}
	for _, object := range regexp.MustCompile(`(?s)p\.object\([^"]*?((?:"\w+"(?:, )?)+)\)`).FindAllStringSubmatch(sources(t), -1) {
		for _, key := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(object[1], -1) {
			names = append(names, key[1])
		}
	}
	for _, name := range names {
		if !strings.Contains(page, "`"+name+"`") && !regexp.MustCompile(`[{ ]`+name+`: `).MatchString(page) {
			t.Errorf("the page does not name %s", name)
		}
	}
}

// sources is the parser's code, where the keys of every mapping stand.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, name := range []string{"parse", "parse_node", "parse_pod", "parse_workload", "parse_fault"} {
		text, err := os.ReadFile(name + ".go")
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
