package shutdown

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"
)

// pipes is a listener of connections that are made in this process.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}

	return conn, nil
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.conns) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// serveOne serves one connection, whose other end is returned.
func serveOne(handler http.HandlerFunc) (*http.Server, net.Conn) {
	server := &http.Server{Handler: handler}
	Prepare(server)
	there := &pipes{conns: make(chan net.Conn, 1)}
	near, far := net.Pipe()
	there.conns <- far
	go func() { _ = server.Serve(there) }()

	return server, near
}

// A client that connects and says nothing holds up no shutdown.
func TestSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, conn := serveOne(nil)
		synctest.Wait()
		begin := time.Now()
		All([]*http.Server{server}, time.Hour, log.NewNopLogger())

		if took := time.Since(begin); took > time.Second {
			t.Errorf("shutdown took %s", took)
		}

		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("the silent connection is still open")
		}
	})
}

// A request in flight has until the timeout, and is cut off then.
func TestRequestsInFlight(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes time.Duration
		cut   bool
	}{{"in time", 3 * time.Second, false}, {"too long", time.Hour, true}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := make(chan struct{})
				server, conn := serveOne(func(_ http.ResponseWriter, r *http.Request) {
					close(begun)
					timer := time.NewTimer(tt.takes)
					defer timer.Stop()

					select {
					case <-timer.C:
					case <-r.Context().Done():
					}
				})
				go func() { _, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) }()
				<-begun
				var said strings.Builder
				answered := make(chan bool, 1)
				go func() {
					got, _ := io.ReadAll(conn)
					answered <- len(got) > 0
				}()
				All([]*http.Server{server}, 10*time.Second, log.NewLogfmtLogger(&said))

				if got := <-answered; got == tt.cut || strings.Contains(said.String(), "closed requests") != tt.cut {
					t.Errorf("answered: %v, said %q", got, said.String())
				}
			})
		})
	}
}
