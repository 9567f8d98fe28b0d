package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"
)

// What a review is good for: how long it holds, how many are kept, how long one may take.
const (
	reviewTTL     = 10 * time.Second
	reviewsKept   = 1024
	reviewTimeout = 5 * time.Second
)

// reviews asks the API server about tokens, and remembers for a short while what it affirmed. What it denied, or could not
// say, is asked again.
type reviews struct {
	reviewer Reviewer
	now      func() time.Time
	mu       sync.Mutex
	known    map[[sha256.Size]byte]*review
}

// review is a token that the API server knows.
type review struct {
	user    string
	groups  []string
	until   time.Time
	allowed map[verb]time.Time // until when
}

func newReviews(reviewer Reviewer, now func() time.Time) *reviews {
	return &reviews{reviewer: reviewer, now: now, known: make(map[[sha256.Size]byte]*review)}
}

func (r *reviews) identify(ctx context.Context, token string) (identity, error) {
	if r.reviewer == nil {
		return identity{}, errors.Join(errCannotCheck, errors.New("no API server is known"))
	}
	known, err := r.review(ctx, token)
	if err != nil {
		return identity{}, err
	}
	return identity{
		name: known.user, method: "kube",
		allowed: func(ctx context.Context, v verb) (bool, error) { return r.ask(ctx, known, v) },
	}, nil
}

func (r *reviews) review(ctx context.Context, token string) (*review, error) {
	sum := sha256.Sum256([]byte(token))
	r.mu.Lock()
	known := r.known[sum]
	r.mu.Unlock()
	if known != nil && r.now().Before(known.until) {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	user, groups, authenticated, err := r.reviewer.Review(ctx, token)
	if err != nil {
		return nil, errors.Join(errCannotCheck, err)
	}
	if !authenticated || user == "" {
		return nil, errWrong
	}
	known = &review{user: user, groups: groups, until: r.now().Add(reviewTTL), allowed: make(map[verb]time.Time)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= reviewsKept {
		clear(r.known)
	}
	r.known[sum] = known
	return known, nil
}

func (r *reviews) ask(ctx context.Context, known *review, v verb) (bool, error) {
	r.mu.Lock()
	until := known.allowed[v]
	r.mu.Unlock()
	if r.now().Before(until) {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	ok, err := r.reviewer.Allowed(ctx, known.user, known.groups, string(v))
	if err != nil {
		return false, errors.Join(errCannotCheck, err)
	}
	if ok {
		r.mu.Lock()
		known.allowed[v] = r.now().Add(reviewTTL)
		r.mu.Unlock()
	}
	return ok, nil
}
