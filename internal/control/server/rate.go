package server

import (
	"math"
	"sync"
	"time"
)

// bucketsKept bounds the keys that are counted.
const bucketsKept = 4096

// buckets are token buckets by key: burst at once, then rate in a second.
type buckets struct {
	rate, burst float64
	now         func() time.Time
	mu          sync.Mutex
	byKey       map[string]bucket
}

type bucket struct {
	left   float64
	at     time.Time
	missed int // calls of line that found none since the last one that did
}

func newBuckets(rate, burst float64, now func() time.Time) *buckets {
	return &buckets{rate: rate, burst: burst, now: now, byKey: make(map[string]bucket)}
}

// take takes one for the key, or tells in how many whole seconds there is one.
func (b *buckets) take(key string) (wait int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.filled(key)
	if current.left < 1 {
		return b.wait(current), false
	}
	current.left--
	b.put(key, current)
	return 0, true
}

// give returns what take has taken.
func (b *buckets) give(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.filled(key)
	current.left = min(b.burst, current.left+1)
	b.put(key, current)
}

// line takes one for the key and returns 0, or the number of calls of line since the last one that took, if there were others.
// ok is false if there is none to take.
func (b *buckets) line(key string) (calls int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.filled(key)
	defer func() { b.put(key, current) }()
	if current.left < 1 {
		current.missed++
		return 0, false
	}
	current.left--
	if current.missed > 0 {
		calls, current.missed = current.missed+1, 0
	}
	return calls, true
}

func (b *buckets) wait(current bucket) int {
	return max(1, int(math.Ceil((1-current.left)/b.rate)))
}

func (b *buckets) filled(key string) bucket {
	now := b.now()
	current, ok := b.byKey[key]
	if !ok {
		return bucket{left: b.burst, at: now}
	}
	current.left = min(b.burst, current.left+max(0, now.Sub(current.at).Seconds())*b.rate)
	current.at = now
	return current
}

// put keeps a bucket. Where there are too many, those that are full again go, and then whichever: the bound holds.
func (b *buckets) put(key string, current bucket) {
	if _, ok := b.byKey[key]; !ok && len(b.byKey) >= bucketsKept {
		for other := range b.byKey {
			if b.filled(other).left >= b.burst {
				delete(b.byKey, other)
			}
		}
		for other := range b.byKey {
			if len(b.byKey) < bucketsKept {
				break
			}
			delete(b.byKey, other)
		}
	}
	b.byKey[key] = current
}
