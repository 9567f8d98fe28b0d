package contract

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite what the foreign client prints")

// A client that knows nothing of this project, in C, is told what is on record: see testdata/foreign_client.c.
func TestForeignClient(t *testing.T) {
	program := compile(t, read(t, "testdata/foreign_client.c"), "-Wno-deprecated-declarations", "-I", filepath.Dir(nvmlHeader(t)), "-ldl", "-pthread")
	cmd := exec.Command(program, built("libnvidia-ml.so.1"))
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
		t.Errorf("(-update rewrites it) was (-) and is (+):\n%s", differ(strings.Split(wanted, "\n"), strings.Split(string(out), "\n")))
	}
}
