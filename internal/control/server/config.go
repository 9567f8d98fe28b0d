package server

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/control"
)

// maxConfig bounds the configuration file in bytes.
const maxConfig = 1 << 20

// configDocument is the file of --control.config.file. Paths in it are relative to its folder.
type configDocument struct {
	TLS struct {
		Cert     string `yaml:"cert_file"`
		Key      string `yaml:"key_file"`
		ClientCA string `yaml:"client_ca_file"`
	} `yaml:"tls"`
	// Clients are known by their certificates: by common name, or by a URI of the subject's alternative names.
	Clients []struct {
		CN     string   `yaml:"cn"`
		URI    string   `yaml:"uri"`
		Rights []string `yaml:"rights"`
	} `yaml:"clients"`
	// Tokens are given by their hashes; the file has nothing that admits a caller.
	Tokens []struct {
		Name   string   `yaml:"name"`
		SHA256 string   `yaml:"sha256"`
		Rights []string `yaml:"rights"`
	} `yaml:"tokens"`
	Kubernetes bool `yaml:"kubernetes"`
}

// loaded is the configuration, read and checked.
type loaded struct {
	certificate tls.Certificate
	clientCA    *x509.CertPool // nil: no certificates are asked for
	clients     map[string]control.Rights
	tokens      []knownToken
	kubernetes  bool
	files       []stamp // what it was read from, as it was before
}

type knownToken struct {
	name   string
	sum    [sha256.Size]byte
	rights control.Rights
}

// CheckConfig returns an error if the file of --control.config.file cannot be used.
func CheckConfig(path string) error {
	_, err := loadConfig(path)
	return err
}

// loadConfig reads the configuration and the files that it names. With an error, the result has the files alone that were
// looked at.
func loadConfig(path string) (*loaded, error) {
	c := &loaded{clients: make(map[string]control.Rights)}
	var doc *configDocument
	err := cause(c.stamp(path))
	if err == nil {
		doc, err = readConfig(path)
	}
	if err == nil {
		err = doc.load(filepath.Dir(path), c)
	}
	if err != nil {
		return &loaded{files: c.files}, fmt.Errorf("--control.config.file=%s: %w", path, err)
	}
	return c, nil
}

// stamp takes note of files before they are read. It is an error if one is no regular file.
func (c *loaded) stamp(paths ...string) error {
	var errs []error
	for _, path := range paths {
		s := stampOf(path)
		c.files = append(c.files, s)
		errs = append(errs, s.regular())
	}
	return errors.Join(errs...)
}

func readConfig(path string) (*configDocument, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, cause(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, cause(err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("mode %04o: expected no rights for others, such as 0640", mode)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	if err != nil {
		return nil, cause(err)
	}
	if len(text) > maxConfig {
		return nil, fmt.Errorf("more than %d bytes", maxConfig)
	}
	var doc configDocument
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("empty: expected tls, and clients, tokens or kubernetes")
	} else if err != nil {
		return nil, yamlCause(err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	return &doc, nil
}

func (d *configDocument) load(dir string, c *loaded) error {
	c.kubernetes = d.Kubernetes
	if err := d.loadTLS(dir, c); err != nil {
		return err
	}
	if err := d.loadClients(c); err != nil {
		return err
	}
	if err := d.loadTokens(c); err != nil {
		return err
	}
	switch {
	case len(c.clients) == 0 && len(c.tokens) == 0 && !c.kubernetes:
		return errors.New("no way to authenticate is configured: expected clients, tokens or kubernetes: true")
	case len(c.clients) > 0 && c.clientCA == nil:
		return errors.New("clients: expected tls.client_ca_file with them")
	}
	return nil
}

func (d *configDocument) loadTLS(dir string, c *loaded) error {
	at := func(p string) string {
		if filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(dir, p)
	}
	if d.TLS.Cert == "" || d.TLS.Key == "" {
		return errors.New("tls: expected cert_file and key_file")
	}
	cert, key := at(d.TLS.Cert), at(d.TLS.Key)
	err := c.stamp(cert, key)
	if err == nil {
		c.certificate, err = tls.LoadX509KeyPair(cert, key)
	}
	if err != nil {
		return fmt.Errorf("tls.cert_file, tls.key_file: %w", err)
	}
	if d.TLS.ClientCA == "" {
		return nil
	}
	ca := at(d.TLS.ClientCA)
	var pem []byte
	if err = c.stamp(ca); err == nil {
		pem, err = os.ReadFile(ca)
	}
	if err != nil {
		return fmt.Errorf("tls.client_ca_file: %w", err)
	}
	c.clientCA = x509.NewCertPool()
	if !c.clientCA.AppendCertsFromPEM(pem) {
		return errors.New("tls.client_ca_file: expected certificates in PEM")
	}
	return nil
}

func (d *configDocument) loadClients(c *loaded) error {
	for i, client := range d.Clients {
		key := "cn:" + client.CN
		if client.URI != "" {
			key = "uri:" + client.URI
		}
		if (client.CN == "") == (client.URI == "") {
			return fmt.Errorf("clients[%d]: expected either cn or uri", i)
		}
		if _, ok := c.clients[key]; ok {
			return fmt.Errorf("clients[%d]: %q is there already", i, client.CN+client.URI)
		}
		rights, err := parseRights(client.Rights)
		if err != nil {
			return fmt.Errorf("clients[%d].rights: %w", i, err)
		}
		c.clients[key] = rights
	}
	return nil
}

func (d *configDocument) loadTokens(c *loaded) error {
	for i, token := range d.Tokens {
		if token.Name == "" {
			return fmt.Errorf("tokens[%d].name: expected a name for the audit log", i)
		}
		sum, err := hex.DecodeString(token.SHA256)
		if err != nil || len(sum) != sha256.Size {
			return fmt.Errorf("tokens[%d].sha256: expected 64 hexadecimal digits, from: printf %%s TOKEN | sha256sum", i)
		}
		one := knownToken{name: token.Name, sum: [sha256.Size]byte(sum)}
		if slices.ContainsFunc(c.tokens, func(t knownToken) bool { return t.name == one.name || t.sum == one.sum }) {
			return fmt.Errorf("tokens[%d]: %q or its hash is there already", i, token.Name)
		}
		if one.rights, err = parseRights(token.Rights); err != nil {
			return fmt.Errorf("tokens[%d].rights: %w", i, err)
		}
		c.tokens = append(c.tokens, one)
	}
	return nil
}

func parseRights(names []string) (control.Rights, error) {
	var rights control.Rights
	const expected = "expected some of read, plan, apply, mode, force, take-over"
	if len(names) == 0 {
		return rights, errors.New(expected)
	}
	for _, name := range names {
		switch v := verb(name); v {
		case verbRead, verbPlan, verbApply, verbMode, verbForce, verbTakeOver:
			*rightOf(&rights, v) = true
		default:
			return rights, fmt.Errorf("%q: %s", name, expected)
		}
	}
	return rights, nil
}

// cause takes off the operation and the path, which are said already.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// yamlCause takes Go's types and the library's name off an error.
func yamlCause(err error) error {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	texts := make([]string, 0, len(wrong.Errors))
	for _, text := range wrong.Errors {
		text, _, _ = strings.Cut(text, " in type ")
		texts = append(texts, text)
	}
	return errors.New(strings.Join(texts, "; "))
}
