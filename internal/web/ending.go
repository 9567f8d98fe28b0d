package web

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// endings makes the second part of answers: the families that belong to no Snapshot, and what ends an exposition. It is
// gathered again unless that was done for the same exposition within keep, so that scrapers at the same moment share it: to gather the process'
// own metrics is a dozen system calls.
type endings struct {
	fresh  prometheus.Gatherer
	keep   time.Duration
	pool   *buffers
	report func(error)

	mu   sync.Mutex
	kept map[endingForm]*keptEnding
}

// endingForm names one form of an ending.
type endingForm struct {
	wire
	bare bool // without the families
}

// keptEnding is the last ending of one form.
type keptEnding struct {
	mu   sync.Mutex // held while it is made: others of the form wait for it
	made time.Time  // zero: never
	// after is the exposition that it ends: with a new one it is created again, so that both are of one moment.
	after *exposition
	ending
}

// ending is the end of a body. Its bytes are shared: they must not be modified.
type ending struct {
	text   []byte
	packed []byte // the text in deflate blocks of its own, under gzip
	empty  bool   // no families are in it
	err    error  // why some or all are missing; it has been reported
}

// of returns an ending of the form for an exposition, nil for none, bare or with the families.
func (e *endings) of(w wire, after *exposition, bare bool) ending {
	form := endingForm{w, bare}
	e.mu.Lock()
	k := e.kept[form]
	if k == nil {
		k = new(keptEnding)
		e.kept[form] = k
	}
	e.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); k.made.IsZero() || k.after != after || now.Sub(k.made) >= e.keep {
		k.ending, k.made, k.after = e.encode(form), now, after
	}
	return k.ending
}

func (e *endings) encode(form endingForm) ending {
	plain := e.pool.get()
	defer e.pool.put(plain)
	var err error
	if !form.bare {
		err = e.families(plain, form.format)
	}
	empty := plain.Len() == 0
	err = errors.Join(err, finish(plain, form.format))
	if err != nil {
		e.report(err)
	}
	end := ending{text: bytes.Clone(plain.Bytes()), empty: empty, err: err} // the buffers go back
	if form.coding == codingGzip && len(end.text) > 0 {
		packed := e.pool.get()
		defer e.pool.put(packed)
		e.pool.deflate(packed, end.text)
		end.packed = bytes.Clone(packed.Bytes())
	}
	return end
}

// families appends the families that belong to no Snapshot.
func (e *endings) families(dst *bytes.Buffer, format expfmt.Format) error {
	families, err := e.fresh.Gather()
	if err != nil {
		err = fmt.Errorf("gather: %w", err)
	}
	return errors.Join(err, encodeFamilies(dst, format, families))
}
