package server

import (
	"crypto/sha256"
	"net/http"
	"sync"
	"time"
)

const (
	replayTTL   = time.Hour // how long we keep an answer
	replaysKept = 1024      // how many answers we keep at most
	replayBytes = 16 << 20  // of the bodies of all answers
	maxKey      = 255       // bytes of a key
)

// replays keeps answers by caller and Idempotency-Key. It keeps them in memory only: plans do not
// outlive the process either, and one plan cannot start two operations, since the first makes its
// hash invalid. It is safe for concurrent use.
type replays struct {
	now   func() time.Time
	mu    sync.Mutex
	byKey map[replayKey]*replay
	order []replayKey // of byKey, the oldest first
	bytes int         // of the bodies of all answers
}

type replayKey struct{ actor, key string }

// replay is a request with an Idempotency-Key and, once it is done, its answer.
type replay struct {
	request [sha256.Size]byte // hash of the request
	done    bool
	until   time.Time // when we drop it
	status  int
	header  http.Header
	body    []byte
}

func newReplays(now func() time.Time) *replays {
	return &replays{now: now, byKey: make(map[replayKey]*replay)}
}

// claim returns the replay of a key, done or not. It returns nil if the key is new; the caller then
// owns the key and must call storeAnswer. full is set if there is no place for another key.
func (r *replays) claim(k replayKey, request [sha256.Size]byte) (stored *replay, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.dropExpired()

	if stored = r.byKey[k]; stored != nil {
		copied := *stored
		return &copied, false
	}

	if len(r.byKey) >= replaysKept && !r.evictOldest() {
		return nil, true
	}

	r.byKey[k] = &replay{request: request}
	r.order = append(r.order, k)

	return nil, false
}

// storeAnswer keeps the answer for a claimed key. Failures of the server and temporary refusals are
// not kept: the client may repeat the call.
func (r *replays) storeAnswer(k replayKey, status int, header http.Header, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if status == 0 || status == http.StatusTooManyRequests ||
		status >= http.StatusInternalServerError ||
		len(body) > replayBytes {
		r.drop(k)
		return
	}

	answer := r.byKey[k]
	answer.done = true
	answer.until = r.now().Add(replayTTL)
	answer.status = status
	answer.header = header.Clone()
	answer.body = body

	r.bytes += len(body)
	for r.bytes > replayBytes && r.evictOldest() {
	}
}

func (r *replays) dropExpired() {
	now := r.now()
	for _, k := range append([]replayKey(nil), r.order...) {
		if answer := r.byKey[k]; answer.done && !now.Before(answer.until) {
			r.drop(k)
		}
	}
}

// evictOldest drops the oldest answer. It reports false if there is none, since all calls are in
// flight.
func (r *replays) evictOldest() bool {
	for _, k := range r.order {
		if r.byKey[k].done {
			r.drop(k)
			return true
		}
	}

	return false
}

func (r *replays) drop(k replayKey) {
	r.bytes -= len(r.byKey[k].body)
	delete(r.byKey, k)

	for i, other := range r.order {
		if other == k {
			r.order = append(r.order[:i], r.order[i+1:]...)
			return
		}
	}
}
