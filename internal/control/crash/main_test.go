package crash

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// The environment of a child process: the role that it plays, and where its node and journal are.
const (
	roleVariable  = "CRASH_TEST_ROLE"
	dirVariable   = "CRASH_TEST_DIR"
	bootVariable  = "CRASH_TEST_BOOT"
	pointVariable = "CRASH_TEST_POINT" // at which it kills itself; 0 is never
)

// libraryPath is the simulated driver.
var libraryPath string

// TestMain builds the simulated driver; in a child process it plays that process's role instead of
// any test.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}

		os.Exit(0)
	}

	os.Exit(buildAndRun(m))
}

// sideBySide is how many nodes are tried at once: they mostly wait for the disk.
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
