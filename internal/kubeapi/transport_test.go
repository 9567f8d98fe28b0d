package kubeapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	stdlog "log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// otherAuthority is a certificate that signed none of the servers here.
func otherAuthority(t *testing.T) []byte {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Unix(1<<33, 0)}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestClientTrustsTheClusterOnly(t *testing.T) {
	var asked atomic.Int32
	c, dir := testClient(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, "{}")
	})
	path := filepath.Join(dir, "ca.crt")

	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	// The authority is replaced while connections of the former are open.
	for _, step := range []struct {
		name string
		ca   []byte
		ok   bool
	}{{"the cluster's", good, true}, {"another", otherAuthority(t), false}, {"none", []byte("nothing"), false},
		{"the cluster's again", good, true}} {
		if err := os.WriteFile(path, step.ca, 0o600); err != nil {
			t.Fatal(err)
		}

		before := asked.Load()

		err := c.Do(t.Context(), get, nil)
		if step.ok != (err == nil) || !step.ok && !errors.Is(err, gpu.ErrUnavailable) {
			t.Errorf("certificate authority: %s: %v, want success %v or else %v", step.name, err, step.ok, gpu.ErrUnavailable)
		}

		if !step.ok && asked.Load() != before {
			t.Errorf("certificate authority: %s: the token went to an impostor", step.name)
		}
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}

	if err := c.Do(t.Context(), get, nil); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("without a certificate authority: %v, want %v", err, gpu.ErrUnavailable)
	}
}

// silentConn is a connection whose other end may be gone without a word: what is written is lost,
// and nothing comes.
type silentConn struct {
	net.Conn
	gone *atomic.Bool
}

func (c silentConn) Write(p []byte) (int, error) {
	if c.gone.Load() {
		return len(p), nil
	}

	return c.Conn.Write(p)
}

// pipes is a listener without a network.
type pipes struct {
	incoming chan net.Conn
	closed   chan struct{}
}

func (l pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.incoming:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l pipes) Close() error   { close(l.closed); return nil }
func (l pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestClientLeavesADeadConnection(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	dir := credentials(t, certified)
	certified.Close()
	synctest.Test(t, func(t *testing.T) {
		protocols := make(chan string, 10)
		server := &http.Server{
			TLSConfig: &tls.Config{Certificates: certified.TLS.Certificates},
			ErrorLog:  stdlog.New(io.Discard, "", 0),
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				protocols <- r.Proto
				_, _ = io.WriteString(w, "{}")
			}),
		}
		listener := pipes{make(chan net.Conn), make(chan struct{})}
		served := make(chan error)
		go func() { served <- server.ServeTLS(listener, "", "") }()

		transport, err := newTransport(dir)
		if err != nil {
			t.Fatal(err)
		}

		var last *atomic.Bool
		transport.current.DialContext = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			last = &atomic.Bool{}
			listener.incoming <- far

			return silentConn{near, last}, nil
		}

		c, err := New(Options{Server: "https://127.0.0.1", CredentialsDir: dir, Transport: transport})
		if err != nil {
			t.Fatal(err)
		}

		if err := c.Do(t.Context(), get, nil); err != nil {
			t.Fatal(err)
		}

		if protocol := <-protocols; protocol != "HTTP/2.0" {
			t.Errorf("asked by %s, want HTTP/2.0", protocol)
		}

		last.Store(true)
		time.Sleep(pingAfter + pingTimeout + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()

		if err := c.Do(ctx, get, nil); err != nil {
			t.Errorf("after the connection died: %v", err)
		}

		c.Close()
		_ = server.Close()

		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}
