package server

import (
	"errors"
	stdlog "log"
	"net"
	"strings"
	"sync"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// limitConns lets at most n connections of a listener be open; others wait in its queue.
func limitConns(l net.Listener, n int) net.Listener {
	return &limitedListener{Listener: l, places: make(chan struct{}, n), closed: make(chan struct{})}
}

type limitedListener struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.places })}, nil
}

func (l *limitedListener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		close(l.closed)
		err = l.Listener.Close()
	})
	return err
}

type limitedConn struct {
	net.Conn
	leave func()
}

func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// errorLog is where net/http tells of connections that failed.
func errorLog(logger log.Logger) *stdlog.Logger {
	return stdlog.New(connLog{logger}, "", 0)
}

type connLog struct{ logger log.Logger }

func (l connLog) Write(line []byte) (int, error) {
	if err := level.Debug(l.logger).Log("msg", "Connection of partition control", "err", errors.New(strings.TrimSpace(string(line)))); err != nil {
		return 0, err
	}
	return len(line), nil
}
