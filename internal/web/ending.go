package web

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// endings makes the second part of answers: the families that belong to no Snapshot, and what ends an exposition. It is
// gathered anew unless that was done within keep, so that scrapers at the same moment share it: to gather the process'
// own metrics is a dozen system calls.
type endings struct {
	fresh  prometheus.Gatherer
	keep   time.Duration
	pool   *buffers
	report func(error)

	mu   sync.Mutex
	kept map[wire]*keptEnding
}

// keptEnding is the last ending of one form.
type keptEnding struct {
	mu   sync.Mutex // held while it is made: others of the form wait for it
	made time.Time  // zero: never
	// size and sum are those of the opening that it ends: under gzip both are in the trailer.
	size, sum uint32
	ending
}

// ending is the end of a body. Its bytes are shared: they must not be modified.
type ending struct {
	bytes []byte
	empty bool  // no families are in it
	err   error // why some or all are missing; it has been reported
}

// of gives an ending of the form for an opening.
func (e *endings) of(form wire, open opening) ending {
	e.mu.Lock()
	k := e.kept[form]
	if k == nil {
		k = new(keptEnding)
		e.kept[form] = k
	}
	e.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); k.made.IsZero() || now.Sub(k.made) >= e.keep || k.size != open.size || k.sum != open.sum {
		k.ending = e.encode(form, open)
		k.made, k.size, k.sum = now, open.size, open.sum
	}
	return k.ending
}

func (e *endings) encode(form wire, open opening) ending {
	families, err := e.fresh.Gather()
	if err != nil {
		err = fmt.Errorf("gather: %w", err)
	}
	plain := e.pool.get()
	defer e.pool.put(plain)
	err = errors.Join(err, encodeFamilies(plain, form.format, families))
	empty := plain.Len() == 0
	err = errors.Join(err, finish(plain, form.format))
	if err != nil {
		e.report(err)
	}
	text := plain.Bytes()
	if form.coding == codingGzip {
		packed := e.pool.get()
		defer e.pool.put(packed)
		e.pool.closeGzip(packed, open, text)
		text = packed.Bytes()
	}
	return ending{bytes: bytes.Clone(text), empty: empty, err: err} // the buffers go back
}
