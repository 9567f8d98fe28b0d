package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// handshakeTimeout is how long making a connection may take. Even an exporter that hangs accepts
	// connections on its port.
	handshakeTimeout = 30 * time.Second
	// idleTimeout is how long we keep a port-forward that no request uses. It is short, since a run
	// may use hundreds of nodes, one after another.
	idleTimeout = 10 * time.Second
)

// transport makes requests to one node's exporter. It verifies the exporter's certificate before it
// sends a token.
type transport struct {
	http    *http.Transport
	tls     *tls.Config
	find    func(context.Context) (*corev1.Pod, error)           // finds the exporter's pod
	open    func(context.Context, *corev1.Pod) (net.Conn, error) // opens a tunnel to it
	tokens  *tokenSource
	timeout time.Duration // handshakeTimeout, except in tests

	mu       sync.Mutex
	verified net.Conn // the first connection, until a request uses it
}

func newTransport(
	s *settings,
	find func(context.Context) (*corev1.Pod, error),
	open func(context.Context, *corev1.Pod) (net.Conn, error),
	tokens *tokenSource,
) *transport {
	t := &transport{
		tls: &tls.Config{
			MinVersion: tls.VersionTLS13, // as the exporter has it
			RootCAs:    s.roots,
			ServerName: s.serverName,
			NextProtos: []string{"h2", "http/1.1"},
		},
		find:    find,
		open:    open,
		tokens:  tokens,
		timeout: handshakeTimeout,
	}
	t.http = &http.Transport{
		ForceAttemptHTTP2: true,
		IdleConnTimeout:   idleTimeout,
		DialTLSContext:    t.dial,
	}

	return t
}

// verifyServer makes the first connection, and verifies the exporter's certificate.
func (t *transport) verifyServer(ctx context.Context) error {
	conn, err := t.handshake(ctx)
	if err != nil {
		return err
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	t.verified = conn

	return nil
}

// dial returns the connection that verifyServer has made, or a new one.
func (t *transport) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	t.mu.Lock()
	conn := t.verified
	t.verified = nil
	t.mu.Unlock()

	if conn != nil {
		return conn, nil
	}

	return t.handshake(ctx)
}

// handshake connects to the node's exporter, and verifies its certificate. It finds the pod each
// time, since another pod may be the exporter by now.
func (t *transport) handshake(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.timeout, errNoConnection)
	defer cancel()

	conn, err := t.connect(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errNoConnection) {
		return nil, fmt.Errorf("%w within %s: %w", errNoConnection, t.timeout, err)
	}

	return conn, err
}

var errNoConnection = errors.New("the exporter's pod does not answer")

// connect is handshake without the timeout.
func (t *transport) connect(ctx context.Context) (net.Conn, error) {
	pod, err := t.find(ctx)
	if err != nil {
		return nil, err
	}

	plain, err := t.open(ctx, pod)
	if err != nil {
		return nil, err
	}

	conn := tls.Client(plain, t.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		plain.Close()

		return nil, fmt.Errorf("pod %s/%s does not prove that it is the exporter: expected a certificate "+
			"for %q by the ConfigMap's ca.crt: %w", pod.Namespace, pod.Name, t.tls.ServerName, err)
	}

	return conn, nil
}

// RoundTrip makes a request with a token. If the exporter does not accept a token that was used
// before, RoundTrip makes the request once more with a new one: a token can end early, or while this
// machine is asleep.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	value, isNew, err := t.tokens.get(request.Context())
	if err != nil {
		closeBody(request)
		return nil, err
	}

	response, err := t.roundTrip(request, value)
	if err != nil || isNew || response.StatusCode != http.StatusUnauthorized {
		return response, err
	}

	again := request.Clone(request.Context())

	if request.GetBody != nil {
		if again.Body, err = request.GetBody(); err != nil {
			return response, nil //nolint:nilerr // the answer stands
		}
	} else if request.Body != nil && request.Body != http.NoBody {
		return response, nil // the body was sent, and we cannot send it again
	}

	response.Body.Close()
	t.tokens.forget(value)

	if value, _, err = t.tokens.get(request.Context()); err != nil {
		closeBody(again)
		return nil, err
	}

	return t.roundTrip(again, value)
}

func closeBody(request *http.Request) {
	if request.Body != nil {
		request.Body.Close()
	}
}

// roundTrip makes a request with one token.
func (t *transport) roundTrip(request *http.Request, token string) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+token)

	return t.http.RoundTrip(request)
}

// CloseIdleConnections closes the connections that no request uses.
func (t *transport) CloseIdleConnections() { t.http.CloseIdleConnections() }

// close closes the connections that no request uses, and the verified one.
func (t *transport) close() {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.verified != nil {
		t.verified.Close()
		t.verified = nil
	}

	t.http.CloseIdleConnections()
}

// tokenSource keeps a valid token. It is safe for concurrent use.
type tokenSource struct {
	request func(context.Context) (token, error) // requests a new one
	now     func() time.Time

	mu    sync.Mutex
	value string    // empty if there is none
	renew time.Time // when to request another one
}

// get returns a token. It requests a new one, and reports isNew, if there is none or if only a fifth
// of its lifetime is left.
func (s *tokenSource) get(ctx context.Context) (value string, isNew bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	now := s.now()
	if s.value != "" && now.Before(s.renew) {
		return s.value, false, nil
	}

	t, err := s.request(ctx)
	if err != nil {
		return "", false, err
	}

	s.value = t.value
	s.renew = now.Add(t.lifetime * 4 / 5)

	return s.value, true, nil
}

// forget drops a token, unless it was replaced meanwhile.
func (s *tokenSource) forget(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.value == value {
		s.value = ""
	}
}
