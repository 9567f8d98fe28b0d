package server

import (
	"math"
	"sync"
	"time"
)

// bucketsKept is the maximum number of keys that have a bucket.
const bucketsKept = 4096

// buckets are token buckets by key. Each holds burst tokens at most and gains rate tokens a second.
type buckets struct {
	rate, burst float64
	now         func() time.Time
	mu          sync.Mutex
	byKey       map[string]bucket
}

type bucket struct {
	left   float64
	at     time.Time
	missed int // calls of takeLogLine since its last successful one
}

func newBuckets(rate, burst float64, now func() time.Time) *buckets {
	return &buckets{rate: rate, burst: burst, now: now, byKey: make(map[string]bucket)}
}

// takeToken takes a token of the key. If there is none, wait is the number of whole seconds until
// there is one.
func (b *buckets) takeToken(key string) (wait int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	current := b.refill(key)
	if current.left < 1 {
		return b.secondsUntil(current), false
	}

	current.left--
	b.storeBucket(key, current)

	return 0, true
}

// returnToken returns a token that takeToken has taken.
func (b *buckets) returnToken(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()

	current := b.refill(key)
	current.left = min(b.burst, current.left+1)
	b.storeBucket(key, current)
}

// takeLogLine takes a token of the key and reports whether there was one. calls is the number of
// calls of takeLogLine since the last successful one, this one included; 0 if this is the only one.
func (b *buckets) takeLogLine(key string) (calls int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	current := b.refill(key)
	defer func() { b.storeBucket(key, current) }()

	if current.left < 1 {
		current.missed++
		return 0, false
	}

	current.left--
	if current.missed > 0 {
		calls = current.missed + 1
		current.missed = 0
	}

	return calls, true
}

func (b *buckets) secondsUntil(current bucket) int {
	return max(1, int(math.Ceil((1-current.left)/b.rate)))
}

// refill returns the bucket of a key with the tokens that it has gained until now.
func (b *buckets) refill(key string) bucket {
	now := b.now()

	current, ok := b.byKey[key]
	if !ok {
		return bucket{left: b.burst, at: now}
	}

	current.left = min(b.burst, current.left+max(0, now.Sub(current.at).Seconds())*b.rate)
	current.at = now

	return current
}

// storeBucket stores a bucket. If there are too many, it drops those that are full again, and then
// any until a quarter of the places is free, so that a flood of new keys does not scan all buckets
// for each key.
func (b *buckets) storeBucket(key string, current bucket) {
	if _, ok := b.byKey[key]; !ok && len(b.byKey) >= bucketsKept {
		for other := range b.byKey {
			if b.refill(other).left >= b.burst {
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

	b.byKey[key] = current
}
