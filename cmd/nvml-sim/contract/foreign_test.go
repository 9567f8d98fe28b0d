package contract

import (
	"bufio"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite what the foreign client prints")

// A client that knows nothing of this project, in C, gets what is on record: see
// testdata/foreign_client.c.
func TestForeignClient(t *testing.T) {
	cmd := exec.Command(foreignClient(t), built("libnvidia-ml.so.1"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), "MIG_SIM_SCENARIO="+scenarios+"dgx-a100-mixed.yaml", "MIG_SIM_CLOCK=step")

	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, &stderr)
	}

	if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "forked") {
		t.Errorf("says %q", got)
	}

	const golden = "testdata/foreign_client.golden"
	if *update {
		if err := os.WriteFile(golden, out, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if wanted := read(t, golden); wanted != string(out) {
		t.Errorf("(-update rewrites it) was (-) and is (+):\n%s",
			differ(strings.Split(wanted, "\n"), strings.Split(string(out), "\n")))
	}
}

func foreignClient(t *testing.T) (program string) {
	t.Helper()

	return compile(t, read(t, "testdata/foreign_client.c"), "-Wall", "-Werror", "-Wno-deprecated-declarations", "-I",
		filepath.Dir(nvmlHeader(t)), "-ldl", "-pthread")
}

// What is wrong with a file or a setting is on stderr once, and so in the log of the program, where
// it comes before the program's own complaint.
func TestBrokenFilesAreToldOf(t *testing.T) {
	client := foreignClient(t)

	broken := filepath.Join(t.TempDir(), "state.json")
	if err := os.WriteFile(broken, []byte("{no"), 0o600); err != nil {
		t.Fatal(err)
	}

	good := "MIG_SIM_SCENARIO=" + scenarios + "a30.yaml"
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"MIG_SIM_SCENARIO="}, "MIG_SIM_SCENARIO is not set"},
		{[]string{"MIG_SIM_SCENARIO=/no/such.yaml"}, "MIG_SIM_SCENARIO: scenario: open /no/such.yaml"},
		{[]string{"MIG_SIM_SCENARIO=" + scenarioFile(t, "version: 1\ngpus: [{model: Z9}]\n")},
			`scenario.yaml:2: gpus[0].model: is "Z9"`},
		{[]string{good, "MIG_SIM_STATE=" + broken}, "MIG_SIM_STATE: state file of the simulated node: " + broken},
		{[]string{good, "MIG_SIM_STATE=" + broken + "/in/it"}, "not a directory"},
		{[]string{good, "MIG_SIM_CLOCK=fast"}, `MIG_SIM_CLOCK: clock "fast"`},
	} {
		cmd := exec.Command(client, built("libnvidia-ml.so.1"))
		var stderr strings.Builder
		cmd.Stderr, cmd.Env = &stderr, append(os.Environ(), c.env...)

		out, _ := cmd.Output()
		if got := string(out); got != "early: Uninitialized\nnvmlInitWithFlags: Driver Not Loaded\n" {
			t.Errorf("%s: prints %q", c.env, got)
		}

		if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, c.want) {
			t.Errorf("%s: says %q, want %q", c.env, got, c.want)
		}

		if log := complaint(t, c.env); strings.Count(log, c.want) != 1 {
			t.Errorf("%s: the program's log is\n%s", c.env, log)
		}
	}
}

// complaint is the log of the program up to where it says that NVML does not answer.
func complaint(t *testing.T, env []string) string {
	t.Helper()
	cmd := exec.Command(built("mig-exporter"), "--web.listen-address=127.0.0.1:0",
		"--nvml.library-path="+built("libnvidia-ml.so.1"))
	cmd.Env = append(append(os.Environ(), "TMPDIR="+t.TempDir()), env...)

	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	defer cmd.Wait()
	defer cmd.Process.Kill()

	var log strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		log.WriteString(lines.Text() + "\n")

		if strings.Contains(lines.Text(), "nvmlInit: no NVIDIA driver") {
			return log.String()
		}
	}

	t.Fatalf("the program ended without a complaint:\n%s", &log)

	return ""
}
