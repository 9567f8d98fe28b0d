package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// The program as a service of systemd: deploy/systemd has its units, docs/deploy-server.md what
// this is for.

// hungNode is a node whose GPUs have never answered.
const hungNode = `
version: 1
node: {kubernetes: false}
gpus: [{model: H100-80GB, count: 2}]
faults: [{kind: hang}]
`

// service starts the program as systemd does, with a socket to listen on and one to notify.
func service(t *testing.T, socket *os.File, args ...string) (*program, *net.UnixConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")

	notified, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = notified.Close() })
	p := launchAnyhow(t, append([]string{"--driver=sim", "--sim.scenario=" + write(t, "hung.yaml", hungNode),
		"--poll.interval=50ms", "--web.systemd-socket"}, args...)...)
	// The sockets are for one process alone, named by LISTEN_PID.
	p.cmd.Path, p.cmd.Args = "/bin/sh", append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`}, p.cmd.Args...)
	p.cmd.Env = append(p.cmd.Env, "NOTIFY_SOCKET="+path, "WATCHDOG_USEC=150000", "LISTEN_FDS=1", "GOTRACEBACK=crash")
	p.cmd.Dir = t.TempDir()
	p.cmd.ExtraFiles = []*os.File{socket}
	lines := p.lines()
	go func() {
		for range lines {
		}
	}()

	return p, notified
}

// expectNotifications blocks until all of the notifications have arrived, in this order; others may
// be between them.
func (p *program) expectNotifications(from *net.UnixConn, wanted ...string) {
	p.t.Helper()

	if err := from.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
		p.t.Fatal(err)
	}

	text := make([]byte, 4096)

	for _, want := range wanted {
		for {
			size, err := from.Read(text)
			if err != nil {
				p.t.Fatalf("notification %q: %v\n%s", want, err, p.logText())
			}

			if strings.HasPrefix(string(text[:size]), want) {
				break
			}
		}
	}
}

// TestServiceOfAHungDriver: a driver that has never answered holds up neither the start nor the
// watchdog, so that systemd does not restart the program again and again. A reload is reported, and
// a restart on a socket of systemd loses no scrape.
func TestServiceOfAHungDriver(t *testing.T) {
	t.Parallel()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	url := "http://" + l.Addr().String()

	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	_ = l.Close()

	p, notified := service(t, socket)
	p.url = url
	p.expectNotifications(notified, "READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1")

	if r := p.get("/metrics"); r.status != http.StatusOK {
		t.Errorf("scrape: %d %s", r.status, r.body)
	}

	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}

	p.expectNotifications(notified, "RELOADING=1\nMONOTONIC_USEC=", "READY=1", "WATCHDOG=1")
	cmptest.Equal(t, "exit code", p.stop(), exitOK)
	p.expectNotifications(notified, "STOPPING=1")

	scraped := make(chan error, 1)
	go func() { // while no process serves
		r, err := http.Get(url + "/metrics")
		if err == nil && r.StatusCode != http.StatusOK {
			err = errors.New(r.Status)
		}

		if err == nil {
			err = r.Body.Close()
		}

		scraped <- err
	}()
	p, notified = service(t, socket)
	p.expectNotifications(notified, "READY=1")

	if err := <-scraped; err != nil {
		t.Errorf("scrape during the restart: %v", err)
	}

	cmptest.Equal(t, "exit code", p.stop(), exitOK)
}

// TestWatchdogAbort: the signal of systemd's watchdog ends the program by that signal, with the
// stacks of all goroutines in the log. With the exit code 2, which Go has without
// GOTRACEBACK=crash, the unit would not be restarted.
func TestWatchdogAbort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	p, notified := service(t, socket)
	p.expectNotifications(notified, "READY=1")

	if err := p.cmd.Process.Signal(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}

	p.exitCode()

	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGABRT {
		t.Errorf("%s, want to be ended by SIGABRT", p.cmd.ProcessState)
	}

	cmptest.HasTexts(t, p.logText(), "SIGABRT", "goroutine 1 ", "poll.(*Poller).Run")
}

// TestAskLoop: the loop answers between its cycles without polling, and not while it is stuck.
func TestAskLoop(t *testing.T) {
	x := runInProcess(t, "--sim.scenario="+write(t, "node.yaml", "version: 1\ngpus: [{model: A30-24GB}]\n"))
	before := x.poller.Current()
	cmptest.Equal(t, "answer of the loop", x.askLoop(t.Context()), nil)

	if x.poller.Current() != before {
		t.Error("the question has polled the driver")
	}

	stuck := make(chan struct{})
	release := make(chan struct{})
	polled := make(chan error, 1)
	go func() {
		polled <- x.poller.Poll(context.Background(), func() error {
			close(stuck)
			<-release

			return nil
		})
	}()
	<-stuck
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { asked <- x.askLoop(ctx) }()
	cancel()
	cmptest.Equal(t, "answer of a stuck loop", <-asked, context.Canceled)
	close(release)
	cmptest.Equal(t, "poll", <-polled, nil)
	cmptest.Equal(t, "answer of the loop", x.askLoop(t.Context()), nil)
}
