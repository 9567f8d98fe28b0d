package web

import (
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// perSnapshot keeps what is made of the last Snapshot, so that it is made once and shared by all readers. What was
// made of an older one is dropped with the first request after; those who still write it keep it alive meanwhile.
type perSnapshot[T any] struct {
	snaps Snapshots
	make  func(*gpu.Snapshot) T // must be cheap: it runs under the lock. Dear work belongs in T, done lazily

	mu   sync.Mutex
	snap *gpu.Snapshot
	made T
}

// current gives what belongs to the current Snapshot; false before the first.
func (p *perSnapshot[T]) current() (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Asked under the lock, so that a slow reader with an older Snapshot in hand never displaces a newer one.
	snap := p.snaps.Current()
	if snap != p.snap {
		p.snap = snap
		p.made = *new(T)
		if snap != nil {
			p.made = p.make(snap)
		}
	}
	return p.made, snap != nil
}
