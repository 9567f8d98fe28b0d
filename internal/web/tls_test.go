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

	h := testHandler(Options{State: true}, publish(nodeFixture()), newRegistry(t), freshRegistry())
	// Two addresses: each has a server of its own, which reads the password's configuration once.
	s := start(t, ServerOptions{Addresses: []string{"127.0.0.1:0", "127.0.0.1:0"}, ConfigFile: config,
		ShutdownTimeout: time.Minute}, h, log.NewNopLogger())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, ForceAttemptHTTP2: true}
	client := &http.Client{Transport: transport}

	for _, addr := range s.addrs {
		for password, code := range map[string]int{"": 401, "wrong": 401, "correct horse": 200} {
			r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+addr.String()+"/", nil)
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

			body, err := io.ReadAll(answer.Body)

			_ = answer.Body.Close()
			if err != nil || answer.StatusCode != code {
				t.Errorf("password %q: got %d (%v), want %d", password, answer.StatusCode, err, code)
			}

			if code == 200 && len(body) == 0 {
				t.Errorf("password %q: the body is empty", password)
			}

			if answer.ProtoMajor != 2 {
				t.Errorf("HTTP/%d", answer.ProtoMajor)
			}

			if got := answer.Header.Get("Content-Security-Policy"); got != "default-src 'self'" {
				t.Errorf("the operator's policy gave way to %q", got)
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
