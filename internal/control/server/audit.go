package server

import (
	"encoding/json"
	"io"
	"os"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// auditEntry is one line of the audit log. A change has two: one before it is begun, and one when it has been answered.
// Nothing in it is a credential, nor free text of who is not known: a path that is no route is not written down.
type auditEntry struct {
	Time     time.Time       `json:"time"`
	Phase    string          `json:"phase"` // "begin" or "end"
	Actor    string          `json:"actor,omitempty"`
	Method   string          `json:"method,omitempty"` // how the actor is known: "peer", "mtls", "token", "kube"
	From     string          `json:"from,omitempty"`
	Verb     verb            `json:"verb,omitempty"`
	Request  string          `json:"request"` // "POST /api/v1/operations"
	Plan     string          `json:"plan,omitempty"`
	Op       string          `json:"operation,omitempty"`
	GPU      string          `json:"gpu,omitempty"`
	Spec     string          `json:"specSHA256,omitempty"`
	Force    []string        `json:"force,omitempty"`
	Enabled  *bool           `json:"enabled,omitempty"`  // the MIG mode asked for
	TakeOver bool            `json:"takeOver,omitempty"` // GPUs of another owner may be changed
	Replay   bool            `json:"replay,omitempty"`   // answered from the store of idempotency keys
	Status   int             `json:"status,omitempty"`
	Problem  api.ProblemType `json:"problem,omitempty"`
	Seconds  float64         `json:"durationSeconds,omitempty"`
	Calls    int             `json:"calls,omitempty"` // that were refused by a limit since the last such line, this one included
}

// auditLog writes whole lines.
type auditLog struct {
	mu   sync.Mutex
	w    io.Writer
	torn bool // the last line was not written whole
}

func (a *auditLog) write(e auditEntry, durable bool) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.torn { // what is left of that line stays by itself
		line = append([]byte{'\n'}, line...)
	}
	if _, err := a.w.Write(append(line, '\n')); err != nil {
		a.torn = true
		return err
	}
	a.torn = false
	if s, ok := a.w.(interface{ Sync() error }); ok && durable {
		return s.Sync()
	}
	return nil
}

// AuditFile is an audit log on disk. It is safe for concurrent use.
type AuditFile struct {
	path string
	mu   sync.Mutex
	file *os.File
}

// OpenAudit opens an audit log to append to; a new one is for its owner alone. When the file is moved away, as logrotate
// does, the next line begins a new one.
func OpenAudit(path string) (*AuditFile, error) {
	a := &AuditFile{path: path}
	if err := a.reopen(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *AuditFile) reopen() error {
	file, err := os.OpenFile(a.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if a.file != nil {
		_ = a.file.Close() // what was written is written
	}
	a.file = file
	return nil
}

// Write appends a line.
func (a *AuditFile) Write(line []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	open, err := a.file.Stat()
	if err != nil {
		return 0, err
	}
	if named, err := os.Stat(a.path); err != nil || !os.SameFile(open, named) {
		if err := a.reopen(); err != nil {
			return 0, err
		}
	}
	return a.file.Write(line)
}

// Sync returns when what was written is on disk.
func (a *AuditFile) Sync() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Sync()
}

// Close closes the file.
func (a *AuditFile) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Close()
}
