package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// certificate writes a self-signed certificate for 127.0.0.1 and its key.
func certificate(t *testing.T, dir string) (cert, key string) {
	t.Helper()

	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "n"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}

	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}

	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der},
		key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return cert, key
}

// TestControlOverTLS: over the network, a caller has the rights of its token, and no others.
func TestControlOverTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, dir)
	tokens := map[string]string{"operator": "s3cret-of-the-operator", "scheduler": "s3cret-of-the-scheduler",
		"stranger": "s3cret-of-the-stranger"}
	config := "tls:\n  cert_file: " + cert + "\n  key_file: " + key + "\ntokens:\n"

	for name, rights := range map[string]string{"operator": "[read, plan, apply]", "scheduler": "[read, plan]"} {
		sum := sha256.Sum256([]byte(tokens[name]))
		config += "  - {name: " + name + ", sha256: " + hex.EncodeToString(sum[:]) + ", rights: " + rights + "}\n"
	}

	file := write(t, "control.yml", config)
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}

	c := controlNode(t, write(t, "s.yaml", repartitionScenario), "--control.listen-address=127.0.0.1:0",
		"--control.config.file="+file)
	address := regexp.MustCompile(`partition control is listening" component=control address=(127\.0\.0\.1:\d+)`)
	c.waitFor(`partition control is listening" component=control address=127.0.0.1:`)
	c.advance(2 * time.Second) // the kubelet's list is settled
	as := func(name string, args ...string) []string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(tokens[name]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}

		return append([]string{"--address=https://" + address.FindStringSubmatch(c.logText())[1], "--ca-file=" + cert,
			"--token-file=" + path}, args...)
	}
	wanted := []string{"--gpus", "1", "--devices", "1g.10gb=2"}
	c.must(1, as("stranger", "get")...)
	c.must(0, as("scheduler", append([]string{"plan"}, wanted...)...)...)

	if out := c.must(1, as("scheduler", append([]string{"apply", "--yes"}, wanted...)...)...); !strings.Contains(out,
		"right") {
		t.Errorf("migctl does not say what is missing:\n%s", out)
	}

	c.must(0, as("operator", append([]string{"apply", "--yes"}, wanted...)...)...)

	audit, err := os.ReadFile(filepath.Join(c.dir, "state", "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{`"actor":"token:operator"`, `"actor":"token:scheduler"`, `"status":401`, `"status":403`,
		`"status":202`} {
		if !strings.Contains(string(audit), want) {
			t.Errorf("the audit log has no %s:\n%s", want, audit)
		}
	}

	for name, token := range tokens {
		if strings.Contains(string(audit)+c.logText(), token) {
			t.Errorf("the token of %s is in the audit log or the log", name)
		}
	}
}

// Named layouts of the node's own file.
func TestNamedLayouts(t *testing.T) {
	c := controlNode(t, write(t, "s.yaml", repartitionScenario), "--control.layouts=../../testdata/mig-configs/field.yaml")
	if out := c.must(0, "layouts"); !strings.Contains(out, "all-balanced") {
		t.Errorf("layouts:\n%s", out)
	}

	// GPUs 2 and 3 have MIG off, which no plan changes.
	if out := c.must(1, "plan", "--layout", "all-balanced"); !strings.Contains(out, "MIG mode") {
		t.Errorf("all-balanced:\n%s", out)
	}

	out := c.must(1, "apply", "--yes", "--layout", "all-disabled")
	if !strings.Contains(out, "MIG mode") {
		t.Errorf("all-disabled:\n%s", out)
	}
}
