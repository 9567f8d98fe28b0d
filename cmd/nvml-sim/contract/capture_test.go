package contract

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// capture runs the built program's capture command and returns the file.
func capture(t *testing.T, env []string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	cmd := exec.Command(built("mig-exporter"), append([]string{
		"capture", "--output=" + path, "--capture.polls=1", "--capture.keep-identities",
	}, args...)...)

	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("capture: %v\n%s", err, out)
	}

	return path
}

func readFile(t *testing.T, path string) string {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// What the program captures through the C library and go-nvml's binding is what it captures in
// process, but for the machine's name and the clock. What a capture replays is held by the
// program's own tests.
func TestCaptureThroughTheCLibrary(t *testing.T) {
	own := regexp.MustCompile(`(?m)^(node: \{hostname: )[^,]+|^(  start: ).*$`)

	for _, name := range []string{"dgx-a100-mixed", "h100-underused", "a30", "gke-h100-3g", "mps-and-timeslicing"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			scenario, err := filepath.Abs(scenarios + name + ".yaml")
			if err != nil {
				t.Fatal(err)
			}

			env := []string{"MIG_SIM_SCENARIO=" + scenario, "MIG_SIM_CLOCK=step"}
			inC := capture(t, env, "--nvml.library-path="+built("libnvidia-ml.so.1"))
			inProcess := capture(t, nil, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario)

			c := own.ReplaceAllString(readFile(t, inC), "$1$2")

			p := own.ReplaceAllString(readFile(t, inProcess), "$1$2")
			if c != p {
				t.Errorf("the captures differ (- in process, + C library):\n%s",
					differ(strings.Split(p, "\n"), strings.Split(c, "\n")))
			}

			if !strings.Contains(c, "nvmlDeviceGetUUID: GPU-") {
				t.Fatalf("the capture has no GPU:\n%s", c)
			}
		})
	}
}

// A disk that is full: what would change the shared state fails and says why, nothing is half-done,
// and both programs go on serving.
func TestDiskFullForState(t *testing.T) {
	path := scenarioFile(t, "version: 1\nnode: {kubernetes: false}\ngpus: [{model: A100-40GB, mig: true}]\n")
	state := filepath.Join(t.TempDir(), "state.json")
	env := []string{"MIG_SIM_SCENARIO=" + path, "MIG_SIM_STATE=" + state, "MIG_SIM_CLOCK=step"}
	inProcess := launch(t, env, "--driver=sim", "--sim.clock=step", "--sim.scenario="+path)
	inC := launch(t, env, "--nvml.library-path="+built("libnvidia-ml.so.1"), "--poll.interval=200ms")
	request(t, http.MethodPost, inProcess+"/-/sim/advance?by=1s")
	before := readFile(t, state)
	full := func() { // the next version of the file is written to a device that has no room
		if err := os.Symlink("/dev/full", state+".next"); err != nil {
			t.Fatal(err)
		}
	}
	full()

	response, err := http.Post(inProcess+"/-/sim/advance?by=1s", "", nil)
	if err != nil {
		t.Fatal(err)
	}

	text := make([]byte, 1000)
	n, _ := response.Body.Read(text)
	response.Body.Close()

	if response.StatusCode != http.StatusConflict || !strings.Contains(string(text[:n]), "no space left") {
		t.Errorf("advance with a full disk: %s, %s", response.Status, text[:n])
	}

	full()

	if _, err := joinState(t, path, state).CreateGPUInstance(0, 9, gpu.Some(0)); err == nil ||
		!strings.Contains(err.Error(), "no space left") {
		t.Errorf("create with a full disk: %v", err)
	}

	if after := readFile(t, state); after != before {
		t.Errorf("the state changed:\n%s\n%s", before, after)
	}

	for _, url := range []string{inProcess, inC} {
		waitFor(t, url, func(scrape string) bool { return strings.Contains(scrape, "\nnvidia_gpu_up{") })
	}

	request(t, http.MethodPost, inProcess+"/-/sim/advance?by=1s")

	if readFile(t, state) == before {
		t.Error("with room again nothing is written")
	}
}

// waitFor scrapes until it sees what it waits for.
func waitFor(t *testing.T, url string, seen func(scrape string) bool) {
	t.Helper()

	for deadline := time.Now().Add(waitLimit); !seen(request(t, http.MethodGet, url+"/metrics")); {
		if time.Now().After(deadline) {
			t.Fatalf("%s never serves it", url)
		}
	}
}
