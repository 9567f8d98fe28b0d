package promtest

import (
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"
)

// evaluatedNodes is how many of the nodes of make evaluate are compared.
const evaluatedNodes = "10"

// evaluatedGPU is what make evaluate knows of the workload of a GPU.
type evaluatedGPU struct {
	Node, GPU, Kind, Recommended       string
	Harms, Kills, HalfHarms, HalfKills bool
}

// evaluatedSeries has internal/advise/truth write what the exporter serves of its nodes, by scrape,
// and what is true.
func evaluatedSeries(t *testing.T) (scrapes []string, facts map[string]evaluatedGPU) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-run=^TestWriteSeries$",
		"./internal/advise/truth", "-args", "-series="+dir, "-nodes="+evaluatedNodes)

	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	var list []evaluatedGPU
	if err := json.Unmarshal([]byte(readFile(t, filepath.Join(dir, "facts.json"))), &list); err != nil {
		t.Fatal(err)
	}

	facts = map[string]evaluatedGPU{}
	for _, f := range list {
		facts[f.Node+" "+f.GPU] = f
	}

	return strings.Split(readFile(t, filepath.Join(dir, "series.txt")), "#! ")[1:], facts
}

// evaluatedAlerts runs the shipped rules over scrapes, and returns the GPUs that alerts fire for in
// the end.
func evaluatedAlerts(t *testing.T, scrapes []string, names ...string) map[string][]string {
	t.Helper()
	p := NewPrometheus(t)
	var r *ruler
	var at, next time.Time
	evaluate := func() {
		since := at.Sub(r.start)
		isLast := slices.Contains(lastEvaluations(), since)

		for _, due := range []struct {
			group string // each reads what those before it have recorded
			now   bool
		}{
			{"mig-alerts-days", true},
			{"mig-alerts-holders", isLast || since%(24*time.Hour) == 0}, // asked for now, a day and two days ago
			{"mig-alerts-rightsizing", isLast}, {"mig-alerts-advisor", isLast}, {"mig-alerts-use", isLast},
		} {
			i := slices.IndexFunc(r.groups, func(g *rules.Group) bool { return g.Name() == due.group })
			if due.now {
				r.evalGroup(r.groups[i], at)
			}
		}
	}

	for _, scrape := range scrapes {
		head, exposition, _ := strings.Cut(scrape, "\n")
		millis, node, _ := strings.Cut(head, " ")

		ms, err := strconv.ParseInt(millis, 10, 64)
		if err != nil {
			t.Fatal(err)
		}

		if next = time.UnixMilli(ms).UTC(); r == nil {
			at, r = next, newRuler(t, p.db, next, rules.EngineQueryFunc(p.promql, p.db))
		}

		if next.After(at) {
			evaluate()
		}

		at = next
		p.AddScrapeFrom(t, labels.FromStrings("instance", node), at, Text, []byte(exposition))
	}

	evaluate()
	fired := map[string][]string{}

	for _, name := range names {
		for _, a := range r.firingNow(name) {
			fired[name] = append(fired[name], a.Labels.Get("instance")+" "+a.Labels.Get("gpu"))
		}
	}

	return fired
}

// lastEvaluations are those of alerts, two of them as far apart as the longest of them waits; two
// days are before.
func lastEvaluations() []time.Duration {
	last := 50*time.Hour - 5*time.Minute

	return []time.Duration{last - 15*time.Minute - 48*time.Hour, last - 48*time.Hour, last - 39*time.Hour,
		last - 15*time.Minute - 24*time.Hour, last - 24*time.Hour, last - 15*time.Minute, last}
}

// withoutAdvice returns scrapes of exporters that have no advisor.
func withoutAdvice(scrapes []string) []string {
	advice := regexp.MustCompile(`(?m)^nvidia_(gpu|mig_gpu_instance)_rightsizing_.*\n`)

	plain := make([]string, 0, len(scrapes))
	for _, scrape := range scrapes {
		plain = append(plain, advice.ReplaceAllString(scrape, ""))
	}

	return plain
}

// TestAdvisorBesideThePlainRule compares both on nodes of make evaluate, two weeks old. The
// advisor's alert fires for what is recommended, and kills nothing. Without an advisor GpuUnderused
// goes by five-minute means and names no profile: it sees narrow kernels that are busy, but with
// half of the memory a slice kills some of what it names.
func TestAdvisorBesideThePlainRule(t *testing.T) {
	t.Parallel()
	scrapes, facts := evaluatedSeries(t)
	const advisor, plain = "GpuRightsizingCandidate", "GpuUnderused"
	fired := evaluatedAlerts(t, scrapes, advisor)
	fired[plain] = evaluatedAlerts(t, withoutAdvice(scrapes), plain)[plain]
	var recommended []string
	missed := map[string]int{}
	harmed := map[string]int{}
	halfHarmed := map[string]int{}
	halfKilled := 0
	both := 0
	narrow := 0

	for _, name := range slices.Sorted(maps.Keys(facts)) {
		f := facts[name]

		underused := slices.Contains(fired[plain], name)
		if underused && f.Kind == "narrow-busy" {
			narrow++
		}

		if underused && f.HalfHarms {
			halfHarmed[f.Kind]++
		}

		if underused && f.HalfKills {
			halfKilled++
		}

		if f.Recommended == "" {
			continue
		}

		recommended = append(recommended, name)

		if f.Harms {
			harmed[f.Kind]++
		}

		if f.Kills {
			t.Errorf("%s (%s) lacks memory or an engine in %s", name, f.Kind, f.Recommended)
		}

		if underused {
			both++
		} else {
			missed[f.Kind]++
		}
	}

	slices.Sort(fired[advisor])

	if !slices.Equal(fired[advisor], recommended) {
		t.Errorf("%s fires for %q, want %q", advisor, fired[advisor], recommended)
	}

	t.Logf("of %d workloads %s names %d and harms %v; %s names %d and harms %v, of which %d in common; it misses %v",
		len(facts), advisor, len(recommended), harmed, plain, len(fired[plain]), halfHarmed, both, missed)

	if both == 0 || narrow == 0 || halfKilled == 0 {
		t.Errorf("%s names %d in common, %d narrow-busy and kills %d: docs/alerts.md says that there are some of each",
			plain, both, narrow, halfKilled)
	}
}
