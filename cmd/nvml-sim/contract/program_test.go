package contract

import (
	"bufio"
	"context"
	"fmt"
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

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// waitLimit bounds what a test waits for another process; nothing depends on how fast it is.
const waitLimit = 2 * time.Minute

var listening = regexp.MustCompile(`msg=listening[^\n]*address=(\S+)`)

// program is the running program.
type program struct {
	url     string
	process *os.Process
	log     *bufio.Reader
}

// launch starts the program on a free port, and returns its address.
func launch(t *testing.T, env []string, args ...string) string {
	t.Helper()
	p := start(t, env, args...)
	go io.Copy(io.Discard, p.log)

	return p.url
}

// start starts the program on a free port. The caller reads its log.
func start(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	cmd := exec.Command(built("mig-exporter"), append([]string{"--web.listen-address=127.0.0.1:0"}, args...)...)
	cmd.Env = append(append(os.Environ(), "TMPDIR="+t.TempDir()), env...)

	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	p := &program{process: cmd.Process, log: bufio.NewReader(stderr)}
	p.url = "http://" + p.waitForLog(t, listening)[1]

	return p
}

// waitForLog reads the log up to a line that matches, and returns the match.
func (p *program) waitForLog(t *testing.T, wanted *regexp.Regexp) []string {
	t.Helper()

	var log strings.Builder
	for {
		line, err := p.log.ReadString('\n')
		log.WriteString(line)

		if m := wanted.FindStringSubmatch(line); m != nil {
			return m
		}

		if err != nil {
			t.Fatalf("the program ended before it logged %s: %v\n%s", wanted, err, &log)
		}
	}
}

// polled is the program with a poll interval that no test reaches. It polls when its counters file
// changes, and after a change of a MIG layout.
type polled struct {
	*program
	counters string // the path of the counters file
	polls    int
}

func startPolled(t *testing.T, env []string, args ...string) *polled {
	t.Helper()
	p := &polled{counters: filepath.Join(t.TempDir(), "counters.csv")}
	p.writeCounters(t)
	p.program = start(t, env, append(args, "--poll.interval=1h", "--metrics.names=both", "--dcgm.counters="+p.counters)...)

	return p
}

// writeCounters writes a counters file that differs from the one before.
func (p *polled) writeCounters(t *testing.T) {
	t.Helper()

	row := fmt.Sprintf("DCGM_FI_DEV_GPU_TEMP, gauge, Temperature after %d polls.\n", p.polls)
	if err := os.WriteFile(p.counters, []byte(row), 0o600); err != nil {
		t.Fatal(err)
	}
}

// poll makes the program poll, and returns when the Snapshot is published.
func (p *polled) poll(t *testing.T) {
	t.Helper()
	p.polls++
	p.writeCounters(t)

	if err := p.process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}

	p.waitForLog(t, regexp.MustCompile(`msg="reloaded a file" flag=--dcgm.counters`))
}

func request(t *testing.T, method, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()

	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}

	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()

	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s, %v\n%s", method, url, response.Status, err, body)
	}

	return string(body)
}

// series are the nvidia_* series of a scrape. What depends on when the program polls is there
// without its value; the count of polls between which the stepped clock has stood still, whose
// activity is no number, is left out.
func series(scrape string) []string {
	byClock := regexp.MustCompile(
		`^(nvidia_gpu_last_read_timestamp_seconds|nvidia_gpu_mig_layout_changes_total|nvidia_\w+_distribution_\w+|nvidia_gpu_clock_event_seconds_total|` +
			`nvidia_gpu_energy_unallocated_joules_total|nvidia_\w+_energy_estimate_joules_total)\b`)
	var list []string

	for line := range strings.Lines(scrape) {
		if !strings.HasPrefix(line, "nvidia_") || strings.HasPrefix(line, "nvidia_gpu_activity_anomalies_total") {
			continue
		}

		line = strings.TrimSpace(line)
		if byClock.MatchString(line) {
			line = line[:strings.LastIndexByte(line, ' ')]
		}

		list = append(list, line)
	}

	return list
}

// The built program serves the same through the C library as from the node in its own process,
// before and after a third process has repartitioned a GPU.
func TestProgramServesTheSame(t *testing.T) {
	path := scenarioFile(t, `
version: 1
node: {kubernetes: false}
gpus:
- {model: A100-40GB, count: 2, mig: true, layout: ["3g.20gb@4", {gi: "2g.10gb@0", ci: ["1c", "1c"]}, {gi: "1g.5gb@2", ci: []}]}
- {model: H100-80GB}
- {model: A30, mig: true, layout: ["2g.12gb@0"]}
workloads:
- {name: steady, memory: 4GiB, sm: 30, dram: 0.4, tensor: 0.2, pcie: 100MiB}
- {name: wave, memory: 2GiB, sm: {sine: {min: 2, max: 12, period: 60s}}}
processes:
- {device: "0/3g.20gb@4", workload: steady}
- {device: "0/2g.10gb@0/1", workload: wave}
- {gpu: 2, workload: steady}
faults: [{kind: xid, at: 5s, gpu: 2, xid: 94, recovery: reset}]
`)
	state := filepath.Join(t.TempDir(), "state.json")

	node := joinState(t, path, state)
	if err := node.Advance(90 * time.Second); err != nil {
		t.Fatal(err)
	}

	env := []string{"MIG_SIM_SCENARIO=" + path, "MIG_SIM_STATE=" + state, "MIG_SIM_CLOCK=step"}
	inProcess := launch(t, env, "--driver=sim", "--sim.clock=step", "--sim.scenario="+path)
	inC := startPolled(t, env, "--nvml.library-path="+built("libnvidia-ml.so.1"), "--kubernetes.socket=")
	// Counters that wrap are totals since the first reading, which must be of the same time.
	inC.poll(t)

	if !strings.Contains(request(t, http.MethodGet, inC.url+"/metrics"), "\nnvidia_gpu_pcie_receive_bytes_total") {
		t.Fatal("nothing is read through the library")
	}

	compareScrapes(t, inProcess, inC)

	id, err := node.CreateGPUInstance(3, 5, gpu.Some(2))
	if err != nil {
		t.Fatal(err)
	}

	if _, err := node.CreateComputeInstance(3, id, 2); err != nil {
		t.Fatal(err)
	}

	compareScrapes(t, inProcess, inC)
}

func joinState(t *testing.T, scenario, state string) *sim.Node {
	t.Helper()

	s, err := sim.Load(scenario)
	if err != nil {
		t.Fatal(err)
	}

	node, err := sim.Join(s, sim.ClockStep, state)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { node.Close() })

	return node
}

// compareScrapes steps the clock, and checks that the program on the library serves then what the
// other one serves. The activity is of the window between two polls, which has none if the clock
// stood still. A poll after a change of the layout can make such a window, and a poll too soon
// after it takes no samples: the clock is stepped again then.
func compareScrapes(t *testing.T, inProcess string, inC *polled) {
	t.Helper()
	const leastSteps = 5 // for two changes of the layout and a poll too soon
	var difference string

	deadline := time.Now().Add(waitLimit)
	for steps := 0; steps < leastSteps || time.Now().Before(deadline); steps++ {
		request(t, http.MethodPost, inProcess+"/-/sim/advance?by=20s")

		wanted := series(request(t, http.MethodGet, inProcess+"/metrics"))
		if len(wanted) < 300 {
			t.Fatalf("only %d series", len(wanted))
		}

		inC.poll(t)

		if difference = differ(wanted, series(request(t, http.MethodGet, inC.url+"/metrics"))); difference == "" {
			return
		}
	}

	t.Errorf("in process (-) and through the library (+):\n%s", difference)
}

func differ(wanted, got []string) string {
	var b strings.Builder

	for _, line := range wanted {
		if !slices.Contains(got, line) {
			fmt.Fprintln(&b, "-", line)
		}
	}

	for _, line := range got {
		if !slices.Contains(wanted, line) {
			fmt.Fprintln(&b, "+", line)
		}
	}

	return b.String()
}
