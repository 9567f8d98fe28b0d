package server

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// Change is a line of the audit log about a change that no caller of the API has asked for, such as
// one that follows the node's labels.
type Change struct {
	Began     time.Time // when the change began; unused before it
	Now       time.Time // the time of the line
	Ended     bool      // the line after the change; else the line before it
	Actor     string
	Method    string // how the actor was authenticated
	Request   string
	Plan      string // id
	Operation string // id
	Err       error  // why the change was refused, or nil
}

// ChangeLog writes changes to an audit log. It is safe for concurrent use.
type ChangeLog struct{ log auditLog }

// NewChangeLog returns a log that writes to the writer of Options.Audit. observe is called with the
// error of each line, or nil.
func NewChangeLog(w io.Writer, observe func(error)) *ChangeLog {
	return &ChangeLog{auditLog{w: w, observe: observe}}
}

// Write writes a line. The line before a change is on disk when Write returns.
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
