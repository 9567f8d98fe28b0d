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

// We ping a connection that has been silent for pingAfter, and close it if the answer takes longer
// than pingTimeout. Otherwise all requests would go on to use an HTTP/2 connection whose API server
// or load balancer has silently gone away: a request that times out does not close it.
const (
	pingAfter   = 15 * time.Second
	pingTimeout = 5 * time.Second
)

// transport trusts only the cluster's certificate authority. It reads the file for every request,
// since the kubelet replaces it while the process runs.
type transport struct {
	caPath string

	mu      sync.Mutex
	ca      []byte          // the content of the file as we read it last
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
