package migctl

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// terminal is a pseudoterminal with a program on it, and the screen that the program has drawn.
type terminal struct {
	master  *os.File
	program *exec.Cmd

	mu     sync.Mutex
	screen *vt
	raw    bytes.Buffer
	ended  chan struct{} // the program has closed the terminal
}

// startOnTerminal runs migctl on a pseudoterminal.
func startOnTerminal(t *testing.T, width, height int, env []string, args ...string) *terminal {
	t.Helper()

	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	return startCommand(t, width, height, env, append([]string{binary}, args...))
}

// startCommand runs a command on a pseudoterminal, with the variable that makes the test binary
// migctl.
func startCommand(t *testing.T, width, height int, env, command []string) *terminal {
	t.Helper()

	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("NOT TESTED: there are no pseudoterminals: %v; the frames are tested without", err)
	}

	t.Cleanup(func() { master.Close() })

	control := func(do func(fd int) error) {
		t.Helper()

		connection, err := master.SyscallConn()
		if err == nil {
			err = errors.Join(connection.Control(func(fd uintptr) { err = do(int(fd)) }), err)
		}

		if err != nil {
			t.Fatal(err)
		}
	}

	number := 0

	control(func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0) })
	control(func(fd int) error {
		n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		number = n

		return err
	})

	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()

	term := &terminal{master: master, screen: newVT(width, height), ended: make(chan struct{})}
	term.resize(t, width, height)

	term.program = exec.CommandContext(t.Context(), command[0], command[1:]...)
	term.program.Env = append([]string{mainVariable + "=1", "LANG=C.UTF-8", "PATH=" + os.Getenv("PATH")}, env...)
	term.program.Stdin, term.program.Stdout, term.program.Stderr = tty, tty, tty
	term.program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}

	if err := term.program.Start(); err != nil {
		t.Fatal(err)
	}

	go term.read()

	return term
}

func (term *terminal) read() {
	defer close(term.ended)

	buf := make([]byte, 1<<16)

	for {
		n, err := term.master.Read(buf)

		term.mu.Lock()
		term.raw.Write(buf[:n])
		term.screen.write(buf[:n])
		term.mu.Unlock()

		if err != nil { // EIO, when no program has the terminal any more
			return
		}
	}
}

func (term *terminal) resize(t *testing.T, width, height int) {
	t.Helper()

	term.mu.Lock()
	term.screen.resize(width, height)
	term.mu.Unlock()

	size := &unix.Winsize{Row: uint16(height), Col: uint16(width)}
	if err := unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ, size); err != nil {
		t.Fatal(err)
	}
}

func (term *terminal) press(t *testing.T, keys string) {
	t.Helper()

	if _, err := term.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// await waits until the screen has a text, or is one.
func (term *terminal) await(t *testing.T, what string, is func(screen string) bool) {
	t.Helper()

	var got string

	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		term.mu.Lock()
		got = term.screen.String()
		term.mu.Unlock()

		if is(got) {
			return
		}

		time.Sleep(20 * time.Millisecond) // another process draws, and does not say when
	}

	t.Fatalf("the screen does not become %s:\n%s", what, got)
}

// end waits until the program has ended and returns its exit code.
func (term *terminal) end(t *testing.T) int {
	t.Helper()

	select {
	case <-term.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the program does not end")
	}

	if err := term.program.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}

	return term.program.ProcessState.ExitCode()
}

// sameScreen compares a screen with a golden, which has no spaces at the ends of lines.
func sameScreen(t *testing.T, name string) func(string) bool {
	t.Helper()

	want, err := os.ReadFile(testdata + name)
	if err != nil {
		t.Fatal(err)
	}

	return func(got string) bool { return strings.TrimRight(got, "\n") == strings.TrimRight(string(want), "\n") }
}

// repeated streams the same reading, so that it is never old.
func repeated(doc nodedoc.Document) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			nodeStream(": more comes\n\n", doc)(w, r)
			_ = retry.Sleep(r.Context(), time.Second)
		}
	}
}

// startTop starts top on a terminal beside an exporter that has one reading.
func startTop(t *testing.T, width, height int, doc nodedoc.Document, env ...string) *terminal {
	t.Helper()

	server := serveNode(t, map[string]http.HandlerFunc{
		"GET /node/stream":  repeated(doc),
		"GET /node/history": answer(pastOfNode(&doc)),
	})

	return startOnTerminal(t, width, height, env, "top", "--url", server.URL)
}

// TestTopOnTerminal draws the frames of TestTopFrames on a real terminal, which is resized, and
// leaves it as it was.
func TestTopOnTerminal(t *testing.T) {
	for _, env := range [][]string{
		{"TERM=xterm-256color", "COLORTERM=truecolor"},
		{"TERM=tmux-256color"},
		{"TERM=linux"},
		{"TERM=xterm-of-tomorrow"},
		{"TERM="},
		{"TERM=vt220", "NO_COLOR=1"},
		{"TERM=vt100", "NO_COLOR=1"},
	} {
		t.Run(env[0], func(t *testing.T) {
			t.Parallel()

			term := startTop(t, 80, 24, busyNode(t), env...)
			term.await(t, "that of 80x24", sameScreen(t, "top-80x24.txt"))
			term.resize(t, 200, 60)
			term.press(t, "\t\tj")
			term.await(t, "that of 200x60", sameScreen(t, "top-200x60.txt"))
			term.resize(t, 80, 24)
			term.press(t, "g/embed\rj")
			term.await(t, "the filtered one", sameScreen(t, "top-filter.txt"))
			term.press(t, "?")
			term.await(t, "that of the keys", func(s string) bool { return strings.HasPrefix(s, "Keys\n") })
			term.press(t, "xq")

			if code := term.end(t); code != exitOK {
				t.Errorf("exit code %d", code)
			}

			if term.screen.hidden || term.screen.alternate {
				t.Errorf("the terminal is not as it was: %+v", term.screen)
			}

			if colored := bytes.Contains(term.raw.Bytes(), []byte("\x1b[31m")) ||
				bytes.Contains(term.raw.Bytes(), []byte("\x1b[38;5;1m")); colored != (len(env) == 1 || env[1] != "NO_COLOR=1") {
				t.Errorf("colors: %t", colored)
			}
		})
	}
}

// TestTopHostileOnTerminal: of a hostile name no sequence reaches the terminal.
func TestTopHostileOnTerminal(t *testing.T) {
	term := startTop(t, 100, 24, hostileNode(t), "TERM=xterm-256color")
	term.await(t, "the list", func(s string) bool { return strings.Contains(s, "GPU 7") && strings.Contains(s, " sm ") })
	term.press(t, "\t\tj")
	term.await(t, "the hostile one", sameScreen(t, "top-hostile.txt"))
	term.press(t, "q")

	if code := term.end(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}

	for _, sequence := range []string{"\x1b]0;", "\x07", "\u202e", "\u2066", "\u009b", "\x00"} {
		if bytes.Contains(term.raw.Bytes(), []byte(sequence)) {
			t.Errorf("%q reaches the terminal", sequence)
		}
	}
}

// TestTopEndsWithSignals: a signal, or Ctrl+C, ends it with the terminal as it was.
func TestTopEndsWithSignals(t *testing.T) {
	live := func(s string) bool { return strings.Contains(s, "GPU 7") }

	term := startTop(t, 80, 24, busyNode(t), "TERM=xterm")
	term.await(t, "live", live)

	if err := term.program.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}

	if code := term.end(t); code != exitInterrupted || term.screen.alternate || term.screen.hidden {
		t.Errorf("after SIGTERM: exit code %d, %+v", code, term.screen)
	}

	term = startTop(t, 80, 24, busyNode(t), "TERM=xterm")
	term.await(t, "live", live)
	term.press(t, "\x03")

	if code := term.end(t); code != exitOK || term.screen.alternate {
		t.Errorf("after Ctrl+C: exit code %d, %+v", code, term.screen)
	}
}

// TestTopStops: Ctrl+Z stops it with the terminal as it was; a signal stops it at once. When the shell
// continues it, it draws on a terminal that is larger by now.
func TestTopStops(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skipf("NOT TESTED: job control: %v", err)
	}

	server := serveNode(t, map[string]http.HandlerFunc{"GET /node/stream": repeated(busyNode(t))})
	term := startCommand(t, 80, 24, []string{"TERM=xterm", "MIGCTL_URL=" + server.URL}, []string{bash, "-mc",
		`"$0" top; echo stopped once; read; fg; echo stopped twice; read; fg`, os.Args[0]})
	isWide := func(width int) func(string) bool {
		return func(s string) bool {
			_, line, _ := strings.Cut(s, "\n  ┌")
			line, _, _ = strings.Cut(line, "\n")

			return term.isTaken() && columnsOf(line) > width-10
		}
	}
	term.await(t, "live", isWide(80))
	term.press(t, "\x1a")
	term.await(t, "the shell's", func(s string) bool { return strings.Contains(s, "stopped once") })

	if term.isTaken() || !term.isCooked(t) {
		t.Error("after Ctrl+Z the terminal is not as it was")
	}

	term.resize(t, 100, 24)
	term.press(t, "\n")
	term.await(t, "live again", isWide(100))

	if err := syscall.Kill(-term.job(t), syscall.SIGTSTP); err != nil {
		t.Fatal(err)
	}

	term.await(t, "the shell's again", func(s string) bool { return strings.Contains(s, "stopped twice") })
	term.resize(t, 120, 24)
	term.press(t, "\r\n")
	term.await(t, "live again", isWide(120))
	term.press(t, "q")

	if code := term.end(t); code != exitOK || term.screen.alternate {
		t.Errorf("exit code %d, %+v", code, term.screen)
	}
}

// isTaken reports whether a program has the whole screen or has hidden the cursor.
func (term *terminal) isTaken() bool {
	term.mu.Lock()
	defer term.mu.Unlock()

	return term.screen.alternate || term.screen.hidden
}

// isCooked reports whether the terminal passes on whole lines.
func (term *terminal) isCooked(t *testing.T) bool {
	t.Helper()

	modes, err := unix.IoctlGetTermios(int(term.master.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}

	return modes.Lflag&unix.ICANON != 0
}

// job returns the process group that has the terminal.
func (term *terminal) job(t *testing.T) int {
	t.Helper()

	group, err := unix.IoctlGetInt(int(term.master.Fd()), unix.TIOCGPGRP)
	if err != nil {
		t.Fatal(err)
	}

	return group
}

// TestTopWithoutJobControl: Ctrl+Z changes nothing where no shell could continue it.
func TestTopWithoutJobControl(t *testing.T) {
	term := startTop(t, 80, 24, busyNode(t), "TERM=xterm")
	term.await(t, "live", sameScreen(t, "top-80x24.txt"))
	term.press(t, "\x1a?")
	term.await(t, "that of the keys", func(s string) bool { return strings.HasPrefix(s, "Keys\n") })
	term.press(t, "xq")

	if code := term.end(t); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestTopWithoutAScreen: a dumb terminal gets one frame, one that is not known an error.
func TestTopWithoutAScreen(t *testing.T) {
	server := serveNode(t, map[string]http.HandlerFunc{"GET /node": answer(busyNode(t))})

	term := startOnTerminal(t, 80, 100, []string{"TERM=dumb"}, "top", "--url", server.URL)
	if code := term.end(t); code != exitOK || bytes.Contains(term.raw.Bytes(), []byte("\x1b")) ||
		!strings.Contains(term.screen.String(), "GPU 7") {
		t.Errorf("dumb: exit code %d: %q", code, term.raw.String())
	}

	term = startOnTerminal(t, 80, 24, []string{"TERM=none-such"}, "top", "--url", server.URL)
	if code := term.end(t); code != exitUsage || !strings.Contains(term.screen.String(), "TERM=none-such") {
		t.Errorf("unknown: exit code %d: %s", code, term.screen)
	}
}

// vt is as much of a terminal as programs on tcell need.
type vt struct {
	width, height     int
	cells             [][]string
	x, y              int
	hidden, alternate bool
	rest              []byte // of a sequence or a character that has not ended yet
}

func newVT(width, height int) *vt {
	v := &vt{}
	v.resize(width, height)

	return v
}

func (v *vt) resize(width, height int) {
	v.width = width
	v.height = height
	v.x = min(v.x, width-1)
	v.y = min(v.y, height-1)

	v.cells = make([][]string, height)
	for y := range v.cells {
		v.cells[y] = blanks(width)
	}
}

func blanks(n int) []string {
	cells := make([]string, n)
	for i := range cells {
		cells[i] = " "
	}

	return cells
}

// String returns the lines without spaces at their ends.
func (v *vt) String() string {
	var lines []string
	for _, row := range v.cells {
		lines = append(lines, strings.TrimRight(strings.Join(row, ""), " "))
	}

	return strings.Join(lines, "\n")
}

func (v *vt) write(b []byte) {
	b = append(v.rest, b...)

	for len(b) > 0 {
		n := v.one(b)
		if n == 0 {
			break
		}

		b = b[n:]
	}

	v.rest = bytes.Clone(b)
}

// one handles one character or sequence and returns its length, 0 if it has not ended yet.
func (v *vt) one(b []byte) int {
	switch {
	case b[0] == '\x1b':
		return v.escape(b)
	case b[0] == '\r':
		v.x = 0
	case b[0] == '\n':
		v.lineFeed()
	case b[0] == '\b':
		v.x = max(0, v.x-1)
	case b[0] < ' ' || b[0] == 0x7f:
	default:
		if !utf8.FullRune(b) {
			return 0
		}

		r, n := utf8.DecodeRune(b)
		v.put(string(r))

		return n
	}

	return 1
}

func (v *vt) lineFeed() {
	if v.y < v.height-1 {
		v.y++
		return
	}

	v.cells = append(v.cells[1:], blanks(v.width))
}

func (v *vt) put(s string) {
	width := columnsOf(s)
	if width == 0 {
		if v.x > 0 {
			v.cells[v.y][v.x-1] += s
		}

		return
	}

	if v.x+width > v.width {
		v.x = 0
		v.lineFeed()
	}

	v.cells[v.y][v.x] = s
	for i := 1; i < width; i++ {
		v.cells[v.y][v.x+i] = ""
	}

	v.x += width
}

// escape handles a sequence.
func (v *vt) escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}

	switch b[1] {
	case '[':
		end := bytes.IndexFunc(b[2:], func(r rune) bool { return r >= '@' && r <= '~' })
		if end < 0 {
			return 0
		}

		v.csi(string(b[2:2+end]), b[2+end])

		return 3 + end
	case ']': // a title or a link, to BEL or ST
		if end := bytes.Index(b, []byte("\x1b\\")); end >= 0 {
			return end + 2
		}

		return 0
	case '(', ')', '#':
		if len(b) < 3 {
			return 0
		}

		return 3
	default:
		return 2
	}
}

// csi handles a control sequence.
func (v *vt) csi(parameters string, final byte) {
	number := func(at int) int {
		fields := strings.Split(parameters, ";")
		if at >= len(fields) {
			return 1
		}

		n, err := strconv.Atoi(fields[at])
		if err != nil {
			return 1
		}

		return n
	}

	switch final {
	case 'H', 'f':
		v.y = min(max(number(0)-1, 0), v.height-1)
		v.x = min(max(number(1)-1, 0), v.width-1)
	case 'A':
		v.y = max(0, v.y-number(0))
	case 'B':
		v.y = min(v.height-1, v.y+number(0))
	case 'C':
		v.x = min(v.width-1, v.x+number(0))
	case 'D':
		v.x = max(0, v.x-number(0))
	case 'J': // tcell clears the whole screen alone
		v.resize(v.width, v.height)
	case 'K':
		copy(v.cells[v.y][v.x:], blanks(v.width-v.x))
	case 'h', 'l':
		switch parameters {
		case "?25":
			v.hidden = final == 'l'
		case "?1049":
			v.alternate = final == 'h'
		}
	}
}
