package rival

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// roleVariable makes a child process play a role instead of any test.
const roleVariable = "RIVAL_TEST_ROLE"

var (
	runs        = flag.Int("rival.runs", 4000, "how many requests are made of our program in one process with the rival")
	processRuns = flag.Int("rival.process-runs", 300,
		"how many are made with the rival in a process of its own, on the C library")
	firstSeed = flag.Uint64("rival.seed", 1, "the first seed")
	shown     = flag.Int("rival.shown", 60, "how many of the last calls are shown of a run that has broken a rule")
)

// libraryPath is the simulated driver.
var libraryPath string

// TestMain builds the simulated driver; in a child process it plays that process's role instead of
// any test.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := playRole(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}

		os.Exit(0)
	}

	os.Exit(buildAndRun(m))
}

// sideBySide is how many nodes are tried at once: processes mostly wait for each other.
const sideBySide = "8"

func buildAndRun(m *testing.M) int {
	flag.Parse()

	if err := flag.Set("test.parallel", sideBySide); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	dir, err := testbuild.Library(testbuild.NVML)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	libraryPath = filepath.Join(dir, testbuild.NVML)

	return m.Run()
}
