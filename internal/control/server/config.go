package server

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// maxConfig bounds the configuration file in bytes.
const maxConfig = 1 << 20

// configDocument is the file of --control.config.file. Paths in it are relative to its folder.
type configDocument struct {
	TLS struct {
		Cert     string `yaml:"cert_file"`
		Key      string `yaml:"key_file"`
		ClientCA string `yaml:"client_ca_file,omitempty"`
	} `yaml:"tls" expected:"cert_file and key_file"`
	Clients    []configClient `yaml:",omitempty"`
	Tokens     configTokens   `yaml:",omitempty"`
	Kubernetes bool           `yaml:",omitempty"`
}

// configClient is known by its certificate: by common name, or by a URI of the subject's
// alternative names.
type configClient struct {
	CN  string `yaml:"cn,omitempty"`
	URI string `yaml:"uri,omitempty"`
	configRights
}

// configRights are what a caller may do.
type configRights struct {
	Rights []verb `range:"1..7" expected:"some of read, plan, apply, mode, force, take-over, release"`
}

// configTokens has the hashes of tokens: the file alone admits no caller.
type configTokens []configToken

type configToken struct {
	Name   string    `expected:"a name for the audit log" nonzero:"a name for the audit log"`
	SHA256 tokenHash `yaml:"sha256"`
	configRights
}

type tokenHash [sha256.Size]byte

// serverConfig is a configuration that was read and checked.
type serverConfig struct {
	certificate tls.Certificate
	clientCA    *x509.CertPool            // nil: we ask clients for no certificate
	clients     map[string]control.Rights // by configClient.key
	tokens      []knownToken
	kubernetes  bool        // we accept tokens that the API server knows
	files       []fileStamp // of the files that it was read from, from before we read them
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

// loadConfig reads the configuration and the files that it names. If that fails, the result has only
// the stamps of the files that loadConfig has looked at.
func loadConfig(path string) (*serverConfig, error) {
	c := &serverConfig{clients: make(map[string]control.Rights)}
	var doc *configDocument

	err := withoutPath(c.addStamps(path))
	if err == nil {
		doc, err = readConfig(path)
	}

	if err == nil {
		err = doc.load(filepath.Dir(path), c)
	}

	if err != nil {
		return &serverConfig{files: c.files}, &configError{path: path, err: err}
	}

	return c, nil
}

// configError is why the configuration cannot be used.
type configError struct {
	path string // of the configuration
	err  error
}

func (e *configError) Error() string {
	return fmt.Sprintf("--control.config.file=%s: %v", e.path, e.err)
}

func (e *configError) Unwrap() error { return e.err }

// publicText says what is wrong to callers that we do not know: with neither paths nor what is in the files.
func (e *configError) publicText() string {
	kind := "is not valid"

	switch {
	case errors.Is(e.err, fs.ErrNotExist):
		kind = "does not exist"
	case errors.Is(e.err, fs.ErrPermission):
		kind = "cannot be read"
	}

	var named *namedFileError
	if errors.As(e.err, &named) {
		return "the file of --control.config.file names a file that " + kind + ": " + named.key
	}

	return "the file of --control.config.file " + kind
}

// namedFileError is why a file that the configuration names cannot be used.
type namedFileError struct {
	key string // in the configuration: "tls.client_ca_file"
	err error
}

func (e *namedFileError) Error() string { return e.key + ": " + e.err.Error() }
func (e *namedFileError) Unwrap() error { return e.err }

// addStamps adds the stamps of files that we are about to read. It returns an error if one is no
// regular file.
func (c *serverConfig) addStamps(paths ...string) error {
	var errs []error

	for _, path := range paths {
		s := stampOf(path)
		c.files = append(c.files, s)
		errs = append(errs, s.checkRegular())
	}

	return errors.Join(errs...)
}

func readConfig(path string) (*configDocument, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer file.Close()

	info, err := file.Stat()
	if err != nil {
		return nil, withoutPath(err)
	}

	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("mode %04o: expected no rights for others, such as 0640", mode)
	}

	text, err := strictyaml.ReadAll(file, "", maxConfig)
	if err != nil {
		return nil, withoutPath(err)
	}

	var doc configDocument
	if err := strictyaml.Decode("", text, &doc); err != nil {
		return nil, err
	}

	return &doc, nil
}

// FinishYAML checks the configuration as a whole.
func (d *configDocument) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	switch {
	case len(d.Clients) == 0 && len(d.Tokens) == 0 && !d.Kubernetes:
		r.Fail(
			n,
			key,
			"no way to authenticate is configured: expected clients, tokens or kubernetes: true",
		)
	case len(d.Clients) > 0 && d.TLS.ClientCA == "":
		r.FailAt(n, key, "clients", "expected tls.client_ca_file with them")
	}
}

// FinishYAML checks a client.
func (c *configClient) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if (c.CN == "") == (c.URI == "") {
		r.Fail(n, key, "expected either cn or uri")
	}

	// Only the first client with a key is right.
	same := func(o configClient) bool { return o.key() == c.key() }
	if all := r.Root().(*configDocument).Clients; &all[slices.IndexFunc(all, same)] != c {
		r.Fail(n, key, "%q is there already", c.CN+c.URI)
	}
}

// FinishYAML checks a token.
func (t *configToken) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	same := func(o configToken) bool { return o.Name == t.Name || o.SHA256 == t.SHA256 }
	if all := r.Root().(*configDocument).Tokens; &all[slices.IndexFunc(all, same)] != t {
		r.Fail(n, key, "%q or its hash is there already", t.Name)
	}
}

// key returns the client's key in serverConfig.clients: "uri:..." or "cn:...".
func (c *configClient) key() string {
	if c.URI != "" {
		return "uri:" + c.URI
	}

	return "cn:" + c.CN
}

// DecodeYAML reads the tokens. Errors do not show a token's value, which may be a secret.
func (t *configTokens) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	notMapping := func(item *strictyaml.Node) bool { return item.Kind == strictyaml.ScalarNode }
	if n.Kind != strictyaml.SequenceNode || slices.ContainsFunc(n.Content, notMapping) {
		r.Fail(n, key, "expected a list of mappings with name, sha256 and rights")
		return
	}

	r.Decode(n, key, (*[]configToken)(t))
}

// DecodeYAML reads a hash. The error does not show the value, which may be the token itself.
func (h *tokenHash) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	sum, err := hex.DecodeString(n.Value)
	if copy(h[:], sum); err != nil || len(sum) != sha256.Size {
		r.Fail(n, key, "expected 64 hexadecimal digits, from: printf %%s TOKEN | sha256sum")
	}
}

// load reads the files that the configuration names.
func (d *configDocument) load(dir string, c *serverConfig) error {
	c.kubernetes = d.Kubernetes
	for _, client := range d.Clients {
		c.clients[client.key()] = client.rights()
	}

	for _, token := range d.Tokens {
		c.tokens = append(
			c.tokens,
			knownToken{name: token.Name, sum: token.SHA256, rights: token.rights()},
		)
	}

	return d.loadTLS(dir, c)
}

func (c configRights) rights() control.Rights {
	var rights control.Rights
	for _, v := range c.Rights {
		*rightOf(&rights, v) = true
	}

	return rights
}

func (d *configDocument) loadTLS(dir string, c *serverConfig) error {
	inDir := func(p string) string {
		if filepath.IsAbs(p) {
			return p
		}

		return filepath.Join(dir, p)
	}
	cert := inDir(d.TLS.Cert)
	key := inDir(d.TLS.Key)

	err := c.addStamps(cert, key)
	if err == nil {
		c.certificate, err = tls.LoadX509KeyPair(cert, key)
	}

	if err != nil {
		return &namedFileError{"tls.cert_file, tls.key_file", err}
	}

	if d.TLS.ClientCA == "" {
		return nil
	}

	ca := inDir(d.TLS.ClientCA)

	var pem []byte
	if err = c.addStamps(ca); err == nil {
		pem, err = os.ReadFile(ca)
	}

	if err != nil {
		return &namedFileError{"tls.client_ca_file", err}
	}

	c.clientCA = x509.NewCertPool()
	if !c.clientCA.AppendCertsFromPEM(pem) {
		return &namedFileError{"tls.client_ca_file", errors.New("expected certificates in PEM")}
	}

	return nil
}

// withoutPath drops the operation and the path from an error of package os: our messages have them
// already.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}

	return err
}
