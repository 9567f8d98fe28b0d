package server

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// Change is a line of the audit log about a change that no caller of the API has asked for. Err is
// why it was refused, or nil.
type Change struct {
	Began     time.Time
	Now       time.Time
	Ended     bool
	Actor     string
	Method    string // how the actor is known
	Request   string
	Plan      string
	Operation string
	Err       error
}

// ChangeLog writes changes to an audit log. It is safe for concurrent use.
type ChangeLog struct{ log auditLog }

// NewChangeLog returns a log that writes to the writer of Options.Audit. observe is called with the
// error of each line, or nil.
func NewChangeLog(w io.Writer, observe func(error)) *ChangeLog {
	return &ChangeLog{auditLog{w: w, observe: observe}}
}

// Write writes a line. The one before a change is on disk when Write returns.
func (l *ChangeLog) Write(c Change) error {
	e := auditEntry{
		Time:    c.Now,
		Phase:   "begin",
		Actor:   c.Actor,
		Method:  c.Method,
		Verb:    verbApply,
		Request: c.Request,
		Plan:    c.Plan,
		Op:      c.Operation,
	}

	if c.Ended {
		e.Phase = "end"
		e.Status = http.StatusAccepted
		e.Seconds = c.Now.Sub(c.Began).Seconds()
	}

	if c.Err != nil {
		e.Status = http.StatusInternalServerError
		e.Problem = api.Internal

		var p *api.Problem
		if errors.As(c.Err, &p) {
			e.Status = p.Status
			e.Problem = p.Type
		}
	}

	return l.log.write(e, !c.Ended)
}
