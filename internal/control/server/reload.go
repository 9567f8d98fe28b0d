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

// configFile is a configuration that is read again when one of its files has changed. If that
// fails, TLS continues with the last certificate, so that clients can connect, but no caller is
// admitted until the file is valid: credentials that were removed from it must not remain in force.
// It is safe for concurrent use.
type configFile struct {
	path   string
	logger log.Logger

	mu    sync.Mutex
	last  *loaded // the last valid configuration
	err   error   // why the current files are invalid
	files []stamp // the current files, as they were before they were read
}

// stamp is the metadata of a file that differs once the file has changed.
type stamp struct {
	path    string
	size    int64
	changed time.Time
	inode   uint64
	mode    os.FileMode
	missing bool
}

// regular returns an error if the path is not a regular file: opening a pipe blocks until it has a
// writer.
func (s *stamp) regular() error {
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

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{path: path, missing: true}
	}

	s := stamp{path: path, size: info.Size(), changed: info.ModTime(), mode: info.Mode()}
	if status, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = status.Ino
	}

	return s
}

// currentConfig returns the last valid configuration, which it reads again if the files have
// changed, and an error if the files are invalid now.
func (f *configFile) currentConfig() (*loaded, error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if !slices.ContainsFunc(f.files, func(was stamp) bool { return stampOf(was.path) != was }) {
		return f.last, f.err
	}

	changes, err := f.putInForce(loadConfig(f.path))
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

// putInForce adopts the configuration that was read, or the error of reading it, and returns what
// differs from the last valid one. It is called with mu held.
func (f *configFile) putInForce(c *loaded, err error) ([]string, error) {
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

// Reloader makes a server read the file of --control.config.file again at once. Its zero value is
// ready for use. It is safe for concurrent use.
type Reloader struct {
	mu   sync.Mutex
	file *configFile // nil: no listener uses it yet
}

// Read reads the file, which blocks as long as its file system does, and returns a function that
// puts it in force and returns what changed. After an error no client is admitted over TCP until
// the file is valid: a credential that was removed from it must not remain in force. TLS keeps the
// last certificate.
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

		return r.file.putInForce(c, err)
	}
}

func (r *Reloader) set(file *configFile) {
	if r == nil {
		return
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.file = file
}

// changesTo describes what differs in a newer configuration, without secrets.
func (c *loaded) changesTo(newer *loaded) []string {
	var list []string
	note := func(changed bool, what string) {
		if changed {
			list = append(list, what)
		}
	}
	note(
		!slices.EqualFunc(c.certificate.Certificate, newer.certificate.Certificate, bytes.Equal),
		"tls certificate",
	)
	note(!c.clientCA.Equal(newer.clientCA), "tls.client_ca_file")
	note(c.kubernetes != newer.kubernetes, fmt.Sprintf("kubernetes: %t", newer.kubernetes))

	was := map[string]any{}

	is := map[string]any{}
	for to, from := range map[*map[string]any]*loaded{&was: c, &is: newer} {
		for name, rights := range from.clients {
			(*to)["client "+name] = rights
		}

		for _, t := range from.tokens {
			(*to)["token "+t.name] = t
		}
	}

	for _, name := range slices.Sorted(maps.Keys(is)) {
		before, had := was[name]
		note(!had, name+" added")
		note(had && before != is[name], name+" changed")
	}

	for _, name := range slices.Sorted(maps.Keys(was)) {
		_, has := is[name]
		note(!has, name+" removed")
	}

	return list
}

// tlsConfig returns a TLS configuration that gives each new connection the current certificates. A
// client certificate is optional if callers may have tokens.
func (f *configFile) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c, _ := f.currentConfig() // callers are authenticated for each call

			config := &tls.Config{
				MinVersion:             tls.VersionTLS13,
				Certificates:           []tls.Certificate{c.certificate},
				NextProtos:             []string{"http/1.1"},
				SessionTicketsDisabled: true, // a resumed session would have the certificate of an earlier connection
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
