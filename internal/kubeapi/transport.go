package kubeapi

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A connection is closed this long after the last message of an API server or load balancer that
// has silently gone away: a request that times out does not close its HTTP/2 connection, which all
// later requests would use.
const (
	pingAfter   = 15 * time.Second
	pingTimeout = 5 * time.Second
)

// transport trusts only the cluster's certificate authority, and reads it for every request, since
// the file is replaced while the process runs.
type transport struct {
	caPath string

	mu      sync.Mutex
	ca      []byte
	current *http.Transport // trusts ca
}

func newTransport(credentialsDir string) (*transport, error) {
	t := &transport{caPath: filepath.Join(credentialsDir, "ca.crt")}
	_, err := t.currentTransport()

	return t, err
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	current, err := t.currentTransport()
	if err != nil {
		return nil, err
	}

	return current.RoundTrip(request)
}

// CloseIdleConnections is called by http.Client.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.current.CloseIdleConnections()
}

// currentTransport returns the transport that trusts the current content of the file.
func (t *transport) currentTransport() (*http.Transport, error) {
	ca, err := os.ReadFile(t.caPath)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	if t.current != nil && bytes.Equal(ca, t.ca) {
		return t.current, nil
	}

	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("certificate authority: no certificate in %s", t.caPath)
	}

	if t.current != nil {
		t.current.CloseIdleConnections()
	}

	t.ca = ca
	t.current = &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		MaxIdleConns:      1,
	}

	return t.current, nil
}
