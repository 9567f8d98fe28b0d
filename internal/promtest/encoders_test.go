package promtest

import (
	"regexp"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestModelsWithoutEncoders: mig:gpu_media_read:ratio5m names the models that need no reading of
// encoders. All of them are known to have none, and a model that has some is not among them.
func TestModelsWithoutEncoders(t *testing.T) {
	t.Parallel()
	text := readFile(t, "../../deploy/prometheus/alerts-recording.rules.yaml")

	found := regexp.MustCompile(`or nvidia_gpu_info\{name=~"(.*)"\}`).FindStringSubmatch(text)
	if found == nil {
		t.Fatal("no rule names models")
	}

	named := regexp.MustCompile("^(?:" + found[1] + ")$") // as Prometheus anchors it

	known := 0

	for _, m := range mig.Models() {
		most, isKnown := mostEncoders(m)
		if !isKnown {
			continue
		}

		known++

		for _, name := range append([]string{m.Name}, m.Aliases...) {
			if got := named.MatchString("NVIDIA " + name); got != (most == 0) {
				t.Errorf("%s has %d encoders, and the rule names it: %t", name, most, got)
			}
		}
	}

	if known == 0 {
		t.Error("of no model it is known how many encoders it has")
	}

	for _, name := range []string{"NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H20", "NVIDIA A3000", "Orin"} {
		if named.MatchString(name) {
			t.Errorf("the rule names %s, of which it is not known that it has no encoders", name)
		}
	}
}

// mostEncoders returns the largest number of encoders that a profile of a model has. known is false
// if the table has the engines of none.
func mostEncoders(m mig.Model) (most int, known bool) {
	for _, p := range m.Profiles {
		if engines, ok := p.Engines.Get(); ok {
			known = true
			most = max(most, engines.Encoder)
		}
	}

	return most, known
}
