package web

import (
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// snapshotCache keeps the value that belongs to the last Snapshot, so that it is created once and
// shared by all readers. The value of an older Snapshot is dropped with the first request after it;
// requests that still use it keep it alive until they end.
type snapshotCache[T any] struct {
	snaps  Snapshots
	create func(*gpu.Snapshot) T // must be cheap, since it is called with mu held: T does expensive work lazily

	mu    sync.Mutex
	snap  *gpu.Snapshot
	value T
}

// currentValue returns the value of the current Snapshot, and false before the first one.
func (c *snapshotCache[T]) currentValue() (T, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	// Read with mu held, so that a slow reader with an older Snapshot never replaces a newer one.
	snap := c.snaps.Current()
	if snap != c.snap {
		c.snap = snap
		c.value = *new(T)

		if snap != nil {
			c.value = c.create(snap)
		}
	}

	return c.value, snap != nil
}
