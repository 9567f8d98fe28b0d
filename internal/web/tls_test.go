package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// writeCertificate makes a certificate for the loopback, and the pool of those who trust it.
func writeCertificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mig-exporter test"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}

	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	writeFile(t, filepath.Join(dir, "server.crt"), cert)
	writeFile(t, filepath.Join(dir, "server.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)

	return pool
}

func writeFile(t *testing.T, name string, content []byte) {
	t.Helper()

	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

const secureConfig = `
tls_server_config:
  cert_file: server.crt
  key_file: server.key
basic_auth_users:
  prometheus: $2a$04$aOZ/hehR60r9jOgmLJskmOK.Ka3yCTRQjLkbWOoFEQpBJOyz2Vhmi
http_server_config:
  headers:
    Content-Security-Policy: "default-src 'self'"
`

func TestTLSAndBasicAuth(t *testing.T) {
	dir := t.TempDir()
	trusted := writeCertificate(t, dir)
	config := filepath.Join(dir, "web.yml")
	writeFile(t, config, []byte(secureConfig))

	if err := CheckConfig(config); err != nil {
		t.Fatal(err)
	}

	opts := Options{State: true, Recommendations: func(gpu.UUID) any { return &struct{}{} }}
	h := testHandler(opts, publish(nodeFixture()), newRegistry(t), freshRegistry())
	// Two addresses: each has a server of its own, which reads the password's configuration once.
	s := start(t, ServerOptions{Addresses: []string{"127.0.0.1:0", "127.0.0.1:0"}, ConfigFile: config,
		ShutdownTimeout: time.Minute}, h, log.NewNopLogger())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, ForceAttemptHTTP2: true}
	client := &http.Client{Transport: transport}

	for _, addr := range s.addrs {
		for _, path := range []string{"/", pathMetrics, pathNode, pathStream, pathHistory, pathHealth, pathAdvice} {
			for password, code := range map[string]int{"": 401, "wrong": 401, "correct horse": 200} {
				askSecurely(t, client, "https://"+addr.String()+path, password, code)
			}
		}
	}

	plain, err := http.Get("http://" + s.addrs[0].String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}

	_ = plain.Body.Close()
	if plain.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP got %d", plain.StatusCode)
	}

	transport.CloseIdleConnections()

	if err := s.end(); err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// askSecurely checks the answer to a request with a password; empty is none. It reads the beginning
// of the body alone, since a stream has no end.
func askSecurely(t *testing.T, client *http.Client, url, password string, code int) {
	t.Helper()

	r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}

	if password != "" {
		r.SetBasicAuth("prometheus", password)
	}

	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()

	begin := make([]byte, 2)
	if _, err := io.ReadFull(answer.Body, begin); code == 200 && err != nil {
		t.Errorf("%s: no body: %v", url, err)
	}

	if answer.StatusCode != code {
		t.Errorf("%s with password %q: got %d, want %d", url, password, answer.StatusCode, code)
	}

	if answer.ProtoMajor != 2 {
		t.Errorf("%s: HTTP/%d", url, answer.ProtoMajor)
	}

	if got := answer.Header.Get("Content-Security-Policy"); got != "default-src 'self'" {
		t.Errorf("%s: the operator's policy gave way to %q", url, got)
	}
}
