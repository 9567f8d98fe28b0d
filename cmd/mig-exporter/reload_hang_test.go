package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// fifo puts a pipe without a writer in the place of a file: opening it for reading does not return.
func fifo(t *testing.T, path string) {
	t.Helper()

	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestHangUpWithAPipe: a file that a pipe has taken the place of is refused, and neither the files
// after it nor the end of the program wait for it.
func TestHangUpWithAPipe(t *testing.T) {
	const temperature, power = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n", "DCGM_FI_DEV_POWER_USAGE, gauge, Power.\n"
	counters := write(t, "counters.csv", temperature)
	layouts := write(t, "layouts.yaml",
		"version: v1\nmig-configs:\n  day:\n  - {devices: all, mig-enabled: true, mig-devices: {}}\n")
	c := controlNode(t, write(t, "s.yaml", repartitionScenario), "--metrics.names=both", "--dcgm.counters="+counters,
		"--control.layouts="+layouts)
	fifo(t, counters)
	said := c.hangUp("flag=--control.layouts")
	cmptest.HasTexts(t, said, `what was read before stays in force" flag=--dcgm.counters file=`+counters,
		"expected a regular file", `"file has not changed" flag=--control.layouts`)

	if err := os.Remove(counters); err != nil {
		t.Fatal(err)
	}

	rewrite(t, counters, power)
	c.hangUp("DCGM_FI_DEV_POWER_USAGE added")

	if code := c.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestHangUpWithAFileThatHangs: as on a file system whose server does not answer.
func TestHangUpWithAFileThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		release := make(chan struct{})
		reads := 0
		applied := 0
		change := func(context.Context) ([]string, error) { applied++; return []string{"day added"}, nil }
		hanging := &reloadable{flag: "--dcgm.counters", path: "reload.go", broken: keepsOld, read: func() (applyFunc, error) {
			reads++
			<-release

			return change, nil
		}}
		good := &reloadable{flag: "--control.layouts", path: "reload.go", broken: keepsOld,
			read: func() (applyFunc, error) { return change, nil }}
		r := &reloader{files: []*reloadable{hanging, good}, retry: func() {}, logger: log.NewLogfmtLogger(&said)}
		ctx, cancel := context.WithCancel(t.Context())
		signals := make(chan os.Signal, 1)
		done := make(chan error, 1)
		go func() { done <- r.run(ctx, signals) }()
		hangUp := func(wants ...string) {
			t.Helper()
			said.Reset()
			signals <- syscall.SIGHUP
			time.Sleep(readTimeout)
			synctest.Wait()

			for _, want := range wants {
				if !strings.Contains(said.String(), want) {
					t.Errorf("the log lacks %s:\n%s", want, said.String())
				}
			}
		}
		late := `"cannot read a file in time; what was read before stays in force" flag=--dcgm.counters file=reload.go`
		hangUp(late, "flag=--control.layouts file=reload.go changes=\"day added\"")
		hangUp(late, "has not returned", "flag=--control.layouts file=reload.go changes=\"day added\"")

		if reads != 1 || applied != 2 {
			t.Errorf("%d readings of the file that hangs, %d files put in force; want 1 and 2", reads, applied)
		}

		close(release)
		hangUp(`flag=--dcgm.counters file=reload.go changes="day added"`)

		if reads != 2 || applied != 4 {
			t.Errorf("%d readings, %d files put in force; want 2 and 4: what came too late is read again", reads, applied)
		}

		release = make(chan struct{})
		said.Reset()
		signals <- syscall.SIGHUP
		synctest.Wait()
		stopping := time.Now()
		cancel()

		if err := <-done; err != nil || !time.Now().Equal(stopping) {
			t.Errorf("stopping took %v: %v", time.Since(stopping), err)
		}

		if !strings.Contains(said.String(),
			`msg="abandoned the read of a file: it did not return" flag=--dcgm.counters`) {
			t.Errorf("the log does not say what was abandoned:\n%s", said.String())
		}

		close(release)
	})
}
