// Package migctl is the operator's command line for partition control: it shows a node's GPUs on
// their placement axis, plans and applies changes, and follows them. It is a client of
// mig-exporter's control API and touches no driver itself.
package migctl

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kingpin/v2"
)

// The exit codes, as --help lists them.
const (
	exitOK          = 0
	exitFailed      = 1 // refused, or failed and rolled back
	exitUsage       = 2
	exitUnreachable = 3
	exitDegraded    = 4 // degraded or stuck: an operator must act
	// exitNeither follows an interrupted or accepted operation: the layout is neither the previous
	// nor the planned one, and nothing is blocked.
	exitNeither     = 5
	exitUnsettled   = 6 // the layout is as planned; the kubelet does not know it yet, or a hook failed
	exitInterrupted = 130
)

// Run runs one command line on the process's own files and environment, and returns the exit code.
// SIGINT and SIGTERM end the command; a second one kills the process.
func Run(args []string) int { return runProcess(args, nil) }

func runProcess(args []string, program *Program) int {
	kingpin.ManPageTemplate = manPage().Template(kingpin.ManPageTemplate)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	context.AfterFunc(ctx, stop)

	return execute(ctx, args, &session{
		in:          os.Stdin,
		out:         os.Stdout,
		errOut:      os.Stderr,
		inTerminal:  isTerminal(os.Stdin),
		outTerminal: isTerminal(os.Stdout),
		errTerminal: isTerminal(os.Stderr),
		size:        func() (columns, rows int) { return sizeOf(os.Stdout) },
		lookup:      os.LookupEnv,
		retry:       followRetry,
		opts:        options{program: program},
	})
}
