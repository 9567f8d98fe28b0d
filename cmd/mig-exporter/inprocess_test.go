package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// expectError fails the test unless an error has a text; the empty text means no error.
func expectError(t *testing.T, what string, err error, text string) {
	t.Helper()

	switch {
	case text == "" && err != nil:
		t.Errorf("%s: %v, want no error", what, err)
	case text != "" && err == nil:
		t.Errorf("%s: no error, want %q", what, text)
	case err != nil:
		cmptest.HasTexts(t, err.Error(), text)
	}
}

// runInProcess is startInProcess with a stepped clock, and polls once.
func runInProcess(tb testing.TB, flags ...string) *exporter {
	tb.Helper()
	x := startInProcess(tb, append([]string{"--sim.clock=step"}, flags...)...)
	pollOnce(tb, x)

	return x
}

// startInProcess runs the program on a simulated node, without its sockets. A test ends with what
// the loop and partition control return.
func startInProcess(tb testing.TB, flags ...string) *exporter {
	tb.Helper()

	return startOn(tb, log.NewNopLogger(), func(*node) {}, flags...)
}

// startOn is startInProcess with a log, on a node that a test has changed.
func startOn(tb testing.TB, logger log.Logger, change func(*node), flags ...string) *exporter {
	tb.Helper()

	inv, err := parseCommandLine(append([]string{"--driver=sim"}, flags...), os.Environ())
	if err != nil {
		tb.Fatal(err)
	}

	n, err := openNode(&inv.Config, logger)
	if err != nil {
		tb.Fatal(err)
	}

	change(n)

	x, err := newExporterOf(n, &inv.Config, logger)
	if err != nil {
		tb.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	parts := append(x.node.parts, x.poller.Run)
	ended := make(chan error, 1)
	go func() { ended <- runTogether(ctx, parts) }()
	tb.Cleanup(func() {
		cancel()

		if err := <-ended; err != nil {
			tb.Error(err)
		}

		x.close()
	})

	return x
}

// pollOnce moves the clock by a second and polls.
func pollOnce(tb testing.TB, x *exporter) {
	tb.Helper()
	advanceBy(tb, x, time.Second)
}

// advanceBy moves the clock and polls.
func advanceBy(tb testing.TB, x *exporter, by time.Duration) {
	tb.Helper()
	node := simulatedNode(x)

	err := x.poller.Poll(context.Background(), func() error {
		if err := node.Advance(by); err != nil {
			return err
		}

		node.AwaitHandled(context.Background())

		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// simulatedNode returns the simulated node of an exporter.
func simulatedNode(x *exporter) *sim.Node { return x.node.kind.(simulation).Node }
