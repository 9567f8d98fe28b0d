package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

// faultyScenario is a bare node on which everything goes wrong within a few seconds.
const faultyScenario = `version: 1
node: {hostname: prod-17, driver: "525.147.05", cuda: "12.0", kubernetes: false, privileged: true}
gpus:
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", "2g.10gb@0", "1g.5gb@2"]}
  - {model: A100-40GB}
  - {model: A100-40GB}
workloads: [{name: work, memory: 6GiB, sm: 20, pcie: 8MiB}]
processes: [{device: "0/3g.20gb@4", workload: work}, {device: "1", workload: work}, {device: "2", workload: work}]
faults:
  - {kind: no-permission, at: 1s, for: 2s}
  - {kind: not-supported, reading: power, gpu: 1, at: 0s, for: 1h}
  - {kind: xid, gpu: 0, xid: 31, gi: 2, at: 2s}
  - {kind: lost, gpu: 2, at: 1s, for: 2s}
  - {kind: external-reconfigure, gpu: 0, layout: ["4g.20gb@0", "3g.20gb@4"], at: 3s}
  - {kind: events-lost, at: 4s}
`

// hungScenario: a GPU hangs from the second poll on.
const hungScenario = `version: 1
node: {hostname: prod-17, driver: "580.95.05", cuda: "13.0", kubernetes: false}
gpus: [{model: H100-80GB}, {model: H100-80GB}]
faults: [{kind: hang, gpu: 1, at: 50ms}]
`

// captureRun is a node that is captured or replayed, and how its time goes.
type captureRun struct {
	scenario string
	by       time.Duration // between two polls
	polls    int
}

func (r captureRun) of(scenario string) captureRun {
	r.scenario = scenario
	return r
}

func (r captureRun) config(t *testing.T, args ...string) *Config {
	t.Helper()
	return configOf(t, append(args, "--sim.scenario="+r.scenario, "--poll.interval="+r.by.String())...)
}

func shipped(t *testing.T) []string {
	t.Helper()

	paths, err := filepath.Glob("../../testdata/scenarios/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}

	return paths
}

func configOf(t *testing.T, args ...string) *Config {
	t.Helper()

	inv, err := parseCommandLine(append(args, "--driver=sim", "--sim.clock=step"), os.Environ())
	if err != nil {
		t.Fatal(err)
	}

	return &inv.Config
}

// served is what a node without a kubelet serves after each of some polls.
func served(t *testing.T, r captureRun) []string {
	t.Helper()
	cfg := r.config(t)
	logger := log.NewNopLogger()

	n, err := openDriver(&cfg.Driver, logger)
	if err != nil {
		t.Fatal(err)
	}

	x := &exporter{
		node: n, source: nvmlsource.New(n.library, nvmlsource.Options{Now: n.now, GPM: cfg.Profiling.asksGPM(),
			ProcessUtilization: true, Logger: logger}), logger: logger,
		flush: func(context.Context) {},
	}
	defer closeSource(x.source, logger)
	defer n.close() // before the driver: what hangs returns

	metrics, err := collector.New(collector.Options{
		DriverUse: x.source.DriverUse, Now: n.now, Disabled: map[string]bool{"media": false},
	})
	if x.metrics = newServedMetrics(metrics); err != nil {
		t.Fatal(err)
	}

	x.fresh, _ = newProcessRegistry()
	opts := n.pollOptions(&cfg.Poll)
	opts.Observe = func(s *gpu.Snapshot, _ time.Duration) { x.metrics.Observe(s) }
	opts.Extras = allExtras()
	x.poller = poll.New(x.source, opts)
	x.health = health.New(0, n.now())
	x.state = web.NewNode(x.poller, history.New(time.Minute), x.reportHealth, logger)
	h := web.NewHandler(x.webOptions(&cfg.Web, &cfg.Poll), x.poller, x.metrics, x.fresh, logger)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- x.poller.Run(ctx) }()
	defer func() {
		cancel()

		if err := <-done; err != nil {
			t.Errorf("the loop: %v", err)
		}
	}()
	var texts []string

	for i := range r.polls {
		if i == 0 {
			if err := x.poller.Poll(t.Context(), func() error { return errFirstPoll }); !errors.Is(err, errFirstPoll) {
				t.Fatal(err)
			}
		} else if code, body := call(h, http.MethodPost, "/-/sim/advance?by="+r.by.String()); code != http.StatusOK {
			t.Fatalf("advance: %d %s", code, body)
		}

		code, body := call(h, http.MethodGet, "/metrics")
		if code != http.StatusOK {
			t.Fatalf("/metrics: %d %s", code, body)
		}

		texts = append(texts, ofGPUs(body))
	}

	return texts
}

func call(h http.Handler, method, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))

	return w.Code, w.Body.String()
}

// ofGPUs keeps what is reported of the driver and the GPUs.
func ofGPUs(text string) string {
	var out strings.Builder

	for line := range strings.Lines(text) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if strings.HasPrefix(name, "nvidia_") {
			out.WriteString(line)
		}
	}

	return out.String()
}

// captured captures the same polls and returns the file.
func captured(t *testing.T, r captureRun, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")

	cfg := r.config(t, append([]string{"capture", "--output=" + path, fmt.Sprintf("--capture.polls=%d", r.polls)},
		args...)...)
	if err := runCapture(t.Context(), cfg, log.NewNopLogger(), nil); err != nil {
		t.Fatal(err)
	}

	return path
}

func comparePolls(t *testing.T, want, got []string) {
	t.Helper()

	for i := range want {
		if !strings.Contains(want[i], "nvidia_gpu_") {
			t.Fatalf("poll %d reports nothing of a GPU:\n%s", i+1, want[i])
		}

		if got[i] != want[i] {
			t.Errorf("poll %d (- captured node, + replay):\n%s", i+1, firstDifferences(want[i], got[i], 20))
		}
	}
}

// TestReplayByteForByte: what a captured node served, its capture serves again.
func TestReplayByteForByte(t *testing.T) {
	runs := map[string]captureRun{
		"faults":        {write(t, "faulty.yaml", faultyScenario), time.Second, 7},
		"events, later": {"../../testdata/scenarios/dgx-a100-mixed.yaml", 17 * time.Minute, 5},
	}
	for _, path := range shipped(t) {
		runs[filepath.Base(path)] = captureRun{path, time.Second, 3}
	}

	for name, r := range runs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := served(t, r)
			kept := captured(t, r, "--capture.keep-identities")
			comparePolls(t, want, served(t, r.of(kept)))

			again := captured(t, r.of(kept), "--capture.keep-identities")
			if a, b := readText(t, kept), readText(t, again); a != b {
				t.Errorf("the capture of its replay is another file:\n%s", firstDifferences(a, b, 20))
			}

			named := captured(t, r)
			replacer := bijection(t, readText(t, kept), readText(t, named))

			got := served(t, r.of(named))
			for i := range want {
				want[i], got[i] = sortLines(replacer.Replace(want[i])), sortLines(got[i])
			}

			comparePolls(t, want, got)
		})
	}
}

// TestReplayOfAHangingGPU: it hangs again, and the others are read.
func TestReplayOfAHangingGPU(t *testing.T) {
	t.Parallel()
	r := captureRun{write(t, "hung.yaml", hungScenario), 50 * time.Millisecond, 4}

	path := captured(t, r, "--capture.keep-identities")
	if text := readText(t, path); strings.Count(text, "1: {hangs: ever}}}") != 1 {
		t.Errorf("the call that hangs:\n%s", text)
	}

	want := served(t, r)
	comparePolls(t, want, served(t, r.of(path)))
}

func readText(t *testing.T, path string) string {
	t.Helper()

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}

func sortLines(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)

	return strings.Join(lines, "\n")
}

var (
	identities = regexp.MustCompile(
		`(?:MIG-)?GPU-[0-9a-f-]{36}|MIG-[0-9a-f-]{36}|nvmlDeviceGetSerial: [^\s{}]+|hostname: [^,]+|pid: \d+`)
	serialKey = regexp.MustCompile(`^nvmlDeviceGetSerial: "?([^"]+)"?$`)
)

// bijection finds the pseudonym of every identity by its place in the file, and wants one for each
// and each for one.
func bijection(t *testing.T, kept, named string) *strings.Replacer {
	t.Helper()
	_, kept, _ = strings.Cut(kept, "\nversion: ") // the heads speak of identities, too
	_, named, _ = strings.Cut(named, "\nversion: ")

	own := identities.FindAllString(kept, -1)

	pseudonyms := identities.FindAllString(named, -1)
	if len(own) != len(pseudonyms) {
		t.Fatalf("%d identities, %d pseudonyms", len(own), len(pseudonyms))
	}

	to := map[string]string{}
	from := map[string]string{}
	var pairs []string

	for i, o := range own {
		p := pseudonyms[i]
		if to[o] != "" && to[o] != p || from[p] != "" && from[p] != o {
			t.Errorf("%s is %s here, %s there; %s was %s", o, p, to[o], p, from[p])
		}

		if o == p || strings.Contains(named, o) {
			t.Errorf("%s is still there", o)
		}

		to[o], from[p] = p, o
		if s := serialKey.FindStringSubmatch(o); s != nil {
			o, p = s[1], serialKey.FindStringSubmatch(p)[1]
		}

		if !strings.HasPrefix(o, "pid: ") {
			pairs = append(pairs, o, p)
		}
	}

	return strings.NewReplacer(pairs...)
}

// TestCaptureHasNoSecrets asks a node for its identities and looks for them in its capture.
func TestCaptureHasNoSecrets(t *testing.T) {
	r := captureRun{"../../testdata/scenarios/dgx-a100-mixed.yaml", time.Second, 2}

	n, err := openDriver(&r.config(t).Driver, log.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	secrets := identitiesOf(t, n)
	file := readText(t, captured(t, r))
	kept := readText(t, captured(t, r, "--capture.keep-identities"))
	pods := []string{"namespace", "resnet", "ml-team"}

	for _, secret := range secrets {
		if strings.Contains(file, secret) {
			t.Errorf("%s is in the capture", secret)
		}

		if !strings.Contains(kept, secret) {
			t.Errorf("%s is not in the capture with identities", secret)
		}
	}

	for _, secret := range pods {
		if strings.Contains(kept, secret) {
			t.Errorf("%s is in the capture", secret)
		}
	}

	if len(secrets) < 30 {
		t.Errorf("only %d identities: %q", len(secrets), secrets)
	}
}

func identitiesOf(t *testing.T, n *node) []string {
	t.Helper()
	source := nvmlsource.New(n.library, nvmlsource.Options{Now: n.now, Logger: n.logger})
	defer closeSource(source, n.logger)

	inventory, err := source.Discover()
	if err != nil {
		t.Fatal(err)
	}

	list := []string{n.hostname}

	for _, found := range inventory.GPUs {
		g, err := source.Read(found.UUID)
		if err != nil {
			t.Fatal(err)
		}

		list = append(list, string(g.UUID), g.Serial)
		for _, p := range g.Readings.Processes.Or(nil) {
			list = append(list, fmt.Sprintf("pid: %d,", p.PID))
		}

		for _, gi := range g.Instances {
			for _, ci := range gi.ComputeInstances {
				list = append(list, string(ci.UUID))
			}
		}
	}

	return list
}

// TestCaptureCommand drives the built program as an operator does.
func TestCaptureCommand(t *testing.T) {
	scenario := "--sim.scenario=../../testdata/scenarios/a30.yaml"
	path := filepath.Join(t.TempDir(), "node.yaml")
	exec := func(args ...string) (code int, out, errOut string) {
		t.Helper()
		var o, e bytes.Buffer
		code = execute(t.Context(), args, &o, &e)

		return code, o.String(), e.String()
	}
	expect := func(what string, want int, says string, args ...string) string {
		t.Helper()

		code, out, errOut := exec(args...)
		if code != want || !strings.Contains(errOut+out, says) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", what, code, want, says, errOut)
		}

		return out
	}
	sim := []string{"capture", "--driver=sim", "--sim.clock=step", scenario}
	with := func(args ...string) []string { return slices.Concat(sim, args) }
	expect("no output", exitUsage, "--output", sim...)
	expect("no polls", exitUsage, "--capture.polls=0", with("--output=-", "--capture.polls=0")...)
	expect("file", exitOK, "wrote the capture", with("--output="+path)...)
	expect("file that is there", exitFailure, "remove the file", with("--output="+path)...)
	expect("a directory", exitFailure, "no regular file", with("--output="+filepath.Dir(path))...)
	expect("no directory", exitFailure, "no such file", with("--output=/no/such/node.yaml")...)

	if out := expect("standard output", exitOK, "recorded:", with("--output=-")...); out != readText(t, path) {
		t.Error("standard output and the file differ")
	}

	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v (%v)", left, err)
	}

	recorded := "--sim.scenario=" + path
	expect("check-config", exitOK, "good", "check-config", "--driver=sim", recorded)
	expect("sped up", exitFailure, "--sim.clock=x60", "capture", "--driver=sim", recorded, "--output=-", "--sim.clock=x60")

	broken := write(t, "broken.yaml",
		strings.Replace(readText(t, path), "nvmlDeviceGetCount: 2", "nvmlDeviceGetCount: two", 1))
	for _, command := range [][]string{{"check-config"}, {"serve"}, {"capture", "--output=-"}} {
		expect(command[0]+" of a broken file", exitFailure, broken+":22: recorded.node.nvmlDeviceGetCount: is ",
			append(command, "--driver=sim", "--sim.scenario="+broken)...)
	}

	none := "--nvml.library-path=" + filepath.Join(t.TempDir(), "libnvidia-ml.so.1")

	without := expect("without a driver", exitOK, "driver does not answer", "capture", "--output=-", none,
		"--capture.polls=1")
	if !strings.Contains(without, "nvmlInit: {error: LIBRARY_NOT_FOUND}") {
		t.Errorf("capture without a driver:\n%s", without)
	}
}
