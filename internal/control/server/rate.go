package server

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// bucketsKept is the maximum number of keys that have a bucket.
const bucketsKept = 4096

// buckets are token buckets by key, such as a caller's name. Each holds burst tokens at most and
// gains perSecond tokens a second.
type buckets struct {
	perSecond rate.Limit
	burst     int
	now       func() time.Time
	mu        sync.Mutex
	byKey     map[string]*bucket
}

type bucket struct {
	*rate.Limiter
	missed int // calls of takeLogLine since its last successful one
}

func newBuckets(perSecond rate.Limit, burst int, now func() time.Time) *buckets {
	return &buckets{perSecond: perSecond, burst: burst, now: now, byKey: make(map[string]*bucket)}
}

// takeToken takes a token of the key. If there is none, wait is the number of whole seconds until
// there is one.
func (b *buckets) takeToken(key string) (wait int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.now()

	current := b.bucketOf(key)
	if current.AllowN(now, 1) {
		return 0, true
	}

	missing := 1 - current.TokensAt(now)

	return max(1, int(math.Ceil(missing/float64(b.perSecond)))), false
}

// returnToken returns a token that takeToken has taken.
func (b *buckets) returnToken(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.bucketOf(key).AllowN(b.now(), -1) // the Limiter still keeps no more than burst
}

// takeLogLine takes a token of the key and reports whether there was one. calls is the number of
// calls of takeLogLine since the last successful one, this one included; 0 if this is the only one.
func (b *buckets) takeLogLine(key string) (calls int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	current := b.bucketOf(key)
	if !current.AllowN(b.now(), 1) {
		current.missed++
		return 0, false
	}

	if current.missed > 0 {
		calls = current.missed + 1
		current.missed = 0
	}

	return calls, true
}

// bucketOf returns the bucket of a key. To make room for a new key, it drops the buckets that are
// full again, and then any others until a quarter of the places is free, so that a flood of new keys
// does not scan all buckets for each key. b.mu is held.
func (b *buckets) bucketOf(key string) *bucket {
	if current, ok := b.byKey[key]; ok {
		return current
	}

	if len(b.byKey) >= bucketsKept {
		for other, bucket := range b.byKey {
			if bucket.TokensAt(b.now()) >= float64(b.burst) {
				delete(b.byKey, other)
			}
		}

		for other := range b.byKey {
			if len(b.byKey) <= bucketsKept*3/4 {
				break
			}

			delete(b.byKey, other)
		}
	}

	current := &bucket{Limiter: rate.NewLimiter(b.perSecond, b.burst)}
	b.byKey[key] = current

	return current
}
