package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control"
)

// countedConn is a connection without a network.
type countedConn struct {
	net.Conn
	closed bool
}

func (c *countedConn) Close() error { c.closed = true; return nil }

func testPool() (*connPool, func(address string) (*pooledConn, *countedConn)) {
	p := newConnPool(limits{newConns: 8, newConnsPerAddress: 4, knownConns: 6, knownConnsPerCaller: 2})

	return p, func(address string) (*pooledConn, *countedConn) {
		raw := new(countedConn)
		return p.add(raw, address), raw
	}
}

// However many connections one address opens, those of others stay, and its own newest ones.
func TestOneAddressDoesNotStarveOthers(t *testing.T) {
	p, connect := testPool()
	_, early := connect("b")
	var flood []*countedConn

	for range 1500 {
		_, raw := connect("a")
		flood = append(flood, raw)
	}

	_, late := connect("c")
	if early.closed || late.closed {
		t.Error("a connection of another address was closed")
	}

	for i, raw := range flood {
		if want := i < len(flood)-4; raw.closed != want {
			t.Errorf("connection %d of the flood: closed is %t, want %t", i, raw.closed, want)
		}
	}

	// A second flood meets the first.
	for range 1500 {
		connect("d")
	}

	if early.closed || late.closed {
		t.Errorf("closed: %t and %t, want neither", early.closed, late.closed)
	}

	if len(p.waiting) != 8 {
		t.Errorf("%d connections, want 8", len(p.waiting))
	}

	// As many addresses as places: the oldest goes.
	for i := range 100 {
		connect(fmt.Sprint("host", i))
	}

	if len(p.waiting) != 8 || p.waiting[7].address != "host99" {
		t.Errorf("%d connections", len(p.waiting))
	}
}

// Connections of callers are not those that a flood takes, and are bounded for each caller.
func TestCallersHavePlacesOfTheirOwn(t *testing.T) {
	p, connect := testPool()
	var known []*countedConn
	var conns []*pooledConn

	for i, want := range []bool{true, true, false} {
		conn, raw := connect("a")
		if got := conn.assignTo("operator"); got != want {
			t.Errorf("connection %d of a caller: %t, want %t", i, got, want)
		}

		known, conns = append(known, raw), append(conns, conn)
	}

	if !conns[0].assignTo("operator") || !conns[0].assignTo("another") {
		t.Error("a further call of the caller, or one of another caller on the same connection, is refused")
	}

	for range 1500 {
		connect("a")
	}

	if slices.ContainsFunc(known[:2], func(c *countedConn) bool { return c.closed }) || !known[2].closed {
		t.Error("the flood closed connections of callers, or not those without")
	}

	if conns[2].assignTo("third") {
		t.Error("a connection that was closed was admitted")
	}

	for _, c := range conns {
		_ = c.Close()
		_ = c.Close()
	}

	if p.admitted != 0 || len(p.callers) != 0 {
		t.Errorf("%d connections of %v", p.admitted, p.callers)
	}

	for i := range 8 {
		conn, _ := connect("a")
		if got := conn.assignTo(fmt.Sprint("caller", i)); got != (i < 6) {
			t.Errorf("caller %d: %t", i, got)
		}
	}
}

// startTLS serves over TLS for the token s3cret, and returns the address.
func (r *rig) startTLS(t *testing.T, a *authority) string {
	t.Helper()
	r.o.ListenAddress = "127.0.0.1:0"
	r.o.ConfigFile = writeConfig(t, a,
		"tls: {cert_file: cert.pem, key_file: key.pem}\ntokens: [{name: ci, sha256: "+hashOf("s3cret")+", rights: [read]}]\n")

	return r.start(t)[0].String()
}

// Connections that never begin a handshake delay no call and end no caller's connection: the
// deadline, an hour, is not what makes room.
func TestIdleConnectionsDelayNoCall(t *testing.T) {
	a := newAuthority(t)
	r := newRig(t, func(_ *Options, l *limits) { l.header, l.read = time.Hour, time.Hour })
	address := r.startTLS(t, a)
	client := a.client()
	client.Transport.(*http.Transport).DisableKeepAlives = false
	defer client.CloseIdleConnections()
	reused := false
	call := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
		}), 30*time.Second)
		defer cancel()

		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/api/v1/operations", nil)
		if err != nil {
			t.Fatal(err)
		}

		request.Header.Set("Authorization", "Bearer s3cret")

		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()

		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s, %v", response.Status, err)
		}
	}
	call()

	for range 300 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { _ = conn.Close() })
	}

	if call(); !reused {
		t.Error("the caller's connection was closed")
	}

	client.CloseIdleConnections()

	if call(); reused {
		t.Error("this was no new connection")
	}
}

// A connection without a handshake is closed, as is one on the socket without a request.
func TestSilentConnectionsAreClosed(t *testing.T) {
	a := newAuthority(t)
	path := filepath.Join(t.TempDir(), "control.sock")
	r := newRig(t, func(o *Options, l *limits) { o.Socket, l.header = path, 20*time.Millisecond })

	address := r.startTLS(t, a)
	for network, address := range map[string]string{"tcp": address, "unix": path} {
		conn, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: the connection was not closed", network)
		}

		_ = conn.Close()
	}
}

func TestConnectionsOfACallerAreLimited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	r := newRig(t, func(o *Options, l *limits) { o.Socket, l.knownConnsPerCaller = path, 1 })
	r.start(t)
	keeping := unixClient(path)

	keeping.Transport.(*http.Transport).DisableKeepAlives = false
	if status, body := get(t, keeping, "http://control/api/v1/operations"); status != 200 {
		t.Fatalf("%d %s", status, body)
	}

	if status, body := get(t, unixClient(path), "http://control/api/v1/operations"); status != 429 {
		t.Errorf("a second connection: %d %s", status, body)
	}

	if status, body := get(t, keeping, "http://control/api/v1/operations"); status != 200 {
		t.Errorf("the first connection: %d %s", status, body)
	}

	keeping.CloseIdleConnections()
}

// bufferedConn is a connection that notes its write buffer.
type bufferedConn struct {
	net.Conn
	buffer int
}

func (c *bufferedConn) SetWriteBuffer(bytes int) error {
	c.buffer = bytes
	return nil
}

// TestStreamsHaveSmallBuffers: the kernel keeps little of the node's stream, so that a client that
// reads slowly gets no old events. Other answers keep their buffer.
func TestStreamsHaveSmallBuffers(t *testing.T) {
	r := newRig(t)

	for path, want := range map[string]int{"/api/v1/node": 0, "/api/v1/node/stream": streamBuffer} {
		near, far := net.Pipe()
		conn := &bufferedConn{Conn: near}
		pooled := newConnPool(defaultLimits()).add(conn, "here")
		request := httptest.NewRequest(http.MethodGet, path, nil)
		w := httptest.NewRecorder()
		r.newHandler(someone(control.Rights{Read: true})).ServeHTTP(w, request.WithContext(withConn(t.Context(), pooled)))

		if w.Code != http.StatusOK || conn.buffer != want {
			t.Errorf("%s: status %d, buffer %d, want 200 and %d", path, w.Code, conn.buffer, want)
		}

		_ = pooled.Close()
		_ = far.Close()
	}
}
