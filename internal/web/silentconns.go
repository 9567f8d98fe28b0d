package web

import (
	"net"
	"net/http"
	"sync"
)

// silentConns are the connections of one server that have not sent a request yet. Shutdown would wait 5 s for each, so
// that one client that connects and says nothing uses up the time of requests in flight.
type silentConns struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// track is the server's ConnState.
func (s *silentConns) track(conn net.Conn, state http.ConnState) {
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

// close closes them, and those that are still to come.
func (s *silentConns) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.conns {
		_ = conn.Close()
	}
}
