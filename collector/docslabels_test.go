package collector

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// labelsOfFamilies returns the labels that the series of each native family can have.
func labelsOfFamilies() map[string][]string {
	of := map[string][]string{ // those that no collector declares
		"mig_exporter_build_info": {"version", "revision", "branch", "goversion"}, "mig_exporter_poll_duration_seconds": nil,
		"mig_exporter_scrapes_total":   {"result"},
		"mig_control_operations_total": {"verb", "result"}, "mig_control_operation_duration_seconds": {"verb"},
		"mig_control_state":                        {"state"},
		"mig_control_last_error_timestamp_seconds": nil, "mig_control_api_reads_total": nil,
		"mig_control_gpu_not_restored": {"uuid", "reason"},
	}
	for _, f := range Families() {
		of[f.Name] = f.Labels
		if strings.HasPrefix(f.Name, "nvidia_") { // a device's use has them with --kubernetes.labels=series, for one
			of[f.Name] = slices.Concat(f.Labels, []string{"namespace", "pod", "container"})
		}
	}

	return of
}

var (
	printedSelector = regexp.MustCompile(`(?:([a-z][a-z0-9_]*)|` + "`" + `)\{([^{}]*)\}`)
	printedMatchers = regexp.MustCompile(`^\s*[a-z_]+(\s*[=!]~?\s*"[^"]*")?(\s*,\s*[a-z_]+(\s*[=!]~?\s*"[^"]*")?)*\s*$`)
	printedMatcher  = regexp.MustCompile(`([a-z_]+)(\s*[=!]~?\s*"[^"]*")?`)
)

// undeclaredLabels lists the selectors of a text with labels that their family does not have. A selector that is
// alone in backticks is one of the family before it.
func undeclaredLabels(text string) []string {
	families := labelsOfFamilies()
	var wrong []string
	family := ""

	for _, selector := range printedSelector.FindAllStringSubmatch(text, -1) {
		if selector[1] != "" {
			family = selector[1]
		}

		native := strings.HasPrefix(family, "nvidia_gpu_") || strings.HasPrefix(family, "nvidia_mig_") || strings.HasPrefix(family, "mig_")
		if !native || strings.HasSuffix(family, "_") || !printedMatchers.MatchString(selector[2]) { // such as nvidia_gpu_{a,b}_bytes
			continue
		}

		labels, known := families[family]
		if !known {
			wrong = append(wrong, family+" is no family")
		}

		for _, matcher := range printedMatcher.FindAllStringSubmatch(selector[2], -1) {
			targets := []string{"job", "instance", "cluster"} // Prometheus adds them
			if label := matcher[1]; known && !strings.HasPrefix(label, "label_") && !slices.Contains(slices.Concat(labels, targets), label) {
				wrong = append(wrong, family+" has no label "+label)
			}
		}
	}

	return wrong
}

// Selectors on the pages name labels that their families have.
func TestDocumentedSelectorsHaveDeclaredLabels(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}

	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}

		for _, wrong := range undeclaredLabels(string(text)) {
			t.Errorf("%s: %s", page, wrong)
		}
	}
}

func TestUndeclaredLabels(t *testing.T) {
	for text, want := range map[string]string{
		"`nvidia_gpu_activity_anomalies_total{kind=\"above_one\"}`":                       "nvidia_gpu_activity_anomalies_total has no label kind",
		"`nvidia_gpu_temperature_celsius{sensor=\"gpu\"}`, `{senor=\"memory\"}`":          "nvidia_gpu_temperature_celsius has no label senor",
		"nvidia_gpu_up{gpu=\"3\", instance=~\"a.*\",cluster!=\"b\"} == 0":                 "",
		"nvidia_gpu_ecc_errors_total{severity,lifetime,place}":                            "nvidia_gpu_ecc_errors_total has no label place",
		"nvidia_gpu_pod_info{sharing=\"exclusive\",label_team=\"a\",uid=\"1\"}":           "nvidia_gpu_pod_info has no label uid",
		"nvidia_gpu_gone{a=\"b\"}":                                                        "nvidia_gpu_gone is no family",
		"`nvidia_gpu_container_{memory_used_bytes,sm_activity_ratio}` and DCGM_X{a=\"\"}": "",
		"mig_control_state{stat=\"off\"}":                                                 "mig_control_state has no label stat",
	} {
		if got := strings.Join(undeclaredLabels(text), "; "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// The page says how many series of a GPU, and of a GPU instance, change with the holder under
// --kubernetes.labels=series.
func TestDocumentedSeriesOfHolders(t *testing.T) {
	s := richNode(2, 1)
	s.GPUs[0].Holders = []gpu.Holder{exclusiveHolder("whole")}

	families, err := mustNew(t, Options{PodLabels: PodLabelsSeries, Now: testEpoch}).Gather(s)
	if err != nil {
		t.Fatal(err)
	}

	of := map[string]int{} // by pod

	for _, f := range families {
		if name := f.GetName(); strings.HasSuffix(name, "_pod_info") || strings.HasPrefix(name, "nvidia_gpu_container_") {
			continue
		}

		for _, m := range f.GetMetric() {
			of[labelOf(m, "pod")]++
		}
	}

	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}

	said := regexp.MustCompile(`(\d+) for a GPU instance, (\d+) for a GPU \|`).FindStringSubmatch(string(page))
	instance := of[s.GPUs[1].Instances[0].Holders[0].Pod]

	if said == nil {
		t.Fatal("the page does not say how many")
	}

	cmptest.Equal(t, "of a GPU instance, as the page says", said[1], strconv.Itoa(instance))
	cmptest.Equal(t, "of a GPU, as the page says", said[2], strconv.Itoa(of["whole"]))
}
