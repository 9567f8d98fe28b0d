package promtest

import (
	"regexp"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestModelsInMediaRules: the rules of media engines name the models that have no encoders, which need
// no reading of them, and those that have several JPEG engines, of which some use is no reason to stay
// whole. A model is named if all that we know of it says so.
func TestModelsInMediaRules(t *testing.T) {
	t.Parallel()
	text := readFile(t, "../../deploy/prometheus/alerts-recording.rules.yaml")

	for about, c := range map[string]struct {
		before  string // the models, in the rule
		isNamed func(most gpu.Engines) bool
	}{
		"no encoders":          {`or `, func(most gpu.Engines) bool { return most.Encoder == 0 }},
		"several JPEG engines": {`unless on \(cluster, uuid\) `, func(most gpu.Engines) bool { return most.JPEG > 1 }},
	} {
		found := regexp.MustCompile(c.before + `nvidia_gpu_info\{name=~"(.*)"\}`).FindStringSubmatch(text)
		if found == nil {
			t.Errorf("%s: no rule names models", about)
			continue
		}

		named := regexp.MustCompile("^(?:" + found[1] + ")$") // as Prometheus anchors it
		known := 0

		for _, m := range mig.Models() {
			most, isKnown := mostEngines(m)
			if !isKnown {
				continue
			}

			known++

			for _, name := range append([]string{m.Name}, m.Aliases...) {
				if got := named.MatchString("NVIDIA " + name); got != c.isNamed(most) {
					t.Errorf("%s: %s has %+v, and the rule names it: %t", about, name, most, got)
				}
			}
		}

		if known == 0 {
			t.Error("the engines of no model are known")
		}

		for _, name := range []string{"NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H20", "NVIDIA A3000", "Orin"} {
			if named.MatchString(name) {
				t.Errorf("%s: the rule names %s, of which that is not known", about, name)
			}
		}
	}
}

// mostEngines returns the largest numbers of encoders and JPEG engines that a profile of a model has. known
// is false if the table has the engines of none.
func mostEngines(m mig.Model) (most gpu.Engines, known bool) {
	for _, p := range m.Profiles {
		if engines, ok := p.Engines.Get(); ok {
			known = true
			most.Encoder = max(most.Encoder, engines.Encoder)
			most.JPEG = max(most.JPEG, engines.JPEG)
		}
	}

	return most, known
}
