package promtest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"
)

// fakePrometheus stands in for the real one: it keeps its configuration and says that it is ready.
const fakePrometheus = `#!/bin/sh
for arg; do case $arg in --config.file=*) cp "${arg#*=}" "$KEPT_CONFIG" ;; esac; done
echo "Server is ready to receive web requests."
exec sleep 600
`

// demo is a running deploy/demo.sh.
type demo struct {
	t     *testing.T
	cmd   *exec.Cmd
	dir   string // for temporary files
	lines *bufio.Scanner
	said  []string
}

// freePort returns a port of this machine on which no program listens.
func freePort(t *testing.T) string {
	t.Helper()

	free, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it answers at once
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()

	_, port, err := net.SplitHostPort(free.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	return port
}

// writeTools writes the programs that stand in for Prometheus and promtool into a folder.
func writeTools(t *testing.T) string {
	t.Helper()
	tools := t.TempDir()

	for name, script := range map[string]string{"prometheus": fakePrometheus, "promtool": fakePromtool} {
		if err := os.WriteFile(filepath.Join(tools, name), []byte(script), 0o700); err != nil { //nolint:gosec // it is run
			t.Fatal(err)
		}
	}

	return tools
}

// startDemo starts the demo with nothing on its PATH but what is in tools and the programs that
// every Debian has.
func startDemo(t *testing.T, tools string, env ...string) *demo {
	t.Helper()

	for _, name := range []string{"awk", "bash", "sh", "basename", "cp", "curl", "date", "dirname", "head", "mkdir", "mktemp",
		"rm", "sed", "seq", "setsid", "sleep", "tail"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}

		if err := os.Symlink(path, filepath.Join(tools, name)); err != nil {
			t.Fatal(err)
		}
	}

	dir := t.TempDir()

	built, err := program()
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command("bash", "../../deploy/demo.sh")
	cmd.Env = append(os.Environ(), append([]string{"PATH=" + tools, "MIG_EXPORTER=" + built, "TMPDIR=" + dir,
		"GRAFANA_HOME=/nonexistent", "DEMO_PROMETHEUS_PORT=" + freePort(t)}, env...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })

	return &demo{t: t, cmd: cmd, dir: dir, lines: bufio.NewScanner(out)}
}

// until reads what the demo says up to a line with a text in it.
func (d *demo) until(text string) {
	d.t.Helper()

	for d.lines.Scan() {
		d.said = append(d.said, d.lines.Text())
		if strings.Contains(d.lines.Text(), text) {
			return
		}
	}

	d.t.Fatalf("the demo never says %q:\n%s", text, strings.Join(d.said, "\n"))
}

// interrupt is Ctrl-C, again and again until the demo has ended. Nothing of it may be left.
func (d *demo) interrupt() {
	d.t.Helper()

	if err := syscall.Kill(-d.cmd.Process.Pid, syscall.SIGINT); err != nil { // of the terminal: to all of the group
		d.t.Fatal(err)
	}

	ended := make(chan struct{})
	again := sync.WaitGroup{}
	again.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Millisecond):
				_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGINT)
			}
		}
	})

	for d.lines.Scan() { // until all that hold its output have ended
		d.said = append(d.said, d.lines.Text())
	}

	close(ended)
	again.Wait() // before its process id can be another program's

	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("Ctrl-C: %v\n%s", err, strings.Join(d.said, "\n"))
	}

	d.expectNothingLeft()
}

func (d *demo) expectNothingLeft() {
	d.t.Helper()

	if left, err := os.ReadDir(d.dir); err != nil || len(left) > 0 {
		d.t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestDemo: the demo serves two nodes, and writes a configuration that Prometheus takes, with rules
// that exist.
func TestDemo(t *testing.T) {
	t.Parallel()

	past, url := servePast(t)
	kept := filepath.Join(t.TempDir(), "prometheus.yml")
	d := startDemo(t, writeTools(t), "KEPT_CONFIG="+kept, "PAST="+url, "DEMO_PAST_SECONDS=3600")
	d.until("Ctrl-C")
	expectPast(t, past, time.Hour)

	loaded, err := config.LoadFile(kept, false, promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}

	if len(loaded.RuleFiles) != 1 {
		t.Errorf("rule files %v", loaded.RuleFiles)
	}

	expectShortWaits(t, loaded.RuleFiles)

	for _, job := range loaded.ScrapeConfigs {
		if !job.HonorLabels {
			t.Errorf("job %s has no honor_labels", job.JobName)
		}
	}

	text := readFile(t, kept)
	nodes := 0

	for _, line := range d.said {
		_, url, isNode := strings.Cut(line, "simulated node ")
		if name, address, ok := strings.Cut(url, ": http://"); isNode && ok {
			nodes++

			if !strings.Contains(text, "instance: "+name+",") {
				t.Errorf("the node %s is not the instance of a target: %s", name, text)
			}

			address = strings.TrimSuffix(address, "/")
			if resp, err := http.Get("http://" + address + "/-/healthy"); err != nil || resp.StatusCode != http.StatusOK { //nolint:noctx // it answers at once
				t.Errorf("%s: %v", address, err)
			} else {
				resp.Body.Close()
			}

			if !strings.Contains(text, `"`+address+`"`) {
				t.Errorf("Prometheus does not scrape %s: %s", address, text)
			}
		}
	}

	if nodes != 2 || !strings.Contains(strings.Join(d.said, "\n"), "there is no Grafana") {
		t.Errorf("%d nodes:\n%s", nodes, strings.Join(d.said, "\n"))
	}

	d.interrupt()
}

// expectShortWaits fails the test unless there are rules, of which all alerts wait for 15 s.
func expectShortWaits(t *testing.T, patterns []string) {
	t.Helper()
	waits := regexp.MustCompile(`(?m)^ +for: (.*)$`)

	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Errorf("no rules in %s: %v", pattern, err)
		}

		for _, file := range files {
			for _, wait := range waits.FindAllStringSubmatch(readFile(t, file), -1) {
				if wait[1] != "15s" {
					t.Errorf("%s: an alert waits for %s", file, wait[1])
				}
			}
		}
	}
}

// recent is for how long rules are evaluated every minute, for the dashboards' last day.
const recent = 27 * time.Hour

// expectPast fails the test unless the storage has a past of the node with a sample every five
// minutes up to now, and every minute of late, and of what rules have recorded of it.
func expectPast(t *testing.T, past *demoPast, length time.Duration) {
	t.Helper()

	fives := int(length / (5 * time.Minute))
	minutes := int(min(length, recent) / time.Minute)

	for _, want := range []struct {
		file, name      string
		series, samples int
	}{
		{"history", "up", 1, fives + minutes*4/5},
		{"history", "nvidia_gpu_sm_activity_ratio", 8, fives + minutes*4/5},
		{"recorded", "mig:gpu_busy:avg5m", 7, fives}, // of the GPUs that are held
		{"recorded", "mig:gpu_sm_activity:avg5m", 7, fives},
		{"recorded", "mig:gpu_target:sole", 8, fives},
		{"recorded", "instance:nvidia_power_watts:sum", 1, minutes},
		{"recorded", "instance:nvidia_devices:count", 2, minutes},
		{"recorded", "instance:nvidia_xids:increase5m", 1, minutes},
		{"recorded", "instance:nvidia_layout_changes:increase5m", 1, minutes},
	} {
		whole := 0

		for _, s := range past.of(want.file, want.name) {
			// A few steps are spare: at the beginning, and since the storage was asked later.
			missing := want.samples - len(s.times)
			age := time.Since(time.UnixMilli(s.times[len(s.times)-1]))

			if -10 <= missing && missing <= 10 && age < 10*time.Minute && slices.IsSorted(s.times) {
				whole++
			}

			if age < -time.Minute {
				t.Errorf("%s has a sample of the future", s.labels)
			}

			if got := s.labels.Get("instance"); got != "h100-underused" && got != "" || s.labels.Get("cluster") != "demo" {
				t.Errorf("another target: %s", s.labels)
			}

			if want.file == "history" && s.labels.Get("job") != "mig-exporter" {
				t.Errorf("another job: %s", s.labels)
			}
		}

		if whole != want.series {
			t.Errorf("%d of %d series %s have about %d samples, want %d", whole, len(past.of(want.file, want.name)), want.name,
				want.samples, want.series)
		}
	}
}

// withoutSlices are the recorded series that a node without MIG has none of: the one with a past.
var withoutSlices = map[string]bool{
	"mig:gpu_instance_idle:max15m":                true,
	"mig:gpu_instance_saturation:avg15m":          true,
	"instance:nvidia_mig_slices:sum":              true,
	"instance:nvidia_power_unallocated_watts:sum": true,
}

// notOfDemo are the recorded series that the demo has none of, and why.
var notOfDemo = map[string]string{
	"mig:gpu_instance_rightsizing:sole":            "the node with slices has no past to advise by",
	"mig:gpu_instance_rightsizing:idle_busy_ratio": "the node with slices has no past to advise by",
	"mig:node_gone:count":                          "no node leaves",
	"mig:gpu_missing:info":                         "no GPU is missing",
	"mig:xid:last_timestamp_seconds":               "no GPU has an XID",
	"mig:gpu_media_activity:high5m":                "the collector of media engines is off by default",
	"mig:gpu_media_read:ratio5m":                   "the collector of media engines is off by default",
	"pod:inference_tokens:rate5m":                  "the demo does not load optional rules",
	"pod:inference_tokens_per_watt:rate5m":         "the demo does not load optional rules",
	"pod:inference_tokens_per_slice:rate5m":        "the demo does not load optional rules",
}

// sometimesOfDemo are the recorded series that the demo has at one time and not at another, and why.
var sometimesOfDemo = map[string]string{
	"mig:gpu_instance_saturation:avg15m": "the load of train-0 swings with the wall clock",
}

// expectRecorded fails the test unless each of the recording rules with these names has recorded
// something in a window before a time: all of them but those that cannot, which must not.
func expectRecorded(t *testing.T, past *demoPast, names []string, at time.Time, window time.Duration,
	cannot func(name string) bool,
) {
	t.Helper()

	for _, name := range names {
		v, err := past.EvalAt(`last_over_time({__name__="`+name+`"}[`+model.Duration(window).String()+`])`, at)
		if err != nil {
			t.Fatal(err)
		}

		if len(v) == 0 != cannot(name) {
			t.Errorf("%s has %d series in the %s before %s, cannot have any: %t", name, len(v), window, at, cannot(name))
		}
	}
}

// TestDemoFires: the headline alert fires for the GPUs that the advisor finds too large, less than
// a minute after Prometheus has begun with the demo's past, and that of idle ones for the notebook's.
// All that rules can record is there from the first minute.
func TestDemoFires(t *testing.T) {
	t.Parallel()
	past, url := servePast(t)
	kept := filepath.Join(t.TempDir(), "prometheus.yml")
	d := startDemo(t, writeTools(t), "KEPT_CONFIG="+kept, "PAST="+url)
	d.until("Ctrl-C")
	expectPast(t, past, 8*24*time.Hour)

	expectRecorded(t, past, recordedNames(t), time.Now(), 6*time.Minute, func(name string) bool {
		return withoutSlices[name] || notOfDemo[name] != ""
	})

	// The notebook has held its GPU and been idle all the time.
	v, err := past.EvalAt(`min_over_time(instance:nvidia_devices_held_idle:count{kind="whole"}[23h])`, time.Now())
	if err != nil || len(v) != 1 || v[0].F != 1 {
		t.Errorf("devices that were held and idle, over a day: %v, %v, want 1", v, err)
	}

	loaded, err := config.LoadFile(kept, false, promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}

	interval := time.Duration(loaded.GlobalConfig.EvaluationInterval)
	start := time.Now()
	r := &ruler{t: t, start: start, fired: map[string]*firing{}, groups: loadRules(t,
		rules.EngineQueryFunc(past.promql, past.db), past.db, interval, findFiles(t, loaded.RuleFiles[0])...)}

	for at := start; at.Sub(start) < time.Minute; at = at.Add(interval) {
		for _, job := range loaded.ScrapeConfigs {
			for _, group := range job.ServiceDiscoveryConfigs[0].(discovery.StaticConfig) {
				target := labels.FromStrings("job", job.JobName, "instance", string(group.Labels["instance"]),
					"cluster", string(group.Labels["cluster"]))
				past.AddScrapeFrom(t, target, at, Text, fetchMetrics(t, string(group.Targets[0]["__address__"])))
			}
		}

		r.eval(at)
	}

	// What has been recorded since the start, the evaluation at the start included.
	always := slices.DeleteFunc(recordedNames(t), func(name string) bool { return sometimesOfDemo[name] != "" })
	expectRecorded(t, past, always, start.Add(time.Minute), time.Minute+time.Millisecond, func(name string) bool {
		return notOfDemo[name] != ""
	})

	if got := r.gpusOf("GpuRightsizingCandidate"); got != "0 1 2 5" {
		t.Errorf("GpuRightsizingCandidate fires for GPUs %q, want 0 1 2 5", got)
	}

	idle := r.firingNow("GpuAllocatedIdle")
	if len(idle) != 1 || idle[0].Labels.Get("pod") != "notebook-ben" {
		t.Errorf("GpuAllocatedIdle fires for %v, want that of notebook-ben", idle)
	}

	d.interrupt()
}

func fetchMetrics(t *testing.T, address string) []byte {
	t.Helper()

	resp, err := http.Get("http://" + address + "/metrics") //nolint:noctx // it answers at once
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()

	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", address, resp.Status, err)
	}

	return text
}

// TestDemoOnATakenPort: it says at once that it needs another port, not after eight days of past.
func TestDemoOnATakenPort(t *testing.T) {
	t.Parallel()

	taken, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it answers at once
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	d := startDemo(t, writeTools(t), "DEMO_PROMETHEUS_PORT="+port)
	d.until("DEMO_PROMETHEUS_PORT")

	if len(d.said) != 1 {
		t.Errorf("before it: %q", d.said[:len(d.said)-1])
	}

	if err := d.cmd.Wait(); err == nil {
		t.Error("it ends as if nothing was wrong")
	}

	d.expectNothingLeft()
}

// TestDemoWithoutPrometheus: it says what is missing and how to get it, and serves the nodes all
// the same.
func TestDemoWithoutPrometheus(t *testing.T) {
	t.Parallel()
	d := startDemo(t, t.TempDir())
	d.until("apt-get install prometheus")
	d.until("Ctrl-C")
	d.interrupt()
}
