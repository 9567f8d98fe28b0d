package migctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// The terminal sequences with which a frame is written over the last one. The screen is not cleared
// in between, so that what stays the same does not flicker.
const (
	cursorHome     = "\x1b[H"
	clearToLineEnd = "\x1b[K"
	clearBelow     = "\x1b[J"
)

// watchNode draws the node with each of its readings until ctx ends. It connects again if the
// stream ends, as it does when the exporter restarts.
func (s *session) watchNode(ctx context.Context) error {
	failures := 0
	shown := false

	for {
		var drawError error // to connect again would not help

		err := s.client.streamNode(ctx, func(data []byte) error {
			failures = 0
			drawError = s.writeFrame(ctx, data, !shown)
			shown = true

			return drawError
		})

		switch failures++; {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the operator has seen enough
		case drawError != nil:
			return drawError
		case !shown && !errors.Is(err, errStreamEnded), !mayComeBack(err), failures > followAttempts:
			return err
		}

		select {
		case <-time.After(s.retry):
		case <-ctx.Done():
		}
	}
}

// writeFrame draws the node over the last frame, or below it if standard output is no terminal that
// can be drawn over.
func (s *session) writeFrame(ctx context.Context, data []byte, first bool) error {
	if s.opts.Output == formYAML && !first {
		if _, err := io.WriteString(s.out, "---\n"); err != nil {
			return err
		}
	}

	if s.opts.Output == formJSON || s.opts.Output == formYAML {
		return s.printNode(ctx, data)
	}

	var frame bytes.Buffer

	s.page = s.newPage(&frame, s.outTerminal)
	if err := errors.Join(s.printNode(ctx, data), s.page.flush()); err != nil {
		return err
	}

	text := frame.String()

	term, _ := s.lookup("TERM")
	if s.outTerminal && term != "dumb" {
		text = s.overLastFrame(text)
	} else if !first {
		text = "\n" + text
	}

	_, err := io.WriteString(s.out, text)

	return err
}

// overLastFrame returns a frame with the terminal sequences that write it over the last one. If the
// frame has more lines than the terminal has rows, the last row shows how many are left out.
func (s *session) overLastFrame(frame string) string {
	lines := strings.Split(strings.TrimSuffix(frame, "\n"), "\n")

	// The last row stays free for the cursor.
	if _, rows := s.terminalSize(); rows > 2 && len(lines) > rows-1 {
		more := len(lines) - (rows - 2)
		lines = append(lines[:rows-2],
			fmt.Sprintf("%d more lines: enlarge the terminal, or name GPUs: migctl get --watch 0", more))
	}

	return cursorHome + strings.Join(lines, clearToLineEnd+"\n") + clearToLineEnd + "\n" + clearBelow
}
