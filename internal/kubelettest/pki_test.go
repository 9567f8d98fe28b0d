package kubelettest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is a certificate authority for one run, with the folder in which it keeps certificates
// and keys.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}

	a := &authority{dir: dir, key: key}
	template := newTemplate(pkix.Name{CommonName: "kubelettest"})
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign
	a.cert = template

	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}

	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}

	return a, errors.Join(os.MkdirAll(dir, 0o700), writePEM(a.certFile("ca"), "CERTIFICATE", der))
}

func newTemplate(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func (a *authority) certFile(name string) string { return filepath.Join(a.dir, name+".crt") }
func (a *authority) keyFile(name string) string  { return filepath.Join(a.dir, name+".key") }

// issue writes a certificate, for servers at the node's addresses and for clients, and its key.
func (a *authority) issue(name string, subject pkix.Name) error {
	if err := a.newKey(name); err != nil {
		return err
	}

	text, err := os.ReadFile(a.keyFile(name))
	if err != nil {
		return err
	}

	block, _ := pem.Decode(text)

	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return err
	}

	template := newTemplate(subject)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.DNSNames = []string{"localhost", nodeName, "kubernetes.default.svc", exporterHost}
	template.IPAddresses = []net.IP{net.ParseIP(nodeAddress), net.ParseIP("127.0.0.1"), net.ParseIP(serviceAddress)}

	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}

	return writePEM(a.certFile(name), "CERTIFICATE", der)
}

// newKey writes a key without a certificate.
func (a *authority) newKey(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}

	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}

	return writePEM(a.keyFile(name), "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
