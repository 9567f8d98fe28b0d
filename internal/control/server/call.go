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
)

// call is one request on its way.
type call struct {
	s        *server
	w        *recorder
	r        *http.Request
	identity identity
	body     []byte
	turn     *planTicket // of a call for a plan
	entry    auditEntry
	// begun is set once the audit log has the line before a change.
	begun bool
}

// recorder records the status of an answer, and its body if the call has an Idempotency-Key.
type recorder struct {
	http.ResponseWriter
	status int
	keep   *bytes.Buffer
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.keep != nil {
		w.keep.Write(b)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// handler returns the handler of a listener whose callers a authenticates.
func (s *server) handler(a authenticator) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := s.o.Now()
		c := &call{s: s, w: &recorder{ResponseWriter: w}, r: r}
		c.entry = auditEntry{Time: begun, From: a.from(r), Request: "unknown path"}
		c.w.Header().Set("Cache-Control", "no-store")
		c.w.Header().Set("X-Content-Type-Options", "nosniff")
		defer c.end(begun)
		defer func() {
			if broken := recover(); broken != nil {
				c.answerPanic(broken)
			}
		}()
		if err := c.handle(a); err != nil {
			c.answerProblem(err)
		}
	})
}

// handle checks the call and passes it to its route.
func (c *call) handle(a authenticator) error {
	if err := c.admit(a); err != nil {
		return err
	}
	to, err := c.s.findRoute(c.r)
	if err != nil {
		return c.notFound(err)
	}
	c.entry.Request = to.method + " " + to.pattern
	c.entry.Verb, c.entry.Device = to.verb, short(c.r.PathValue("uuid"))
	if err := c.need(to.verb); err != nil {
		return err
	}
	limit := c.s.limits.bodyBytes
	if to.verb == verbPlan {
		// Joining comes before reading the body: it bounds how many bodies of one caller are in memory.
		if c.turn = c.s.plans.enqueue(c.caller()); c.turn == nil {
			return c.tooMany(1, "Too many of your plans are waiting.")
		}
		defer c.turn.release()
		limit = c.s.limits.planBytes
	}
	switch {
	case to.method != http.MethodGet:
		if err := c.readBody(limit, to.noBody); err != nil {
			return err
		}
	case c.r.ContentLength != 0:
		// One that never comes would be waited for without a deadline, and with it the connection.
		c.hangUp()
		return problem(api.Malformed, http.StatusBadRequest, "Expected no body.")
	}
	// The deadline was for the request. It would end the call's context, and streams are longer than it.
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{}) // not every ResponseWriter of a test has one
	if key := c.r.Header.Get("Idempotency-Key"); key != "" && to.method != http.MethodGet {
		return c.answerOnce(key, to)
	}
	return to.do(c)
}

// caller is the name under which a caller's calls are counted together.
func (c *call) caller() string { return c.identity.method + " " + c.identity.name }

func (c *call) need(v verb) error {
	if !*rightOf(&c.identity.rights, v) {
		return problem(api.Forbidden, http.StatusForbidden, "%s does not have the right %q.", c.identity.name, v)
	}
	return nil
}

// needFor checks the rights beyond that of the route: to destroy busy instances by name, and to change GPUs that another
// owner manages.
func (c *call) needFor(force []string, takeOver bool) error {
	if len(force) > 0 {
		if err := c.need(verbForce); err != nil {
			return err
		}
	}
	if c.entry.TakeOver = takeOver; takeOver {
		return c.need(verbTakeOver)
	}
	return nil
}

// answerOnce answers a call with an Idempotency-Key: if the key was used before, with the stored answer.
func (c *call) answerOnce(key string, to *route) error {
	if len(key) > maxKey || len(c.r.Header.Values("Idempotency-Key")) > 1 {
		return problem(api.Malformed, http.StatusBadRequest, "Idempotency-Key: expected one of at most %d characters.", maxKey)
	}
	k := replayKey{actor: c.caller(), key: key}
	request := sha256.Sum256([]byte(c.r.Method + " " + c.r.URL.RequestURI() + "\n" + string(c.body)))
	stands, full := c.s.replays.claim(k, request)
	switch {
	case full:
		return problem(api.Unavailable, http.StatusServiceUnavailable, "Too many calls with an Idempotency-Key are in flight.")
	case stands == nil:
		c.w.keep = new(bytes.Buffer)
		defer func() {
			status := c.w.status
			if status == 0 { // a panic
				status = http.StatusInternalServerError
			}
			c.s.replays.storeAnswer(k, status, c.w.Header(), c.w.keep.Bytes())
		}()
		if err := to.do(c); err != nil {
			c.answerProblem(err)
		}
		return nil
	case stands.request != request:
		return problem(api.KeyReused, http.StatusUnprocessableEntity, "Use a new key for a new request.")
	case !stands.done:
		return problem(api.InProgress, http.StatusConflict, "The first call with this Idempotency-Key has not been answered yet.")
	}
	c.entry.Replay = true
	for _, name := range []string{"Content-Type", "Location"} {
		if value := stands.header.Get(name); value != "" {
			c.w.Header().Set(name, value)
		}
	}
	c.w.WriteHeader(stands.status)
	_, err := c.w.Write(stands.body)
	return c.logClientGone(err)
}

// begin writes to the audit log that a change is about to be made. A change that cannot be logged is refused.
func (c *call) begin() error {
	e := c.entry
	e.Phase = "begin"
	if err := c.s.audit.write(e, true); err != nil {
		_ = level.Error(c.s.logger).Log("msg", "The audit log cannot be written: changes are refused", "err", err)
		return problem(api.ReadOnly, http.StatusServiceUnavailable, "The audit log cannot be written: %s. Nothing was changed.", systemReason(err))
	}
	c.begun = true
	return nil
}

// systemReason is what the system says of an error, without a path of the node.
func systemReason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "it failed"
}

// end writes to the audit log how the call was answered. Reads that were not refused are counted instead. A change always has its line.
// Other calls can be made without end, so each caller has a bounded number of lines for each status (limits.linesBurst and
// linesPerSecond), and the next line says how many calls it stands for.
func (c *call) end(begun time.Time) {
	e := c.entry
	if status := c.w.status; e.Verb == verbRead && status != http.StatusForbidden && status != http.StatusTooManyRequests {
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
	e.Phase, e.Time = "end", c.s.o.Now()
	e.Status, e.Seconds = c.w.status, e.Time.Sub(begun).Seconds()
	if err := c.s.audit.write(e, false); err != nil {
		_ = level.Error(c.s.logger).Log("msg", "The audit log cannot be written", "actor", e.Actor, "request", e.Request, "err", err)
	}
}

// answerProblem answers with a problem, unless the answer has begun.
func (c *call) answerProblem(err error) {
	p, internal := asProblem(err)
	if internal {
		_ = level.Error(c.s.logger).Log("msg", "Call of partition control failed", "actor", c.identity.name, "request", c.entry.Request, "err", err)
	}
	c.entry.Problem = p.Type
	if c.w.status == 0 {
		writeProblem(c.w, p)
	}
}

// answerPanic answers a call that has panicked with a problem.
func (c *call) answerPanic(broken any) {
	_ = level.Error(c.s.logger).Log("msg", "Call of partition control panicked", "request", c.entry.Request,
		"err", fmt.Sprint(broken), "stack", string(debug.Stack()))
	answered := c.w.status != 0
	c.answerProblem(problem(api.Internal, http.StatusInternalServerError, "The log of mig-exporter on the node has the cause."))
	if answered {
		panic(http.ErrAbortHandler) // the client must not take half an answer for a whole one
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

// logClientGone logs, at level debug, that a client did not read its answer. It returns nil, as a route does that has answered.
func (c *call) logClientGone(err error) error {
	if err != nil {
		_ = level.Debug(c.s.logger).Log("msg", "Answer was not taken", "request", c.entry.Request, "err", err)
	}
	return nil
}

func (c *call) actor() control.Actor {
	return control.Actor{Name: c.identity.name, Rights: c.identity.rights}
}

// awaitTurn blocks until the plan may be computed. ctx is the caller's.
func (c *call) awaitTurn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.s.limits.planWait)
	defer cancel()
	if c.turn.waitTurn(ctx) != nil {
		c.w.Header().Set("Retry-After", "5")
		return problem(api.Unavailable, http.StatusServiceUnavailable, "Plans of other callers are being computed. Try again in 5 s.")
	}
	return nil
}

// reading bounds a call of the engine that changes nothing; it ends with the client.
func (c *call) reading() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.r.Context(), c.s.limits.call)
}

// changing bounds one that does: a client that goes away must not leave open whether it was accepted.
func (c *call) changing() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.r.Context()), c.s.limits.call)
}
