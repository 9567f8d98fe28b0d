package promtest

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// fakePrometheus stands in for the real one: it keeps its configuration and says that it is ready.
const fakePrometheus = `#!/bin/sh
for arg; do case $arg in --config.file=*) cp "${arg#*=}" "$KEPT_CONFIG" ;; esac; done
echo "Server is ready to receive web requests."
exec sleep 600
`

// fakePromtool keeps the history that it is given, the last argument but one.
const fakePromtool = `#!/bin/sh
while [ $# -gt 2 ]; do shift; done
cp "$1" "$KEPT_HISTORY"
`

// demo is a running deploy/demo.sh.
type demo struct {
	t     *testing.T
	cmd   *exec.Cmd
	dir   string // for temporary files
	lines *bufio.Scanner
	said  []string
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
	cmd.Env = append(os.Environ(), append(env, "PATH="+tools, "MIG_EXPORTER="+built, "TMPDIR="+dir,
		"GRAFANA_HOME=/nonexistent")...)
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

// interrupt is Ctrl-C. Nothing of the demo may be left.
func (d *demo) interrupt() {
	d.t.Helper()

	if err := syscall.Kill(-d.cmd.Process.Pid, syscall.SIGINT); err != nil { // of the terminal: to all of the group
		d.t.Fatal(err)
	}

	for d.lines.Scan() { // until all that hold its output have ended
		d.said = append(d.said, d.lines.Text())
	}

	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("Ctrl-C: %v\n%s", err, strings.Join(d.said, "\n"))
	}

	if left, err := os.ReadDir(d.dir); err != nil || len(left) > 0 {
		d.t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestDemo: the demo serves two nodes, and writes a configuration that Prometheus takes, with rules
// that exist.
func TestDemo(t *testing.T) {
	t.Parallel()

	tools := t.TempDir()

	kept := filepath.Join(t.TempDir(), "prometheus.yml")
	for name, script := range map[string]string{"prometheus": fakePrometheus, "promtool": fakePromtool} {
		if err := os.WriteFile(filepath.Join(tools, name), []byte(script), 0o700); err != nil { //nolint:gosec // it is run
			t.Fatal(err)
		}
	}

	history := filepath.Join(t.TempDir(), "history")
	d := startDemo(t, tools, "KEPT_CONFIG="+kept, "KEPT_HISTORY="+history, "DEMO_PAST_SECONDS=3600")
	d.until("Ctrl-C")
	expectPast(t, readFile(t, history), 12)

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

// expectPast fails the test unless promtool can read a history, and it has so many samples of a
// GPU, the last one of now.
func expectPast(t *testing.T, text string, samples int) {
	t.Helper()
	p := textparse.NewOpenMetricsParser([]byte(text), labels.NewSymbolTable())
	var times []int64

	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		}

		if err != nil {
			t.Fatal(err)
		}

		if entry != textparse.EntrySeries {
			continue
		}

		var l labels.Labels
		p.Labels(&l)

		_, at, _ := p.Series()
		if at == nil || l.Get("instance") != "h100-underused" || l.Get("job") != "mig-exporter" {
			t.Fatalf("%s at %v", l, at)
		}

		if l.Get(model.MetricNameLabel) == "nvidia_gpu_sm_activity_ratio" && l.Get("gpu") == "1" {
			times = append(times, *at)
		}
	}

	if len(times) != samples || !slices.IsSorted(times) {
		t.Fatalf("samples at %v; expected %d", times, samples)
	}

	if age := time.Since(time.UnixMilli(times[samples-1])); age < 0 || age > 10*time.Minute {
		t.Errorf("the last sample is of %s ago", age)
	}
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
