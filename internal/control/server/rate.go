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
	untold int // refusals that nobody was told of
	told   time.Time
}

// tellEvery is how often refusals of one key are told of.
const tellEvery = time.Minute

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

// refused counts a refusal, and returns how many there were if it is time to tell, else 0.
func (b *buckets) refused(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.filled(key)
	current.untold++
	count := 0
	if current.told.IsZero() || current.at.Sub(current.told) >= tellEvery {
		count, current.untold, current.told = current.untold, 0, current.at
	}
	b.put(key, current)
	return count
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
