// Package shutdown shuts HTTP servers down in bounded time.
package shutdown

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// silentConns are the connections of one server that have not sent a request yet.
type silentConns struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// Prepare makes a server's Shutdown close the connections that have not sent a request yet. net/http
// would wait 5 s for them, so that one silent client could use up the time of requests in flight. It
// replaces the server's ConnState.
func Prepare(server *http.Server) {
	silent := &silentConns{conns: make(map[net.Conn]struct{})}
	server.ConnState = silent.trackConn
	server.RegisterOnShutdown(silent.closeAll)
}

func (s *silentConns) trackConn(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if state != http.StateNew {
		delete(s.conns, conn)
		return
	}

	if s.closed { // accepted while the listener closed
		_ = conn.Close()
		return
	}

	s.conns[conn] = struct{}{}
}

// closeAll closes the connections, and makes trackConn close those that the server still accepts.
func (s *silentConns) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.closed = true
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// All shuts servers down concurrently. After the timeout it cuts off requests in flight.
func All(servers []*http.Server, timeout time.Duration, logger log.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()

	var all sync.WaitGroup
	for _, server := range servers {
		all.Go(func() {
			if err := server.Shutdown(ctx); err != nil {
				_ = level.Warn(logger).Log(
					"msg", "closed requests in flight at shutdown",
					"after", timeout,
					"err", err,
				)
				_ = server.Close()
			}
		})
	}

	all.Wait()
}
