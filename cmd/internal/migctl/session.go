package migctl

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"
)

// session is one run of the program: its files, its environment and its command line.
type session struct {
	in                                   io.Reader
	out, errOut                          io.Writer
	inTerminal, outTerminal, errTerminal bool
	size                                 func() (columns, rows int)  // of standard output
	lookup                               func(string) (string, bool) // finds an environment variable
	// retry is how long to wait before connecting again to follow an operation or a node.
	retry time.Duration

	opts   options
	client *client
	page   *page
}

// execute runs one command line to its end and returns the exit code.
func execute(ctx context.Context, args []string, s *session) int {
	done, err := s.parseCommandLine(args)
	if done {
		return exitOK
	}

	s.page = s.newPage(s.out, s.outTerminal)
	if s.opts.printsOutcome() { // standard output has only the document
		s.page = s.newPage(s.errOut, s.errTerminal)
	}

	code := exitOK

	switch {
	case err != nil:
	case s.opts.own:
		code, err = s.opts.program.Own(ctx, s.line())
	case s.opts.AllNodes || strings.Contains(s.opts.Node, ","):
		code, err = s.runOnNodes(ctx)
	default:
		err = s.runCommand(ctx)
	}

	if flushError := s.page.flush(); err == nil {
		err = flushError
	}

	// A reader such as head closes the pipe when it has enough.
	if err == nil || errors.Is(err, syscall.EPIPE) {
		return code
	}

	return cmp.Or(code, s.reportError(err))
}

func (s *session) newPage(out io.Writer, terminal bool) *page {
	p := newPage(out, wantsColor(s.opts.Color, terminal, s.lookup), usesUTF8(s.lookup))
	p.rename = s.opts.renamer()

	return p
}

// runCommand runs the command.
func (s *session) runCommand(ctx context.Context) error {
	switch s.opts.Command {
	case commandFleet:
		return s.fleet(ctx)
	case commandTop:
		return s.top(ctx)
	default:
		return s.runWithServer(ctx)
	}
}

// runWithServer runs a command that asks the node's control API.
func (s *session) runWithServer(ctx context.Context) error {
	o := &s.opts

	var err error
	if s.client, err = s.connect(ctx); err != nil {
		return err
	}

	defer s.client.close()

	switch o.Command {
	case commandGet:
		return s.showNode(ctx)
	case commandPlan:
		return s.showPlan(ctx)
	case commandApply:
		return s.applyPlan(ctx)
	case commandRollback:
		return s.rollBackOperation(ctx)
	case commandAccept:
		return s.acceptOperation(ctx)
	case commandSettled:
		return s.endSettling(ctx)
	case commandConfirm:
		return s.confirmFree(ctx)
	case commandMode:
		return s.setMode(ctx)
	case commandRestore:
		return s.restoreLayouts(ctx)
	case commandRelease, commandReacquire:
		return s.releaseGPUs(ctx)
	case commandProfiles:
		return s.showProfiles(ctx)
	case commandOperations:
		return s.showOperations(ctx)
	case commandLayouts:
		return s.showLayouts(ctx)
	case commandRecommend:
		return s.recommend(ctx)
	case commandEvaluate:
		return s.evaluate(ctx)
	}

	return usageError{fmt.Sprintf("unknown command %q", o.Command)}
}

// askOperator asks the operator a question and returns nil if the answer is yes. Without a terminal
// it requires --yes. When ctx ends it returns, too, and leaves its goroutine reading: a read from a
// terminal cannot be ended.
func (s *session) askOperator(ctx context.Context, question string) error {
	if s.opts.Yes {
		return nil
	}

	if !s.inTerminal {
		return usageError{
			"standard input is not a terminal where to ask: look at what would be done, then give --yes",
		}
	}

	if err := s.page.prompt(question + " [y/N] "); err != nil {
		return err
	}

	type reply struct {
		text string
		err  error
	}
	replied := make(chan reply, 1)
	go func() {
		t, err := bufio.NewReader(s.in).ReadString('\n')
		replied <- reply{t, err}
	}()

	select {
	case <-ctx.Done():
		s.page.line()
		s.page.line(text("Nothing was done."))

		return ctx.Err()
	case r := <-replied:
		if r.err != nil && !errors.Is(r.err, io.EOF) {
			return fmt.Errorf("read the answer: %w", r.err)
		}

		switch strings.ToLower(strings.TrimSpace(r.text)) {
		case "y", "yes":
			return nil
		}

		return errDeclined
	}
}

// errDeclined says that the operator has answered a question with no.
var errDeclined = errors.New("nothing was done")
