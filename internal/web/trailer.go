package web

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// trailerCache encodes the second part of answers: the fresh families, which belong to no Snapshot, and
// the end marker of the format. Scrapers of the same exposition share a trailer for a while, since it
// takes a dozen system calls to gather the metrics of the process.
type trailerCache struct {
	fresh  prometheus.Gatherer
	keep   time.Duration // for how long scrapers share a trailer
	pool   *buffers
	report func(error)

	mu     sync.Mutex
	cached map[trailerForm]*cachedTrailer
}

// trailerForm is one form of a trailer.
type trailerForm struct {
	outputForm
	bare bool // without the fresh families
}

// cachedTrailer is the last trailer of one form.
type cachedTrailer struct {
	mu      sync.Mutex // held during encoding: other scrapes of the form wait
	encoded time.Time  // zero: never
	// after is the exposition that the trailer follows. A new exposition gets a new trailer, so
	// that both are of one moment.
	after *exposition
	bodyTrailer
}

// bodyTrailer is the end of a body. Its bytes are shared and must not be modified.
type bodyTrailer struct {
	text   []byte
	packed []byte // with gzip: the text in its own deflate blocks
	empty  bool   // it has no families
	err    error  // why some or all families are missing; it was reported
}

// get returns the trailer that follows an exposition; after is nil if there is none. A bare trailer
// has no families.
func (c *trailerCache) get(form outputForm, after *exposition, bare bool) bodyTrailer {
	key := trailerForm{form, bare}

	c.mu.Lock()

	cached := c.cached[key]
	if cached == nil {
		cached = new(cachedTrailer)
		c.cached[key] = cached
	}

	c.mu.Unlock()

	// Encoding may take long: it blocks only scrapes that want the same form.
	cached.mu.Lock()
	defer cached.mu.Unlock()

	if now := time.Now(); cached.encoded.IsZero() || cached.after != after ||
		now.Sub(cached.encoded) >= c.keep {
		cached.bodyTrailer = c.encode(key)
		cached.encoded = now
		cached.after = after
	}

	return cached.bodyTrailer
}

func (c *trailerCache) encode(form trailerForm) bodyTrailer {
	plain := c.pool.get()
	defer c.pool.put(plain)

	var err error
	if !form.bare {
		err = c.appendFamilies(plain, form.outputForm)
	}

	empty := plain.Len() == 0

	err = errors.Join(err, appendEndMarker(plain, form.format))
	if err != nil {
		c.report(err)
	}

	trailer := bodyTrailer{
		text:  bytes.Clone(plain.Bytes()), // the buffer is reused
		empty: empty,
		err:   err,
	}
	if form.coding == codingGzip && len(trailer.text) > 0 {
		packed := c.pool.get()
		defer c.pool.put(packed)
		c.pool.deflate(packed, trailer.text)
		trailer.packed = bytes.Clone(packed.Bytes())
	}

	return trailer
}

// appendFamilies appends the fresh families.
func (c *trailerCache) appendFamilies(dst *bytes.Buffer, form outputForm) error {
	families, err := c.fresh.Gather()
	if err != nil {
		err = fmt.Errorf("gather: %w", err)
	}

	return errors.Join(err, encodeFamilies(dst, form, families))
}
