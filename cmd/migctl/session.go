package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"
)

// session is what one command line runs with.
type session struct {
	in                                   io.Reader
	out, errOut                          io.Writer
	inTerminal, outTerminal, errTerminal bool
	lookup                               func(string) (string, bool) // environment
	retry                                time.Duration               // between attempts to follow an operation again

	opts   options
	client *client
	page   *page
}

// execute runs one command line to its end and returns the exit code.
func execute(ctx context.Context, args []string, s *session) int {
	if len(args) > 0 && args[0] == completeCommand {
		s.complete(ctx, args[1:])
		return exitOK
	}
	done, err := s.parse(args)
	if done {
		return exitOK
	}
	s.page = newPage(s.out, wantsColor(s.opts.Color, s.outTerminal, s.lookup), speaksUTF8(s.lookup))
	if err == nil {
		err = s.dispatch(ctx)
	}
	if flushed := s.page.flush(); err == nil {
		err = flushed
	}
	if err == nil || errors.Is(err, syscall.EPIPE) { // the reader, head for instance, has seen enough
		return exitOK
	}
	return s.report(err)
}

// dispatch runs the command.
func (s *session) dispatch(ctx context.Context) error {
	o := &s.opts
	switch o.Command {
	case commandCompletion:
		return s.printCompletion()
	case commandMan:
		return s.printMan()
	case commandFleet:
		return s.fleet(ctx)
	}
	var err error
	if s.client, err = newClient(o); err != nil {
		return err
	}
	defer s.client.close()
	switch o.Command {
	case commandGet:
		return s.get(ctx)
	case commandPlan:
		return s.plan(ctx)
	case commandApply:
		return s.apply(ctx)
	case commandRollback:
		return s.rollback(ctx)
	case commandAccept:
		return s.accept(ctx)
	case commandSettled:
		return s.endSettling(ctx)
	case commandConfirm:
		return s.confirmFree(ctx)
	case commandMode:
		return s.mode(ctx)
	case commandProfiles:
		return s.profiles(ctx)
	case commandOperations:
		return s.operations(ctx)
	case commandLayouts:
		return s.layouts(ctx)
	}
	return usageError{fmt.Sprintf("unknown command %q", o.Command)}
}

// ask puts a question to the operator. Without a terminal --yes is required. An interrupt is an
// answer: a read from a terminal does not end with ctx, and is left behind.
func (s *session) ask(ctx context.Context, question string) error {
	if s.opts.Yes {
		return nil
	}
	if !s.inTerminal {
		return usageError{"standard input is not a terminal, so migctl cannot ask: look at what would be done, then give --yes"}
	}
	if err := s.page.flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.out, "%s [y/N] ", question); err != nil {
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

// errDeclined: the operator said no.
var errDeclined = errors.New("nothing was done")
