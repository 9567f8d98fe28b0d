package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// configFile is the file of --control.config.file, with the files that it names. We read them again
// when one has changed. If they are invalid then, TLS keeps the last certificate, so that clients can
// connect, but we admit no caller until they are valid: a credential that the operator has removed
// must not remain in force. It is safe for concurrent use.
type configFile struct {
	path   string
	logger log.Logger

	mu    sync.Mutex
	last  *serverConfig // the last valid configuration
	err   error         // why the files are invalid now; nil if they are valid
	files []fileStamp   // of the files, from before we read them last
}

// fileStamp is the metadata of a file. It differs once the file has changed.
type fileStamp struct {
	path    string
	size    int64
	changed time.Time
	inode   uint64
	mode    os.FileMode
	missing bool
}

// checkRegular returns an error if there is something else than a regular file: to open a pipe would
// block until it has a writer.
func (s *fileStamp) checkRegular() error {
	if s.missing || s.mode.IsRegular() {
		return nil
	}

	return &os.PathError{Op: "open", Path: s.path, Err: errors.New("expected a regular file")}
}

func newConfigFile(path string, logger log.Logger) (*configFile, error) {
	c, err := loadConfig(path)
	if err != nil {
		return nil, err
	}

	return &configFile{path: path, logger: logger, last: c, files: c.files}, nil
}

func stampOf(path string) fileStamp {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{path: path, missing: true}
	}

	s := fileStamp{path: path, size: info.Size(), changed: info.ModTime(), mode: info.Mode()}
	if status, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = status.Ino
	}

	return s
}

// currentConfig returns the last valid configuration, which it reads again if the files have
// changed, and an error if the files are invalid now.
func (f *configFile) currentConfig() (*serverConfig, error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	hasChanged := func(s fileStamp) bool { return stampOf(s.path) != s }
	if !slices.ContainsFunc(f.files, hasChanged) {
		return f.last, f.err
	}

	changes, err := f.adopt(loadConfig(f.path))
	if err != nil {
		_ = level.Error(f.logger).Log(
			"msg", "partition control refuses all TCP clients until its configuration is valid",
			"err", err,
		)
	} else {
		_ = level.Info(f.logger).Log(
			"msg", "partition control reloaded its configuration",
			"path", f.path,
			"changes", strings.Join(changes, ", "),
		)
	}

	return f.last, f.err
}

// adopt makes the result of loadConfig the current configuration, or its error the reason to admit
// no caller. It returns what differs from the last valid configuration. f.mu is held.
func (f *configFile) adopt(c *serverConfig, err error) ([]string, error) {
	f.files = c.files
	if err != nil {
		f.err = fmt.Errorf("configuration: %w", err)
		return nil, err
	}

	changes := f.last.changesTo(c)
	if f.err != nil {
		changes = append(changes, "the file is valid again")
	}

	f.last = c
	f.err = nil

	return changes, nil
}

// Reloader makes a server read the file of --control.config.file again at once, without waiting for
// the next connection or call. Its zero value is ready for use. It is safe for concurrent use.
type Reloader struct {
	mu   sync.Mutex
	file *configFile // nil: no listener uses it yet
}

// Read reads the file, and returns a function that puts it in force and returns what has changed.
// Read can block as long as the file system does; apply cannot. If the file is invalid, apply
// returns why, and the server admits no client over TCP until it is valid, see configFile.
func (r *Reloader) Read(path string) (apply func() ([]string, error)) {
	c, err := loadConfig(path)

	return func() ([]string, error) {
		r.mu.Lock()
		defer r.mu.Unlock()

		if r.file == nil {
			return nil, err
		}

		r.file.mu.Lock()
		defer r.file.mu.Unlock()

		return r.file.adopt(c, err)
	}
}

// set says which file the server uses. r may be nil.
func (r *Reloader) set(file *configFile) {
	if r == nil {
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.file = file
}

// changesTo describes what differs in a newer configuration, without secrets.
func (c *serverConfig) changesTo(newer *serverConfig) []string {
	var list []string
	addIf := func(changed bool, what string) {
		if changed {
			list = append(list, what)
		}
	}
	addIf(
		!slices.EqualFunc(c.certificate.Certificate, newer.certificate.Certificate, bytes.Equal),
		"tls certificate",
	)
	addIf(!c.clientCA.Equal(newer.clientCA), "tls.client_ca_file")
	addIf(c.kubernetes != newer.kubernetes, fmt.Sprintf("kubernetes: %t", newer.kubernetes))

	before := c.callers()
	after := newer.callers()

	for _, name := range slices.Sorted(maps.Keys(after)) {
		former, existed := before[name]
		addIf(!existed, name+" added")
		addIf(existed && former != after[name], name+" changed")
	}

	for _, name := range slices.Sorted(maps.Keys(before)) {
		_, exists := after[name]
		addIf(!exists, name+" removed")
	}

	return list
}

// callers returns the clients' rights and the tokens, by a name for the log.
func (c *serverConfig) callers() map[string]any {
	byName := map[string]any{}
	for name, rights := range c.clients {
		byName["client "+name] = rights
	}

	for _, t := range c.tokens {
		byName["token "+t.name] = t
	}

	return byName
}

// tlsConfig returns a TLS configuration that gives each new connection the current certificates. A
// client certificate is optional if callers may have tokens.
func (f *configFile) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			// If the files are invalid, we use the last certificate. No call is admitted then.
			c, _ := f.currentConfig()

			config := &tls.Config{
				MinVersion:   tls.VersionTLS13,
				Certificates: []tls.Certificate{c.certificate},
				NextProtos:   []string{"http/1.1"},
				// A resumed session would have the certificate of an earlier connection.
				SessionTicketsDisabled: true,
			}
			if c.clientCA == nil {
				return config, nil
			}

			config.ClientCAs = c.clientCA
			config.ClientAuth = tls.RequireAndVerifyClientCert

			if len(c.tokens) > 0 || c.kubernetes {
				config.ClientAuth = tls.VerifyClientCertIfGiven
			}

			return config, nil
		},
	}
}
