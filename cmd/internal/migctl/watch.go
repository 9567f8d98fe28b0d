package migctl

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rivo/uniseg"

	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// The terminal sequences with which a frame is written over the last one. The screen is not cleared
// in between, so that what stays the same does not flicker.
const (
	cursorHome     = "\x1b[H"
	clearToLineEnd = "\x1b[K"
	clearBelow     = "\x1b[J"
)

// watcher shows the readings of a node one after the other.
type watcher struct {
	session *session
	over    bool    // each frame is written over the last one
	node    topNode // its view is nil before the first reading
	frame   string  // the last reading, drawn
	late    string  // what the last frame says about the age of its reading; may be empty
	warned  string  // for which reason standard error says that no reading comes; empty: for none
}

// watchReading is a reading of the node.
type watchReading struct {
	at    time.Time
	doc   nodedoc.Document
	frame string // the reading, drawn
}

// watchNode draws the node with each of its readings until ctx ends. It connects again if the
// stream ends, as it does when the exporter restarts; until then it says why no reading comes.
func (s *session) watchNode(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)

	readings := make(chan watchReading)
	troubles := make(chan error)
	ended := make(chan error, 1)

	go func() { ended <- s.followNode(ctx, readings, troubles) }()

	w := s.newWatcher()
	err := w.run(readings, troubles, ended)

	cancel()

	return err
}

func (s *session) newWatcher() *watcher {
	term, _ := s.lookup("TERM")
	isText := s.opts.Output != formJSON && s.opts.Output != formYAML

	return &watcher{session: s, over: s.outTerminal && term != "dumb" && isText}
}

// run shows what followNode sends until it ends.
func (w *watcher) run(readings <-chan watchReading, troubles, ended <-chan error) error {
	seconds := time.NewTicker(time.Second)
	defer seconds.Stop()

	for {
		var err error

		select {
		case r := <-readings:
			err = w.showReading(&r)
		case trouble := <-troubles:
			w.node.trouble = troubleText(trouble)
			err = w.showLate(time.Now())
		case now := <-seconds.C:
			err = w.showLate(now)
		case err = <-ended:
			return err
		}

		if err != nil {
			return err
		}
	}
}

// followNode sends the readings of the node, and why a stream of them ended, until ctx ends or it is
// of no use to go on.
func (s *session) followNode(
	ctx context.Context, readings chan<- watchReading, troubles chan<- error,
) error {
	failures := 0
	shown := false

	for {
		var drawError error // to connect again would not help

		err := s.client.streamNode(ctx, func(data []byte) error {
			var r watchReading
			if r, drawError = s.drawReading(ctx, data); drawError != nil {
				return drawError
			}

			failures = 0
			shown = true

			return send(ctx, readings, r)
		})

		switch failures++; {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the operator has seen enough
		case drawError != nil:
			return drawError
		case !shown && !errors.Is(err, errStreamEnded), !mayComeBack(err), failures > followAttempts:
			return err
		}

		if send(ctx, troubles, err) != nil {
			return nil //nolint:nilerr // the operator has seen enough
		}

		_ = retry.Sleep(ctx, s.retry)
	}
}

// send sends a value unless ctx ends before it is received.
func send[T any](ctx context.Context, to chan<- T, value T) error {
	select {
	case to <- value:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drawReading draws a document of the node, or formats it as --output says.
func (s *session) drawReading(ctx context.Context, data []byte) (watchReading, error) {
	r := watchReading{at: time.Now()}
	if err := s.client.checkDocument(data); err != nil {
		return r, err
	}

	if err := s.client.decodeAnswer(data, &r.doc); err != nil {
		return r, err
	}

	var frame bytes.Buffer

	p := s.newPage(&frame, s.outTerminal)
	err := errors.Join(s.writeNode(ctx, p, &frame, data, r.doc), p.flush())
	r.frame = frame.String()

	return r, err
}

// showReading shows a reading over the last one, or below it.
func (w *watcher) showReading(r *watchReading) error {
	separator := ""

	if w.node.view != nil {
		switch w.session.opts.Output {
		case formJSON:
		case formYAML:
			separator = "---\n"
		default:
			separator = "\n"
		}
	}

	w.node = topNode{view: newNodeView(r.doc), read: r.at}
	w.frame = r.frame
	w.late = ""
	w.warned = ""

	if w.over {
		return w.drawFrame()
	}

	_, err := io.WriteString(w.session.out, separator+w.frame)

	return err
}

// showLate says how old the last reading is and why no newer one comes, unless one came lately: on
// the frame, or once for each reason on standard error.
func (w *watcher) showLate(now time.Time) error {
	late := ""

	switch {
	case w.node.view != nil:
		late = lateText(topState{now: now}, &w.node)
	case w.node.trouble != "":
		late = "no reading: " + w.node.trouble
	}

	if w.over {
		if late == w.late {
			return nil
		}

		w.late = late

		return w.drawFrame()
	}

	reason := cmp.Or(w.node.trouble, late)
	if late == "" || w.warned != "" && (reason == w.warned || w.node.trouble == "") {
		return nil
	}

	w.warned = reason
	p := w.session.newPage(w.session.errOut, w.session.errTerminal)
	p.paragraph("migctl: ", red, late)

	return p.flush()
}

// drawFrame draws the last reading over the last frame, below how old it is.
func (w *watcher) drawFrame() error {
	s := w.session

	var frame bytes.Buffer

	p := s.newPage(&frame, s.outTerminal)
	if w.late != "" {
		p.paragraph("! ", red, w.late)
	}

	if err := p.flush(); err != nil {
		return err
	}

	columns, rows := s.terminalSize()
	lines := strings.Split(strings.TrimSuffix(frame.String()+w.frame, "\n"), "\n")
	_, err := io.WriteString(s.out, overLastFrame(p, lines, columns, rows))

	return err
}

// overLastFrame returns a frame with the terminal sequences that write it over the last one. If the
// frame takes more rows than the terminal has, the last row says how many lines are left out.
func overLastFrame(p *page, lines []string, columns, rows int) string {
	var b strings.Builder

	b.WriteString(cursorHome)

	for _, line := range fitRows(p, lines, columns, rows) {
		b.WriteString(line)

		// After a full row, the sequence would clear the row's last character.
		if _, used := rowsOf(line, columns); used < columns || columns == 0 {
			b.WriteString(clearToLineEnd)
		}

		b.WriteString("\n")
	}

	b.WriteString(clearBelow)

	return b.String()
}

// fitRows returns the lines that a terminal has room for.
func fitRows(p *page, lines []string, columns, rows int) []string {
	room := rows - 1 // the last row stays free for the cursor
	fitting := 0     // lines that fit above a row about the others
	all := 0         // rows of all lines

	for _, line := range lines {
		n, _ := rowsOf(line, columns)
		if all += n; all < room {
			fitting++
		}
	}

	if rows <= 2 || all <= room {
		return lines
	}

	more := p.clean(fmt.Sprintf("%d more lines: enlarge the terminal, or name GPUs: migctl get --watch 0",
		len(lines)-fitting))
	if columns > 0 {
		more = p.cut(more, columns)
	}

	return append(lines[:fitting:fitting], more)
}

// rowsOf returns how many rows a line takes on a terminal, and how many columns of the last one. The
// terminal breaks a line that is longer than a row. With 0 columns there is no limit.
func rowsOf(line string, columns int) (rows, lastColumns int) {
	rows = 1
	characters := uniseg.NewGraphemes(withoutColors(line))

	for characters.Next() {
		width := characters.Width()
		if columns > 0 && lastColumns+width > columns {
			rows++
			lastColumns = 0
		}

		lastColumns += width
	}

	return rows, lastColumns
}

// withoutColors returns a line without the terminal sequences that a page writes for colors.
func withoutColors(line string) string {
	var b strings.Builder

	for {
		before, rest, found := strings.Cut(line, "\x1b[")
		b.WriteString(before)

		if !found {
			return b.String()
		}

		_, line, _ = strings.Cut(rest, "m")
	}
}
