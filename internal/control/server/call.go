package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/privatedir"
)

// call is one request while it is handled.
type call struct {
	s        *server
	w        *responseRecorder
	r        *http.Request
	identity identity    // from admitCaller on
	body     []byte      // nil if there is none
	turn     *planTicket // nil unless the call is for a plan
	entry    auditEntry
	// begun says that the audit log has the line that precedes a change.
	begun bool
}

// responseRecorder records the status of an answer, and its body if the call has an
// Idempotency-Key.
type responseRecorder struct {
	http.ResponseWriter
	status int           // 0 until the answer begins
	body   *bytes.Buffer // nil: the body is not recorded
}

func (w *responseRecorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}

	w.ResponseWriter.WriteHeader(status)
}

func (w *responseRecorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}

	if w.body != nil {
		w.body.Write(b)
	}

	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *responseRecorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// newHandler returns the handler of a listener. It authenticates callers with a.
func (s *server) newHandler(a authenticator) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := s.o.Now()
		c := &call{s: s, w: &responseRecorder{ResponseWriter: w}, r: r}
		c.entry = auditEntry{Time: start, From: a.from(r), Request: "unknown path"}
		c.w.Header().Set("Cache-Control", "no-store")
		c.w.Header().Set("X-Content-Type-Options", "nosniff")

		defer c.logAnswer(start)
		defer func() {
			if broken := recover(); broken != nil {
				c.answerPanic(broken)
			}
		}()

		if err := c.admitCaller(a); err != nil {
			c.answerProblem(err)
			return
		}

		s.router.ServeHTTP(c.w, withCall(c))
	})
}

// answerRoute checks the caller's right, reads the body and lets the route answer.
func (c *call) answerRoute(matched *route) error {
	changes := c.r.Method != http.MethodGet && c.r.Method != http.MethodHead
	c.entry.Request = matched.pattern
	c.entry.Verb = matched.verb
	c.entry.Device = truncateID(c.r.PathValue("uuid"))

	if err := c.requireRight(matched.verb); err != nil {
		return err
	}

	limit := c.s.limits.bodyBytes
	if matched.verb == verbPlan {
		// We enqueue before we read the body: that bounds how many bodies of one caller are in
		// memory.
		if c.turn = c.s.plans.enqueue(c.caller()); c.turn == nil {
			return c.refuseForNow(1, "too many of your plans are waiting")
		}

		defer c.turn.release()
		limit = c.s.limits.planBytes
	}

	switch {
	case changes:
		if err := c.readBody(limit, matched.bodyOptional); err != nil {
			return err
		}
	case c.r.ContentLength != 0:
		// We don't read this body, and the client may never send it: the server must not wait for
		// it before the next request.
		c.closeConnection()
		return problem(api.Malformed, http.StatusBadRequest, "expected no body")
	}

	// The read deadline was for the request. It would end the call's context, and streams last
	// longer. We ignore the error, since ResponseWriters of tests have no deadlines.
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{})
	if key := c.r.Header.Get("Idempotency-Key"); key != "" && changes {
		return c.answerOnce(key, matched)
	}

	return matched.answer(c)
}

// caller returns the key under which we limit and count the calls of one caller.
func (c *call) caller() string { return c.identity.method + " " + c.identity.name }

func (c *call) requireRight(v verb) error {
	if *rightOf(&c.identity.rights, v) {
		return nil
	}

	if c.identity.method == methodKube {
		return problem(
			api.Forbidden,
			http.StatusForbidden,
			"%s may not %s partitions.mig-exporter.io of this node",
			c.identity.name,
			v.kubernetes(),
		)
	}

	return problem(
		api.Forbidden,
		http.StatusForbidden,
		"%s does not have the right %q",
		c.identity.name,
		v,
	)
}

// requireForceAndTakeOver checks the rights that a request requires in addition to its route's: to
// destroy busy instances by name, and to change GPUs that another owner manages.
func (c *call) requireForceAndTakeOver(force []string, takeOver bool) error {
	if len(force) > 0 {
		if err := c.requireRight(verbForce); err != nil {
			return err
		}
	}

	if c.entry.TakeOver = takeOver; takeOver {
		return c.requireRight(verbTakeOver)
	}

	return nil
}

// answerOnce lets the route answer the first call with an Idempotency-Key, and repeats that answer
// for the next ones.
func (c *call) answerOnce(key string, matched *route) error {
	if len(key) > maxKey || len(c.r.Header.Values("Idempotency-Key")) > 1 {
		return problem(
			api.Malformed,
			http.StatusBadRequest,
			"Idempotency-Key: expected one of at most %d characters",
			maxKey,
		)
	}

	k := replayKey{actor: c.caller(), key: key}
	request := sha256.Sum256(
		[]byte(c.r.Method + " " + c.r.URL.RequestURI() + "\n" + string(c.body)),
	)

	stored, full := c.s.replays.claim(k, request)
	switch {
	case full:
		return problem(api.Unavailable, http.StatusServiceUnavailable,
			"too many calls with an Idempotency-Key are in flight")
	case stored == nil: // the first call
		c.w.body = new(bytes.Buffer)
		defer func() {
			status := c.w.status
			if status == 0 { // a panic
				status = http.StatusInternalServerError
			}

			c.s.replays.storeAnswer(k, status, c.w.Header(), c.w.body.Bytes())
		}()

		if err := matched.answer(c); err != nil {
			c.answerProblem(err)
		}

		return nil
	case stored.request != request:
		return problem(
			api.KeyReused,
			http.StatusUnprocessableEntity,
			"use a new key for a new request",
		)
	case !stored.done:
		return problem(api.InProgress, http.StatusConflict,
			"the first call with this Idempotency-Key has not been answered yet")
	}

	c.entry.Replay = true

	for _, name := range []string{"Content-Type", "Location"} {
		if value := stored.header.Get(name); value != "" {
			c.w.Header().Set(name, value)
		}
	}

	c.w.WriteHeader(stored.status)
	_, err := c.w.Write(stored.body)

	return c.logClientGone(err)
}

// logChange writes to the audit log that a change is about to be made. It returns a problem if it
// cannot log the change, or if the caller makes changes too fast: this limits the caller's lines in
// the log as well.
func (c *call) logChange() error {
	if wait, ok := c.s.changes.takeToken(c.caller()); !ok {
		return c.refuseForNow(wait, "too many changes")
	}

	e := c.entry
	e.Phase = "begin"

	if err := c.s.audit.write(e, true); err != nil {
		_ = level.Error(c.s.logger).Log(
			"msg", "cannot write the audit log; refusing changes",
			"err", err,
		)

		return problem(api.ReadOnly, http.StatusServiceUnavailable,
			"the audit log cannot be written: %s; nothing was changed", systemReason(err))
	}

	c.begun = true

	return nil
}

// systemReason returns the operating system's description of an error. It names a path of the node
// only if an operator has to correct its rights.
func systemReason(err error) string {
	if errors.Is(err, privatedir.ErrUnsafe) {
		return err.Error()
	}

	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}

	return "it failed"
}

// logAnswer writes to the audit log how the call was answered. It only counts reads that were not
// refused. A change always gets a line. Callers can make any number of other calls: for each caller
// and status, limits.linesBurst and linesPerSecond limit the lines, and the next line says how many
// calls it stands for.
func (c *call) logAnswer(start time.Time) {
	e := c.entry
	if status := c.w.status; e.Verb == verbRead && status != http.StatusForbidden &&
		status != http.StatusTooManyRequests {
		if c.s.o.Observer != nil {
			c.s.o.Observer.Read()
		}

		return
	}

	if !c.begun {
		caller := "from " + e.From
		if c.identity.name != "" {
			caller = c.caller()
		}

		var ok bool
		if e.Calls, ok = c.s.lines.takeLogLine(fmt.Sprintf("%d %s", c.w.status, caller)); !ok {
			return
		}
	}

	e.Phase = "end"
	e.Time = c.s.o.Now()
	e.Status = c.w.status
	e.Seconds = e.Time.Sub(start).Seconds()

	if err := c.s.audit.write(e, false); err != nil {
		_ = level.Error(c.s.logger).Log(
			"msg", "cannot write the audit log",
			"actor", e.Actor,
			"request", e.Request,
			"err", err,
		)
	}
}

// answerProblem answers with a problem, unless the answer has begun.
func (c *call) answerProblem(err error) {
	p, internal := asProblem(err)
	if internal {
		_ = level.Error(c.s.logger).Log(
			"msg", "request to partition control failed",
			"actor", c.identity.name,
			"request", c.entry.Request,
			"err", err,
		)
	}

	c.entry.Problem = p.Type
	if c.w.status == 0 {
		writeProblem(c.w, p)
	}
}

// answerPanic answers a call that has panicked with a problem.
func (c *call) answerPanic(broken any) {
	_ = level.Error(c.s.logger).Log(
		"msg", "request to partition control panicked",
		"request", c.entry.Request,
		"err", fmt.Sprint(broken),
		"stack", string(debug.Stack()),
	)
	answered := c.w.status != 0
	c.answerProblem(problem(api.Internal, http.StatusInternalServerError,
		"the log of mig-exporter on the node has the cause"))

	if answered {
		panic(http.ErrAbortHandler) // the client must not take a partial answer for a complete one
	}
}

// respond answers with a document.
func (c *call) respond(status int, document any) error {
	body, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}

	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(status)
	_, err = c.w.Write(append(body, '\n'))

	return c.logClientGone(err)
}

// logClientGone logs, at level debug, that the answer could not be written. It always returns nil:
// the call counts as answered.
func (c *call) logClientGone(err error) error {
	if err != nil {
		_ = level.Debug(c.s.logger).Log(
			"msg", "client did not read the response",
			"request", c.entry.Request,
			"err", err,
		)
	}

	return nil
}

// actor returns the caller for the backend.
func (c *call) actor() control.Actor {
	return control.Actor{
		Name:       c.identity.name,
		Credential: c.identity.credential,
		Reason:     string(c.entry.StatedReason),
		Rights:     c.identity.rights,
	}
}

// awaitTurn blocks until the plan may be computed. It returns an error after limits.planWait, or if
// ctx ends.
func (c *call) awaitTurn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.s.limits.planWait)
	defer cancel()

	if c.turn.waitTurn(ctx) != nil {
		c.w.Header().Set("Retry-After", "5")

		return problem(api.Unavailable, http.StatusServiceUnavailable,
			"plans of other callers are being computed; try again in 5 s")
	}

	return nil
}

// readContext returns the context for a backend call that changes nothing. It ends when the client
// disconnects.
func (c *call) readContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.r.Context(), c.s.limits.call)
}

// changeContext returns the context for a backend call that changes something. It does not end when
// the client disconnects, so that a change is either accepted or refused.
func (c *call) changeContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.r.Context()), c.s.limits.call)
}
