package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestBoundGPUs: the kernel's list of the driver's devices counts, and the driver's own only where
// that is not there: a container may have a copy of it that stays as it was.
func TestBoundGPUs(t *testing.T) {
	sys := t.TempDir()
	proc := t.TempDir()
	now := time.Unix(1000, 0)
	bound := &boundGPUs{sys: sys, proc: proc, now: func() time.Time { return now }}
	expect := func(want ...string) {
		t.Helper()

		got, err := bound.list()
		if err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "bound GPUs", got, want)
	}
	add := func(path string) {
		t.Helper()

		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := bound.list(); err == nil {
		t.Error("expected an error without the driver's folders")
	}

	add(filepath.Join(proc, "driver/nvidia/gpus/0000:1b:00.0"))
	expect("0000:1b:00.0")

	driver := filepath.Join(sys, "bus/pci/drivers/nvidia")
	for _, name := range []string{"0000:1b:00.0", "bind", "module", "new_id", "uevent"} {
		add(filepath.Join(driver, name))
	}

	add(filepath.Join(proc, "driver/nvidia/gpus/0000:43:00.0"))
	expect("0000:1b:00.0")

	add(filepath.Join(driver, "0000:43:00.0"))
	expect("0000:1b:00.0") // the driver may still be setting the other one up
	now = now.Add(bindingTime)
	expect("0000:1b:00.0", "0000:43:00.0")

	if err := os.Remove(filepath.Join(driver, "0000:1b:00.0")); err != nil {
		t.Fatal(err)
	}

	expect("0000:43:00.0")
}
