package web

import (
	"os"
	"path/filepath"
	"testing"
)

func TestIsLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:9401": true, "127.8.9.10:0": true, "[::1]:9401": true, "localhost:9401": true, "LocalHost:9401": true,
		"[::ffff:127.0.0.1]:9401": true,
		":9401":                   false, "0.0.0.0:9401": false, "[::]:9401": false, "10.0.0.1:9401": false,
		"localhost.example.org:9401": false, "gpu-node:9401": false, "127.0.0.1": false, "": false,
	} {
		if got := IsLoopback(address); got != want {
			t.Errorf("%q: %v, want %v", address, got, want)
		}
	}
}

func TestAuthenticates(t *testing.T) {
	const tls = "tls_server_config:\n  cert_file: a.crt\n  key_file: a.key\n"

	for text, want := range map[string]bool{
		"":                                 false,
		tls:                                false,
		tls + "  client_ca_file: ca.crt\n": false,
		tls + "  client_auth_type: RequireAndVerifyClientCert\n":       true,
		tls + "  client_auth_type: VerifyClientCertIfGiven\n":          false,
		tls + "  client_auth_type: RequireAnyClientCert\n":             false,
		"basic_auth_users: {}\n":                                       false,
		"basic_auth_users:\n  prometheus: $2y$10$abc\n":                true,
		tls + "basic_auth_users:\n  prometheus: $2y$10$abc\n":          true,
		"http_server_config:\n  headers:\n    X-Frame-Options: deny\n": false,
		"basic_auth_users: [\n":                                        false,
	} {
		file := filepath.Join(t.TempDir(), "web.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		if got := Authenticates(file); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}

	if Authenticates("") || Authenticates("testdata/missing.yml") {
		t.Error("no file authenticates")
	}
}
