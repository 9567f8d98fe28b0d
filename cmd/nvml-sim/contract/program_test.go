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
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// patience bounds what a test waits for another process; nothing depends on how fast it is.
const patience = 2 * time.Minute

var listening = regexp.MustCompile(`msg="?Listening[^\n]*address=(\S+)`)

// launch starts the program on a free port, and returns its address.
func launch(t *testing.T, env []string, args ...string) string {
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
	var log strings.Builder
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		log.WriteString(line)
		if m := listening.FindStringSubmatch(line); m != nil {
			go io.Copy(io.Discard, lines)
			return "http://" + m[1]
		}
		if err != nil {
			t.Fatalf("the program ended before it listened: %v\n%s", err, &log)
		}
	}
}

func request(t *testing.T, method, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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

// series are the nvidia_* series of a scrape. What depends on when the program polls is there without its value; the count of
// polls between which the stepped clock has stood still, whose activity is no number, is left out.
func series(scrape string) []string {
	byClock := regexp.MustCompile(`^(nvidia_gpu_last_read_timestamp_seconds|nvidia_gpu_mig_layout_changes_total|nvidia_\w+_distribution_\w+|nvidia_gpu_clock_event_seconds_total|` +
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

// The built program serves the same through the C library as from the node in its own process, before and after a third
// process has cut a GPU.
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
	inC := launch(t, env, "--nvml.library-path="+built("libnvidia-ml.so.1"), "--poll.interval=200ms")
	// Counters that wrap are totals since the first reading, which must be of the same time.
	for deadline := time.Now().Add(patience); !strings.Contains(request(t, http.MethodGet, inC+"/metrics"), "\nnvidia_gpu_pcie_receive_bytes_total"); {
		if time.Now().After(deadline) {
			t.Fatal("nothing is read through the library")
		}
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

// compareScrapes steps the clock until the program on the library has served what the other one serves. Its activity is of one
// poll: the next one finds that the clock has stood still. So the clock is stepped again if that poll was missed.
func compareScrapes(t *testing.T, inProcess, inC string) {
	t.Helper()
	var difference string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		request(t, http.MethodPost, inProcess+"/-/sim/advance?by=20s")
		wanted := series(request(t, http.MethodGet, inProcess+"/metrics"))
		if len(wanted) < 300 {
			t.Fatalf("only %d series", len(wanted))
		}
		for missed := time.Now().Add(5 * time.Second); time.Now().Before(missed); {
			got := series(request(t, http.MethodGet, inC+"/metrics"))
			if difference = differ(wanted, got); difference == "" {
				return
			}
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
