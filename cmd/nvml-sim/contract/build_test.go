package contract

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// builtVariable is the environment variable with which a child process finds the built library and
// program are.
const builtVariable = "NVML_SIM_TEST_BUILT"

const scenarios = "../../../testdata/scenarios/"

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	if os.Getenv(builtVariable) != "" {
		return m.Run()
	}

	dir, err := testbuild.Library(testbuild.NVML)
	if err == nil {
		_, err = testbuild.Programs() // in the same folder
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	if err := os.Setenv(builtVariable, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return m.Run()
}

func built(name string) string { return filepath.Join(os.Getenv(builtVariable), name) }

// childVariable names the test that a child process runs.
const childVariable = "NVML_SIM_TEST_CHILD"

// inChild runs the calling test again in a process of its own, with more environment: go-nvml binds
// one library for a whole process. It returns true in the child, where the test goes on, and false
// when the child has ended well.
func inChild(t *testing.T, env ...string) bool {
	t.Helper()

	if os.Getenv(childVariable) == t.Name() {
		return true
	}

	child := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")

	child.Env = append(append(os.Environ(), childVariable+"="+t.Name()), env...)
	if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}

	return false
}

// scenarioFile writes a scenario.
func scenarioFile(t *testing.T, text string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}
