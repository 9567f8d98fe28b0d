package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

const (
	// cacheTTL is how long we rely on a review of a token and its rights. A right that is withdrawn
	// counts for so long.
	cacheTTL      = 10 * time.Second
	maxCached     = 1000     // tokens in the cache
	maxToken      = 16 << 10 // bytes of a token
	maxCredential = 256      // bytes of a token's id, JTI=<uuid>
	// maxReviews is how many tokens we review at once, with seven requests each: a caller with many
	// tokens must not flood the API server through this program.
	maxReviews = 8
)

// The group and the resource on which rights are given.
const (
	rightsGroup    = "mig-exporter.io"
	rightsResource = "partitions"
)

// tokenHash identifies a token in the cache, which must not have the token itself.
type tokenHash [sha256.Size]byte

type cachedActor struct {
	actor control.Actor
	until time.Time
}

// user is the owner of a token, as a TokenReview returns it and a SubjectAccessReview takes it.
type user struct {
	Name   string              `json:"username"`
	UID    string              `json:"uid"`
	Groups []string            `json:"groups"`
	Extra  map[string][]string `json:"extra"`
}

// credentialKey is the key of the token's id in a user's extra values.
const credentialKey = "authentication.kubernetes.io/credential-id"

// credential returns the id of the token, under which it is in the API server's audit log; empty if
// there is none.
func (u *user) credential() string {
	ids := u.Extra[credentialKey]
	if len(ids) != 1 || len(ids[0]) > maxCredential {
		return ""
	}

	return ids[0]
}

// Actor returns the owner of a token and its rights on this node: it makes a TokenReview, and a
// SubjectAccessReview for each verb. It caches the result for cacheTTL.
//
// The error wraps gpu.ErrNoPermission if the token is invalid or not for this program, and
// gpu.ErrUnavailable if the API server does not answer or does not let this program review tokens.
// In the last case it contains a *kubeapi.RefusedError, which names the missing right. The error
// contains no part of the token. That a user has no rights is no error.
func (c *Cluster) Actor(ctx context.Context, token string) (control.Actor, error) {
	if token == "" || len(token) > maxToken {
		return control.Actor{}, fmt.Errorf("token review: not a token: %w", gpu.ErrNoPermission)
	}

	hash := tokenHash(sha256.Sum256([]byte(token)))
	if actor, ok := c.recall(hash); ok {
		return actor, nil
	}

	select {
	case c.reviews <- struct{}{}:
		defer func() { <-c.reviews }()
	case <-ctx.Done():
		return control.Actor{}, fmt.Errorf(
			"token review: too many at once: %w: %w",
			gpu.ErrUnavailable,
			gpu.ErrTimeout,
		)
	}

	if actor, ok := c.recall(hash); ok { // another call has reviewed it meanwhile
		return actor, nil
	}

	u, err := c.reviewToken(ctx, token)
	if err != nil {
		return control.Actor{}, fmt.Errorf("token review: %w", err)
	}

	rights, err := c.reviewRights(ctx, u)
	if err != nil {
		return control.Actor{}, fmt.Errorf("rights of %s: %w", u.Name, err)
	}

	actor := control.Actor{
		Name:       actorName(u.Name),
		Credential: u.credential(),
		Rights:     rights,
	}
	c.remember(hash, actor)

	return actor, nil
}

// actorName returns the name of a user for the audit log: "serviceaccount:NAMESPACE/NAME", or
// "user:NAME".
func actorName(name string) string {
	if account, ok := strings.CutPrefix(name, "system:serviceaccount:"); ok {
		return "serviceaccount:" + strings.Replace(account, ":", "/", 1)
	}

	return "user:" + name
}

// Known returns the actor of a token that Actor has reviewed within cacheTTL. It does not ask the
// API server.
func (c *Cluster) Known(token string) (control.Actor, bool) {
	return c.recall(sha256.Sum256([]byte(token)))
}

func (c *Cluster) recall(hash tokenHash) (control.Actor, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	known, ok := c.known[hash]

	return known.actor, ok && c.opts.Now().Before(known.until)
}

func (c *Cluster) remember(hash tokenHash, actor control.Actor) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if len(c.known) >= maxCached { // all of them are reviewed again
		clear(c.known)
	}

	c.known[hash] = cachedActor{actor, c.opts.Now().Add(cacheTTL)}
}

// tokenReview is authentication.k8s.io/v1's TokenReview.
type tokenReview struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Spec       tokenReviewSpec `json:"spec"`
	Status     struct {
		Authenticated bool     `json:"authenticated"`
		User          user     `json:"user"`
		Audiences     []string `json:"audiences"`
		Error         string   `json:"error"`
	} `json:"status,omitzero"`
}

type tokenReviewSpec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences,omitempty"`
}

func (c *Cluster) reviewToken(ctx context.Context, token string) (user, error) {
	audiences := c.opts.Audiences
	if own := nodeAudience(c.opts.Node); claimsAudience(token, own) {
		audiences = []string{own}
	}

	review := tokenReview{
		APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview",
		Spec: tokenReviewSpec{Token: token, Audiences: audiences},
	}
	var answer tokenReview
	err := c.request(
		ctx,
		kubeapi.Request{
			Method: http.MethodPost,
			Path:   "/apis/authentication.k8s.io/v1/tokenreviews",
			Body:   review,
		},
		&answer,
	)

	status := &answer.Status
	switch {
	case err != nil:
		return user{}, reviewError{err}
	case !status.Authenticated || status.User.Name == "":
		why := strings.ReplaceAll(status.Error, token, "...")
		if why == "" {
			why = "it belongs to no account"
		}

		return user{}, fmt.Errorf("the token is refused: %s: %w", why, gpu.ErrNoPermission)
	case !isForUs(audiences, status.Audiences):
		return user{}, fmt.Errorf("the token is for others: %w", gpu.ErrNoPermission)
	}

	return status.User, nil
}

// isForUs reports whether a token's audiences include one that we have asked for. If we have asked
// for none, the API server has checked that the token is for itself. An API server that does not
// support audiences returns none, so we accept no token from it that we have asked audiences for.
func isForUs(asked, ofToken []string) bool {
	return len(asked) == 0 ||
		slices.ContainsFunc(ofToken, func(a string) bool { return slices.Contains(asked, a) })
}

// nodeAudience is the audience of the tokens that kubectl mig asks for. An exporter accepts only its
// own node's, so that it cannot use a token that it receives at another node.
func nodeAudience(node string) string { return "mig-exporter/" + node }

// claimsAudience reports whether a token says that it is for an audience. It does not check the
// signature: we only choose the audience with which the API server then reviews the token.
func claimsAudience(token, audience string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}

	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}

	var claims struct {
		Audience json.RawMessage `json:"aud"` // a text, or a list of them
	}
	if json.Unmarshal(data, &claims) != nil {
		return false
	}

	var one string
	if json.Unmarshal(claims.Audience, &one) == nil {
		return one == audience
	}

	var several []string

	return json.Unmarshal(claims.Audience, &several) == nil && slices.Contains(several, audience)
}

// reviewError says that a review failed, not that the token is wrong. So errors.Is must find
// gpu.ErrUnavailable in it, and not the gpu.ErrNoPermission of a request that the API server refuses;
// errors.As still finds the *kubeapi.RefusedError.
type reviewError struct{ err error }

func (e reviewError) Error() string      { return e.err.Error() }
func (e reviewError) Unwrap() error      { return gpu.ErrUnavailable }
func (e reviewError) As(target any) bool { return errors.As(e.err, target) }

// accessReview is authorization.k8s.io/v1's SubjectAccessReview.
type accessReview struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Spec       accessReviewSpec `json:"spec"`
	Status     struct {
		Allowed bool `json:"allowed"`
		Denied  bool `json:"denied"`
	} `json:"status,omitzero"`
}

type accessReviewSpec struct {
	User     string              `json:"user"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
	Resource resourceAttributes  `json:"resourceAttributes"`
}

type resourceAttributes struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
	Name     string `json:"name"`
	Verb     string `json:"verb"`
}

// reviewRights returns the rights of a user. It makes the requests for all verbs concurrently.
func (c *Cluster) reviewRights(ctx context.Context, u user) (control.Rights, error) {
	var rights control.Rights
	verbs := []struct {
		verb  string
		right *bool
	}{
		{"get", &rights.Read},
		{"plan", &rights.Plan},
		{"apply", &rights.Apply},
		{"mode", &rights.Mode},
		{"force", &rights.Force},
		{"take-over", &rights.TakeOver},
		{"release", &rights.Release},
	}

	errs := make(chan error, len(verbs))
	for _, v := range verbs {
		go func() {
			allowed, err := c.isAllowed(ctx, u, v.verb)
			*v.right = allowed
			errs <- err
		}()
	}

	var failed error

	for range verbs {
		failed = cmp.Or(<-errs, failed)
	}

	if failed != nil {
		return control.Rights{}, failed
	}

	return rights, nil
}

func (c *Cluster) isAllowed(ctx context.Context, u user, verb string) (bool, error) {
	review := accessReview{
		APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview",
		Spec: accessReviewSpec{
			User:   u.Name,
			UID:    u.UID,
			Groups: u.Groups,
			Extra:  u.Extra,
			Resource: resourceAttributes{
				Group:    rightsGroup,
				Resource: rightsResource,
				Name:     c.opts.Node,
				Verb:     verb,
			},
		},
	}
	var answer accessReview

	err := c.request(ctx, kubeapi.Request{Method: http.MethodPost,
		Path: "/apis/authorization.k8s.io/v1/subjectaccessreviews", Body: review}, &answer)
	if err != nil {
		return false, reviewError{err}
	}

	return answer.Status.Allowed && !answer.Status.Denied, nil
}
