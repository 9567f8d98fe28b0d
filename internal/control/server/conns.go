package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// connPool bounds the open connections of a listener. A connection is new until a call on it has a
// valid credential; then it belongs to that caller. New connections and callers' connections have
// separate limits.
//
// The pool accepts every new connection. If that is one too many, it closes the oldest new one of
// the address that has most of them. An address with one new connection loses it only if there are
// as many addresses as places, so one address does not starve another. A caller at the address of a
// flood is served if its handshake and first call take less time than the flood needs to open
// maxPerAddress connections.
type connPool struct {
	maxNew, maxPerAddress     int // limits of new connections, in total and of one address
	maxAdmitted, maxPerCaller int // limits of callers' connections, in total and of one caller

	mu       sync.Mutex
	waiting  []*pooledConn  // new connections, the oldest first
	callers  map[string]int // number of connections, by caller
	admitted int            // sum of callers
}

func newConnPool(l limits) *connPool {
	return &connPool{
		maxNew:        l.newConns,
		maxPerAddress: l.newConnsPerAddress,
		maxAdmitted:   l.knownConns,
		maxPerCaller:  l.knownConnsPerCaller,
		callers:       make(map[string]int),
	}
}

// listen returns a listener that adds its connections to the pool.
func (p *connPool) listen(l net.Listener) net.Listener {
	return &pooledListener{Listener: l, pool: p}
}

type pooledListener struct {
	net.Listener
	pool *connPool
}

func (l *pooledListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}

	return l.pool.add(conn, originOf(conn)), nil
}

// originOf returns the key under which we count new connections: the remote address, or the peer's
// user on a unix socket.
func originOf(conn net.Conn) string {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return remoteOf(conn.RemoteAddr().String())
	}

	p, err := readPeer(unix)
	if err != nil {
		return "unknown"
	}

	return fmt.Sprintf("uid:%d", p.uid)
}

// pooledConn is a connection in a pool. Close removes it from the pool.
type pooledConn struct {
	net.Conn
	pool    *connPool
	address string
	caller  string // empty while the connection is new; guarded by pool.mu
	gone    bool   // removed from the pool; guarded by pool.mu
}

func (c *pooledConn) Close() error {
	c.pool.mu.Lock()
	c.pool.remove(c)
	c.pool.mu.Unlock()

	return c.Conn.Close()
}

func (p *connPool) add(conn net.Conn, address string) *pooledConn {
	c := &pooledConn{Conn: conn, pool: p, address: address}
	p.mu.Lock()
	p.waiting = append(p.waiting, c)

	victim := p.chooseVictim(address)
	if victim != nil {
		p.remove(victim)
	}

	p.mu.Unlock()

	if victim != nil {
		_ = victim.Conn.Close() // the HTTP server notices and closes the pooledConn
	}

	return c
}

// chooseVictim returns the connection to close if a new one from address is one too many, or nil.
// p.mu is held.
func (p *connPool) chooseVictim(address string) *pooledConn {
	count := make(map[string]int)
	for _, c := range p.waiting {
		count[c.address]++
	}

	if count[address] <= p.maxPerAddress {
		if len(p.waiting) <= p.maxNew {
			return nil
		}

		for _, c := range p.waiting {
			if count[c.address] > count[address] {
				address = c.address
			}
		}

		if count[address] == 1 { // as many addresses as places
			return p.waiting[0]
		}
	}

	return p.waiting[slices.IndexFunc(p.waiting, func(c *pooledConn) bool { return c.address == address })]
}

// remove removes a connection. p.mu is held.
func (p *connPool) remove(c *pooledConn) {
	if c.gone {
		return
	}

	c.gone = true
	if c.caller != "" {
		p.release(c)
		return
	}

	i := slices.Index(p.waiting, c)
	p.waiting = slices.Delete(p.waiting, i, i+1)
}

// release removes a connection from its caller's. p.mu is held.
func (p *connPool) release(c *pooledConn) {
	p.admitted--
	if p.callers[c.caller]--; p.callers[c.caller] == 0 {
		delete(p.callers, c.caller)
	}
}

// assignTo assigns the connection to the caller of its current call, and reports whether it did. It
// does not if the connection was closed meanwhile, or if the caller or all callers together have
// reached their limit.
func (c *pooledConn) assignTo(caller string) bool {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()

	switch {
	case c.gone:
		return false
	case c.caller == caller:
		return true
	case p.callers[caller] >= p.maxPerCaller || c.caller == "" && p.admitted >= p.maxAdmitted:
		return false
	case c.caller != "": // a proxy sends the calls of several callers
		p.release(c)
	default:
		i := slices.Index(p.waiting, c)
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}

	c.caller = caller
	p.callers[caller]++
	p.admitted++

	return true
}

type connKey struct{}

// withConn is the ConnContext of all servers: it adds the pooled connection to the context of calls
// and, for a unix socket, the peer.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}

	if pooled, ok := conn.(*pooledConn); ok {
		ctx = context.WithValue(ctx, connKey{}, pooled)
		conn = pooled.Conn
	}

	return withPeer(ctx, conn)
}

// streamBuffer is how much the kernel may keep for a client that watches the node. By default it is
// megabytes: a slow client would get minutes of old events, and be noticed as late.
const streamBuffer = 32 << 10

func (c *pooledConn) limitWriteBuffer() {
	if conn, ok := c.Conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = conn.SetWriteBuffer(streamBuffer) // without it a slow client is noticed later
	}
}

// newErrorLog returns the log to which net/http writes errors of connections.
func newErrorLog(logger log.Logger) *stdlog.Logger {
	return stdlog.New(connLog{logger}, "", 0)
}

type connLog struct{ logger log.Logger }

func (l connLog) Write(line []byte) (int, error) {
	err := level.Debug(l.logger).Log(
		"msg", "connection to partition control",
		"err", errors.New(strings.TrimSpace(string(line))),
	)
	if err != nil {
		return 0, err
	}

	return len(line), nil
}
