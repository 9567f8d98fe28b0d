package migctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/gdamore/tcell/v2/terminfo"
)

// watchNodes shows nodes on the terminal until the operator quits or ctx ends.
func (s *session) watchNodes(ctx context.Context, feeds []*feed) error {
	// If the locale has no UTF-8, we draw with ASCII.
	tcell.SetEncodingFallback(tcell.EncodingFallbackASCII)

	term, _ := s.lookup("TERM")

	screen, err := newScreen(term)
	if err != nil {
		return usageError{fmt.Sprintf(
			"the terminal (TERM=%s) cannot show a live view: %v; migctl top --once prints it once",
			term,
			err,
		)}
	}

	defer screen.Fini()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	continued := make(chan os.Signal, 1)
	notifyContinued(continued)
	defer signal.Stop(continued)

	messages := make(chan topMessage)
	go readTerminal(ctx, screen, messages)

	for _, f := range feeds {
		go f.run(ctx, messages)
	}

	state := newTopState(s.opts.Top.URLs)
	state = sizeOfScreen(screen).apply(state)
	view := newTopView(newPage(nil, s.page.color, s.page.utf8))
	seconds := time.NewTicker(time.Second)
	defer seconds.Stop()

	for !state.quit {
		showFrame(screen, view.p, view.frame(state), state.width)

		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-messages:
			state, err = handleMessage(m, state, screen, continued)
		case <-continued: // after a stop by a signal, since which the shell has had the terminal
			state, err = retakeScreen(state, screen)
		case now := <-seconds.C:
			state = tickMessage{now}.apply(state)
		}

		if err != nil {
			return err
		}
	}

	return nil
}

// handleMessage returns the state after a message. Ctrl-Z stops the process.
func handleMessage(
	m topMessage, s topState, screen tcell.Screen, continued <-chan os.Signal,
) (topState, error) {
	if m != keyMessage("Ctrl+Z") {
		return m.apply(s), nil
	}

	err := suspend(screen, continued)

	return sizeOfScreen(screen).apply(s), err
}

// retakeScreen takes the terminal from the shell again and returns the state for its size, which may
// have changed.
func retakeScreen(s topState, screen tcell.Screen) (topState, error) {
	err := errors.Join(screen.Suspend(), screen.Resume())

	return sizeOfScreen(screen).apply(s), err
}

func sizeOfScreen(screen tcell.Screen) sizeMessage {
	width, height := screen.Size()
	return sizeMessage{width, height}
}

// newScreen returns the screen of a kind of terminal, which TERM names.
func newScreen(term string) (tcell.Screen, error) {
	kind, err := tcell.LookupTerminfo(term)

	// kubectl exec names no terminal, and new terminals are not known everywhere: xterm-ghostty.
	if err != nil && (term == "" || strings.HasPrefix(term, "xterm-")) {
		kind, err = tcell.LookupTerminfo("xterm-256color")
	}

	if err != nil {
		return nil, err
	}

	screen, err := tcell.NewTerminfoScreenFromTtyTerminfo(nil, withoutPadding(kind))
	if err != nil {
		return nil, err
	}

	return screen, screen.Init()
}

// withoutPadding returns a kind of terminal without the pauses that terminfo has after some
// sequences, such as "$<5>" for 5 ms. A vt100 of 1978 needed them. A terminal that calls itself
// vt100 today, such as the console of a server's BMC, does not, and would take seconds for a frame.
func withoutPadding(kind *terminfo.Terminfo) *terminfo.Terminfo {
	padding := regexp.MustCompile(`\$<[^>]*>`)
	quick := *kind
	fields := reflect.ValueOf(&quick).Elem()

	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.String {
			f.SetString(padding.ReplaceAllString(f.String(), ""))
		}
	}

	return &quick
}

// readTerminal sends keys and sizes of the terminal until the screen ends.
func readTerminal(ctx context.Context, screen tcell.Screen, messages chan<- topMessage) {
	for {
		var m topMessage

		switch e := screen.PollEvent().(type) {
		case nil:
			return
		case *tcell.EventKey:
			if e.Key() == tcell.KeyCtrlL {
				screen.Sync()
				continue
			}

			m = keyMessage(keyName(e))
		case *tcell.EventResize:
			width, height := e.Size()
			m = sizeMessage{width, height}
		case *tcell.EventError: // the terminal is gone
			m = keyMessage("Ctrl+C")
		default:
			continue
		}

		select {
		case <-ctx.Done():
			return
		case messages <- m:
		}
	}
}

// keyName returns the name of a key, or the character that it types.
func keyName(e *tcell.EventKey) string {
	switch e.Key() {
	case tcell.KeyRune:
		return string(e.Rune())
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		return "Backspace"
	case tcell.KeyCtrlC:
		return "Ctrl+C"
	case tcell.KeyCtrlB:
		return "Ctrl+B"
	case tcell.KeyCtrlF:
		return "Ctrl+F"
	case tcell.KeyCtrlU:
		return "Ctrl+U"
	case tcell.KeyCtrlZ:
		return "Ctrl+Z"
	default:
		return tcell.KeyNames[e.Key()]
	}
}

// showFrame shows the lines of a frame.
func showFrame(screen tcell.Screen, p *page, lines []frameLine, width int) {
	screen.Clear()

	for y, l := range lines {
		x := 0

		for _, sp := range l.spans {
			t := p.cut(p.clean(sp.text), max(0, width-x))
			screen.PutStrStyled(x, y, t, styleOf(sp.color, l.selected, p.color))
			x += columnsOf(t)
		}

		if l.selected {
			for ; x < width; x++ {
				screen.Put(x, y, " ", tcell.StyleDefault.Reverse(true))
			}
		}
	}

	screen.Show()
}

// styleOf returns the style of a color. Without colors the selected line is still marked.
func styleOf(c color, selected, colors bool) tcell.Style {
	style := tcell.StyleDefault.Reverse(selected || c == reverse)
	if !colors {
		return style
	}

	switch c {
	case bold:
		return style.Bold(true)
	case dim:
		return style.Dim(true)
	case red:
		return style.Foreground(tcell.ColorMaroon)
	case green:
		return style.Foreground(tcell.ColorGreen)
	case yellow:
		return style.Foreground(tcell.ColorOlive)
	case cyan:
		return style.Foreground(tcell.ColorTeal)
	default:
		return style
	}
}
