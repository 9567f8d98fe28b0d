package promtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
)

// nativeHistograms asks for them, since Prometheus 3.8; those before refuse a configuration that
// has it.
const nativeHistograms = "scrape_native_histograms: true"

// scrapeConfigs returns the Prometheus configurations of a page.
func scrapeConfigs(t *testing.T, path string) []string {
	t.Helper()

	var all []string
	for _, block := range regexp.MustCompile("```(?:yaml)?\n([^`]*\\bscrape_configs:\n[^`]*)```").
		FindAllStringSubmatch(readFile(t, path), -1) {
		all = append(all, block[1])
	}

	return all
}

// TestScrapeConfigsLoad: Prometheus takes what the README and the pages print, and the holder's
// labels as they are. That the collectors which they pick are all that are on by default is tested
// in package collector.
func TestScrapeConfigsLoad(t *testing.T) {
	picks := 0

	for _, path := range []string{"../../README.md", "../../docs/deploy.md", "../../docs/metrics.md"} {
		texts := scrapeConfigs(t, path)
		if len(texts) == 0 {
			t.Errorf("%s has none", path)
		}

		for _, text := range texts {
			for _, text := range []string{text, strings.Replace(text, "# "+nativeHistograms, nativeHistograms, 1)} {
				cfg, err := config.Load(text, promslog.NewNopLogger())
				if err != nil {
					t.Errorf("%s: %v\n%s", path, err, text)
					continue
				}

				for _, job := range cfg.ScrapeConfigs {
					if !job.HonorLabels {
						t.Errorf("%s: job %s without honor_labels", path, job.JobName)
					}

					picks += len(job.Params["collect[]"])
				}
			}
		}
	}

	if picks == 0 {
		t.Error("no scrape config picks collectors")
	}
}

// TestREADMEsScrapeConfigIsForOldPrometheus: its keys are those that 2.42 has, and native
// histograms are a comment that names the version.
func TestREADMEsScrapeConfigIsForOldPrometheus(t *testing.T) {
	old := []string{"scrape_configs", "job_name", "honor_labels", "static_configs", "targets"}

	text := strings.Join(scrapeConfigs(t, "../../README.md"), "")
	for line := range strings.Lines(text) {
		line, comment, _ := strings.Cut(line, "#")
		if key, _, found := strings.Cut(strings.TrimLeft(line, " -"), ":"); found && !slices.Contains(old, key) {
			t.Errorf("%s", line)
		}

		if strings.Contains(comment, nativeHistograms) && !strings.Contains(comment, "3.8") {
			t.Errorf("%s does not say since when", comment)
		}
	}

	if !strings.Contains(text, "# "+nativeHistograms) {
		t.Errorf("no native histograms: %s", text)
	}
}
