package sdnotify

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// manager is the service manager's end of NOTIFY_SOCKET, which it sets.
type manager struct {
	conn *net.UnixConn
}

func newManager(t *testing.T, watchdog time.Duration) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")

	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", "")

	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", strconv.FormatInt(watchdog.Microseconds(), 10))
	}

	return &manager{conn: conn}
}

// next blocks until a notification arrives.
func (m *manager) next(t *testing.T) string {
	t.Helper()
	text := make([]byte, 4096)

	size, err := m.conn.Read(text)
	if err != nil {
		t.Fatal(err)
	}

	return string(text[:size])
}

// expect blocks until the next notification, which must be the wanted one.
func (m *manager) expect(t *testing.T, want string) {
	t.Helper()
	cmptest.Equal(t, "notification", m.next(t), want)
}

// loop is the program's loop. It answers while answers has something, and counts the questions.
type loop struct {
	answers chan struct{}
	asked   atomic.Int64
}

func (l *loop) ask(ctx context.Context) error {
	l.asked.Add(1)

	select {
	case <-l.answers:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lines is a logger's writer that passes on what is written.
type lines chan string

func (l lines) Write(text []byte) (int, error) {
	l <- string(text)
	return len(text), nil
}

// start runs a Notifier; stop ends it and waits for it.
func start(t *testing.T, opts Options) (n *Notifier, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n = New(opts)
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()

	return n, func() {
		t.Helper()
		cancel()
		cmptest.Equal(t, "result of Run", <-ended, nil)
	}
}

// TestNotifications: READY=1 comes after the listeners are open, and not before, whatever the loop
// does; a reload and the end are reported, too.
func TestNotifications(t *testing.T) {
	m := newManager(t, 0)
	listening := make(chan struct{})
	l := &loop{answers: make(chan struct{})}
	n, stop := start(t, Options{Listening: listening, AskLoop: l.ask, AnswerWithin: time.Hour,
		Logger: log.NewNopLogger()})
	n.Reloading()() // before the program is ready: no READY=1 by it
	close(listening)
	m.expect(t, "READY=1")
	done := n.Reloading()
	reloading := m.next(t)

	usec, found := strings.CutPrefix(reloading, "RELOADING=1\nMONOTONIC_USEC=")
	if _, err := strconv.ParseUint(strings.TrimSpace(usec), 10, 64); !found || err != nil {
		t.Errorf("%q, want RELOADING=1 and the monotonic clock in microseconds", reloading)
	}

	done()
	m.expect(t, "READY=1")
	stop()
	m.expect(t, "STOPPING=1")
	cmptest.Equal(t, "questions without a watchdog", l.asked.Load(), 0)
}

// TestStopBeforeReady: a program that is stopped while it starts is not reported as ready.
func TestStopBeforeReady(t *testing.T) {
	m := newManager(t, time.Second)
	_, stop := start(t, Options{Listening: make(chan struct{}), Logger: log.NewNopLogger()})
	stop()
	m.expect(t, "STOPPING=1")
}

// TestEndedLoop: a loop that has ended, which ends the program, answers nothing.
func TestEndedLoop(t *testing.T) {
	m := newManager(t, 30*time.Millisecond)
	said := make(lines, 10)
	_, stop := start(t, Options{Listening: closed(), AskLoop: func(context.Context) error { return errors.New("ended") },
		Logger: log.NewLogfmtLogger(said)})
	m.expect(t, "READY=1")
	m.expect(t, "WATCHDOG=1")

	if line := <-said; !strings.Contains(line, "poll loop is stuck") {
		t.Errorf("log: %q", line)
	}

	stop()
	m.expect(t, "STOPPING=1")
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)

	return c
}

// TestWatchdog: the watchdog is reset while the loop owes no answer for too long. A stuck loop is
// reported in the log once, from then on nothing is sent, and once it answers the watchdog is reset
// again.
func TestWatchdog(t *testing.T) {
	m := newManager(t, 30*time.Millisecond)
	said := make(lines, 10)
	l := &loop{answers: make(chan struct{}, 1)}
	_, stop := start(t, Options{Listening: closed(), AskLoop: l.ask, AnswerWithin: 0, Logger: log.NewLogfmtLogger(said)})
	m.expect(t, "READY=1")
	m.expect(t, "WATCHDOG=1") // with the question, which has no answer

	if line := <-said; !strings.Contains(line, "poll loop is stuck") {
		t.Errorf("log: %q", line)
	}

	l.answers <- struct{}{}
	m.expect(t, "WATCHDOG=1") // since the answer; there was none meanwhile
	<-said                    // stuck again
	stop()
	cmptest.Equal(t, "questions", l.asked.Load(), 2)
	m.expect(t, "STOPPING=1")
}

// TestWatchdogOfASlowLoop: a loop that takes longer than the watchdog, but not too long, is not
// stuck.
func TestWatchdogOfASlowLoop(t *testing.T) {
	m := newManager(t, 3*time.Millisecond)
	l := &loop{answers: make(chan struct{}, 1)}
	_, stop := start(t, Options{Listening: closed(), AskLoop: l.ask, AnswerWithin: time.Hour, Logger: log.NewNopLogger()})
	m.expect(t, "READY=1")

	for range 10 { // three times the watchdog's time, with one question that has no answer
		m.expect(t, "WATCHDOG=1")
	}

	cmptest.Equal(t, "questions", l.asked.Load(), 1)
	stop()
}

// TestWithoutSystemd: nothing is sent or logged, and Run lasts as long as the program. A socket
// that is gone is logged once.
func TestWithoutSystemd(t *testing.T) {
	for name, socket := range map[string]string{"none": "", "gone": filepath.Join(t.TempDir(), "gone")} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NOTIFY_SOCKET", socket)
			t.Setenv("WATCHDOG_USEC", "")
			said := make(lines, 10)
			n, stop := start(t, Options{Listening: closed(), Logger: log.NewLogfmtLogger(said)})
			n.Reloading()()
			stop()

			want := 0
			if socket != "" {
				want = 1
			}

			cmptest.Equal(t, "logged lines", len(said), want)
		})
	}

	var none *Notifier
	none.Reloading()()
}
