// mig-exporter serves metrics of a node's NVIDIA GPUs, GPU instances and compute instances to
// Prometheus.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kingpin/v2"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The exit codes.
const (
	exitOK       = 0 // asked to stop
	exitFailure  = 1 // cannot start: configuration, port
	exitUsage    = 2
	exitMismatch = 3 // driver and library do not match: the service manager restarts this process

	// check-node has exitMissing if the node lacks something, exitNotChecked if it could not find
	// out.
	exitMissing    = 1
	exitNotChecked = 4
)

func main() {
	kingpin.ManPageTemplate = manPage().Template(kingpin.ManPageTemplate)

	ctx, stop := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals) // a second signal ends the process at once
		stop(stopSignal{s})
	}()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line to its end and returns the exit code.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	journal := isJournal(errOut, os.Getenv(journalVariable))

	inv, err := parseCommandLine(args, os.Environ())
	if err != nil {
		printError(errOut, journal, err)
		return exitUsage
	}

	inv.Log.Journal = journal
	logger := newLogger(errOut, inv.Log)
	logWarnings(logger, append(unknownVariables(os.Environ()), inv.Warnings...))
	defer announceStop(ctx, logger)()

	if inv.Command == commandCheck {
		if err := checkConfig(&inv.Config); err != nil {
			printError(errOut, journal, err)
			return exitFailure
		}

		fmt.Fprintln(out, "The configuration is good.")

		return exitOK
	}

	if inv.Command == commandCheckNode {
		complete, err := runCheckNode(ctx, &inv.Config, out, logger)
		if err != nil {
			printError(errOut, journal, err)
			return exitNotChecked
		}

		if !complete {
			return exitMissing
		}

		return exitOK
	}

	if inv.Command == commandCapture {
		// A closed terminal (SIGHUP) ends a capture, unless it runs under nohup.
		if !signal.Ignored(syscall.SIGHUP) {
			hangup, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
			defer stop()
			ctx = hangup
		}

		err = runCapture(ctx, &inv.Config, logger, out)
	} else {
		err = run(ctx, &inv.Config, logger)
	}

	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, gpu.ErrVersionMismatch):
		level.Error(logger).Log(
			"msg", "NVIDIA driver was replaced while this process ran; restart the process",
			"err", err,
		)

		return exitMismatch
	}

	level.Error(logger).Log("msg", "cannot continue", "err", err)

	return exitFailure
}
