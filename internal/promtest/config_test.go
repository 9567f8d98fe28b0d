package promtest

import (
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
)

// TestDocumentedScrapeConfigs: Prometheus itself loads those of the README and of docs/metrics.md. That the collectors exist
// which they pick is tested in package collector.
func TestDocumentedScrapeConfigs(t *testing.T) {
	picks := 0
	for _, page := range []string{"../../README.md", "../../docs/metrics.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```(?:yaml)?\n(scrape_configs:\n.*?)```").FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			t.Errorf("%s: no scrape config", page)
		}
		for _, block := range blocks {
			loaded, err := config.Load(block[1], promslog.NewNopLogger())
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			for _, job := range loaded.ScrapeConfigs {
				if !job.HonorLabels {
					t.Errorf("%s: job %s renames the labels of pods", page, job.JobName)
				}
				picks += len(job.Params["collect[]"])
			}
		}
	}
	if picks == 0 {
		t.Error("no scrape config picks collectors")
	}
}
