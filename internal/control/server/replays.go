package server

import (
	"crypto/sha256"
	"net/http"
	"sync"
	"time"
)

// How many answers are kept, of how many bytes in all, and for how long; and the maximum length of
// a key.
const (
	replayTTL   = time.Hour
	replaysKept = 1024
	replayBytes = 16 << 20
	maxKey      = 255
)

// replays keeps answers by actor and Idempotency-Key, in memory: plans do not outlive the process
// either, and one plan cannot start two operations, since the first makes its hash invalid. It is
// safe for concurrent use.
type replays struct {
	now   func() time.Time
	mu    sync.Mutex
	byKey map[replayKey]*replay
	order []replayKey // the oldest first
	bytes int
}

type replayKey struct{ actor, key string }

type replay struct {
	request [sha256.Size]byte
	done    bool
	until   time.Time
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

	one := r.byKey[k]
	one.done = true
	one.until = r.now().Add(replayTTL)
	one.status = status
	one.header = header.Clone()
	one.body = body

	r.bytes += len(body)
	for r.bytes > replayBytes && r.evictOldest() {
	}
}

func (r *replays) dropExpired() {
	now := r.now()
	for _, k := range append([]replayKey(nil), r.order...) {
		if one := r.byKey[k]; one.done && !now.Before(one.until) {
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
