package server

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// admitCaller authenticates the caller and enforces the limits on its calls and connections.
func (c *call) admitCaller(a authenticator) error {
	id, err := c.authenticate(a)

	var limited *api.Problem
	switch {
	case errors.As(err, &limited):
		c.closeConnection()
		return err
	case errors.Is(err, errCannotCheck):
		_ = level.Warn(c.s.logger).Log(
			"msg", "cannot check credentials",
			"from", c.entry.From,
			"err", err,
		)

		return uncheckedProblem(err)
	case err != nil:
		c.closeConnection()
		c.w.Header().Set("WWW-Authenticate", `Bearer realm="mig-exporter"`)

		return problem(api.Unauthenticated, http.StatusUnauthorized,
			"expected a client certificate or a bearer token that is known")
	}

	c.identity = id

	c.entry.Actor = id.name
	c.entry.Method = id.method
	c.entry.Credential = id.credential

	if id.from != "" {
		c.entry.From = id.from
	}

	if id.hasNoRights() {
		c.closeConnection()
	} else if conn, ok := c.r.Context().Value(connKey{}).(*pooledConn); ok && !conn.assignTo(c.caller()) {
		c.closeConnection()
		return c.refuseForNow(1, "too many of your connections are open")
	}

	if err := new(http.CrossOriginProtection).Check(c.r); err != nil {
		return problem(
			api.Forbidden,
			http.StatusForbidden,
			"pages of other origins may not call this",
		)
	}

	if wait, ok := c.s.actors.takeToken(c.caller()); !ok {
		return c.refuseForNow(wait, "too many calls")
	}

	return nil
}

// uncheckedProblem returns the problem document for an error that keeps us from checking credentials.
func uncheckedProblem(err error) *api.Problem {
	why := " now; try again"

	var refused interface{ Refusal() string }
	var unusable *configError

	switch {
	case errors.As(err, &refused):
		why = ": the cluster refuses to review them: " + refused.Refusal()
	case errors.As(err, &unusable):
		why = ": " + unusable.publicText()
	}

	return problem(
		api.Unavailable,
		http.StatusServiceUnavailable,
		"%s%s",
		api.CredentialsUnchecked,
		why,
	)
}

// authenticate returns the caller's identity. First it checks the credentials that it can check
// without asking another program. It does not limit calls with valid ones by address, which many
// callers may share. Every other call takes a token from its address's bucket. If the API server has
// to review a bearer token, the call does so before we ask it.
//
// This is hard on bearer tokens that were not reviewed yet: while a client sends a flood of wrong
// ones, a valid new one from the same address competes with them for one review in two seconds. It
// is not locked out for good: a successful review returns what it took from the bucket, we then
// remember the token for an hour (see reviewedTokens), and at the latest two seconds after the
// flood there is a review for it.
func (c *call) authenticate(a authenticator) (identity, error) {
	id, err := a.identifyCaller(c.r)
	if err == nil && !id.hasNoRights() {
		return id, nil
	}

	unreviewed := errors.Is(err, errUnreviewed)
	token := id.token
	remote := c.entry.From

	trusted := unreviewed && c.s.reviewed.contains(token)
	if !trusted {
		if wait, ok := c.s.fails.takeToken(remote); !ok {
			return identity{}, c.refuseForNow(wait, "too many failed authentications from there")
		}
	}

	if !unreviewed {
		return id, err
	}

	id, err = a.review(c.r.Context(), token)
	switch {
	case err == nil && !id.hasNoRights():
		c.s.reviewed.add(token)

		if !trusted {
			c.s.fails.returnToken(remote)
		}
	case !errors.Is(err, errCannotCheck):
		c.s.reviewed.remove(token)
	}

	return id, err
}

// hasNoRights reports whether the caller is known but has no rights. In a cluster every pod has a
// token that the API server accepts; without rights it gets no more resources than a caller without
// credentials. This is not for callers on the unix socket: its mode keeps others out.
func (i identity) hasNoRights() bool { return i.method != "peer" && i.rights == (control.Rights{}) }

// closeConnection makes the server close the connection after the answer, so that known callers can
// have it.
func (c *call) closeConnection() { c.w.Header().Set("Connection", "close") }

// refuseForNow refuses a call that the client may repeat after wait seconds.
func (c *call) refuseForNow(wait int, why string) error {
	c.w.Header().Set("Retry-After", strconv.Itoa(wait))
	return problem(api.RateLimited, http.StatusTooManyRequests, "%s; try again in %d s", why, wait)
}

const (
	reviewedTTL = time.Hour // how long we remember a token
	maxReviewed = 1024      // how many tokens we remember
)

// reviewedTokens remembers tokens whose owners had rights when the API server reviewed them. Calls
// with such a token still need a review, but are not limited by address. It has only the tokens'
// hashes. It is safe for concurrent use.
type reviewedTokens struct {
	now   func() time.Time
	mu    sync.Mutex
	until map[[sha256.Size]byte]time.Time
}

func newReviewedTokens(now func() time.Time) *reviewedTokens {
	return &reviewedTokens{now: now, until: make(map[[sha256.Size]byte]time.Time)}
}

func (t *reviewedTokens) contains(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.now().Before(t.until[sha256.Sum256([]byte(token))])
}

func (t *reviewedTokens) add(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	now := t.now()
	t.until[sha256.Sum256([]byte(token))] = now.Add(reviewedTTL)

	// If there are too many, we forget expired tokens first, then any.
	for _, expiredOnly := range []bool{true, false} {
		for sum, until := range t.until {
			if len(t.until) <= maxReviewed {
				return
			}

			if !expiredOnly || !now.Before(until) {
				delete(t.until, sum)
			}
		}
	}
}

func (t *reviewedTokens) remove(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	delete(t.until, sha256.Sum256([]byte(token)))
}
