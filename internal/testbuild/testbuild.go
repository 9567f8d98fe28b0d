// Package testbuild builds the programs and C libraries that tests start, into bin/test. The go
// command links there only what has changed, so that a run of all tests builds each of them once.
package testbuild

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Names of the C libraries.
const (
	NVML = "libnvidia-ml.so.1" // the simulated node
	DCGM = "libdcgm.so.4"      // its host engine
)

// Programs builds mig-exporter and migctl and returns their folder.
func Programs() (string, error) {
	return build("", "", "./cmd/mig-exporter", "./cmd/migctl")
}

// RacePrograms is Programs with the race detector.
func RacePrograms() (string, error) {
	return build("", "race/", "-race", "./cmd/mig-exporter", "./cmd/migctl")
}

// KubectlMig builds kubectl-mig, a module of its own, and returns its path.
func KubectlMig() (string, error) {
	folder, err := build("cmd/kubectl-mig", "kubectl-mig", ".")
	return filepath.Join(folder, "kubectl-mig"), err
}

// Library builds one of the C libraries and returns its folder, which Programs has, too.
func Library(name string) (string, error) {
	source := "./cmd/nvml-sim"
	if name == DCGM {
		source = "./cmd/dcgm-sim"
	}

	return build("", name, "-buildmode=c-shared", "-ldflags=-extldflags=-Wl,-soname,"+name, source)
}

// build runs go build in a folder of the repository, with the given output below bin/test, and
// returns the folder of what it has built.
func build(in, output string, args ...string) (string, error) {
	root, err := findRoot()
	if err != nil {
		return "", err
	}

	output = filepath.Join(root, "bin", "test") + "/" + output
	folder := filepath.Dir(output)

	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // other users run the programs
		return "", err
	}

	unlock, err := lock(folder)
	if err != nil {
		return "", err
	}
	defer unlock()

	command := exec.Command("go", append([]string{"build", "-o", output}, args...)...)
	command.Dir = filepath.Join(root, in)

	if in == "" { // the driver is a C library
		command.Env = append(os.Environ(), "CGO_ENABLED=1")
	}

	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}

	return folder, nil
}

// lock waits until no other process builds into folder: the tests of several packages run at the
// same time.
func lock(folder string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(folder, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}

	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}

	return func() { file.Close() }, nil
}

// findRoot returns the folder of the repository: tests run in the folder of their package.
func findRoot() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}

	for {
		if _, err := os.Stat(filepath.Join(folder, "cmd", "mig-exporter")); err == nil {
			return folder, nil
		}

		parent := filepath.Dir(folder)
		if parent == folder {
			return "", errors.New("no folder above this one has cmd/mig-exporter")
		}

		folder = parent
	}
}
