package server

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// auditEntry is one line of the audit log. A change has two: one before it begins, and one after it
// was answered. It contains no credentials and no free text of an unauthenticated caller: a path
// that has no route is not recorded.
type auditEntry struct {
	Time  time.Time `json:"time"`
	Phase string    `json:"phase"` // "begin" or "end"
	Actor string    `json:"actor,omitempty"`
	// Method is how the actor was authenticated: "peer", "mtls", "token", "kube".
	Method string `json:"method,omitempty"`
	// Credential is the id of a Kubernetes token. The API server's audit log says who asked for it.
	Credential string `json:"credential,omitempty"`
	From       string `json:"from,omitempty"`
	Verb       verb   `json:"verb,omitempty"`
	Request    string `json:"request"` // "POST /api/v1/operations"
	Plan       string `json:"plan,omitempty"`
	Op         string `json:"operation,omitempty"`
	GPU        string `json:"gpu,omitempty"`
	// StatedReason is why the caller makes the change, in its own words, which nothing has checked.
	StatedReason statedReason    `json:"statedReason,omitempty"`
	Device       string          `json:"device,omitempty"`    // the device confirmed to be free
	Confirmed    []string        `json:"confirmed,omitempty"` // containers that no longer count as its holders
	Spec         string          `json:"specSHA256,omitempty"`
	Force        []string        `json:"force,omitempty"`
	Enabled      *bool           `json:"enabled,omitempty"`  // the requested MIG mode
	TakeOver     bool            `json:"takeOver,omitempty"` // GPUs of another owner may be changed
	Replay       bool            `json:"replay,omitempty"`   // answered from the store of idempotency keys
	Status       int             `json:"status,omitempty"`
	Problem      api.ProblemType `json:"problem,omitempty"`
	Seconds      float64         `json:"durationSeconds,omitempty"`
	// Calls is how many calls of this caller with this status the line stands for, see logAnswer;
	// absent if it is 1.
	Calls int `json:"calls,omitempty"`
}

// auditLog writes the audit log, line by line. It is safe for concurrent use.
type auditLog struct {
	observe func(error) // may be nil

	mu     sync.Mutex
	w      io.Writer
	torn   bool  // the last line was not written completely
	failed error // why the last line could not be written; nil if it was
}

// write writes an entry. With durable, the entry is on disk when write returns.
func (a *auditLog) write(e auditEntry, durable bool) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	a.failed = a.append(line, durable)
	if a.observe != nil {
		a.observe(a.failed)
	}

	return a.failed
}

func (a *auditLog) append(line []byte, durable bool) error {
	if a.torn { // the incomplete line remains as a line of its own
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

// failure returns why changes are refused because of the audit log; it is empty if they are not.
func (a *auditLog) failure() string {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.failed == nil {
		return ""
	}

	return AuditFailure(a.failed)
}

// AuditFailure returns why an audit log cannot be written, without a path of the node.
func AuditFailure(err error) string {
	return "the audit log cannot be written: " + systemReason(err)
}
