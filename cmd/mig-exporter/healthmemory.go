package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/store"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
)

// healthFile is the name of the file that keeps in a state folder what the health of the GPUs rests
// on and no driver reports again.
const healthFile = "health.json"

const (
	// saveHealthEvery is how often the file is written while nothing but readings changes.
	saveHealthEvery = 10 * time.Minute
	// saveHealthWithin bounds the last write, when the program stops.
	saveHealthWithin = 2 * time.Second
)

// healthDocument is the content of the file.
type healthDocument struct {
	Boot string `json:"boot"` // a reboot resets all GPUs
	health.Memory
}

// healthMemory keeps the memory of the health in a file.
type healthMemory struct {
	tracker *health.Tracker
	path    string
	boot    string
	now     func() time.Time
	logger  log.Logger
	due     chan struct{} // has a value when the memory is to be written

	// Owned by the poll loop.
	last   health.Memory
	lastAt time.Time
}

// stateDir is the folder that outlives the process: that of partition control, else that of
// right-sizing; empty if there is none.
func (c *Config) stateDir() string {
	if c.Control.Enabled {
		return c.Control.StateDir
	}

	return c.Advise.StateDir
}

// openHealthMemory takes up what an earlier process in this boot has seen, and keeps what this one
// sees.
func (x *exporter) openHealthMemory(dir string) {
	if dir == "" {
		return
	}

	boot, err := x.node.boot()
	if err != nil || boot == "" {
		level.Warn(x.logger).Log(
			"msg", "XIDs of before a restart will not be known: the boot of the node is not",
			"err", err,
		)

		return
	}

	h := &healthMemory{
		tracker: x.health,
		path:    filepath.Join(dir, healthFile),
		boot:    boot,
		now:     x.node.now,
		logger:  x.logger,
		due:     make(chan struct{}, 1),
	}

	h.recall()

	x.node.observers = append(x.node.observers, h.observe)
	x.node.parts = append(x.node.parts, h.run)
}

// recall reads the file. A file that cannot be read is no memory.
func (h *healthMemory) recall() {
	text, err := os.ReadFile(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}

	var d healthDocument
	if err == nil {
		err = json.Unmarshal(text, &d)
	}

	if err != nil {
		level.Warn(h.logger).Log(
			"msg", "cannot read what an earlier process has seen of the GPUs",
			"file", h.path,
			"err", err,
		)

		return
	}

	if d.Boot != h.boot { // all GPUs were reset since
		d.Memory = health.Memory{}
	}

	h.tracker.Recall(d.Memory)
	h.last = d.Memory
}

// observe has the memory written if it has changed.
func (h *healthMemory) observe(*gpu.Snapshot) {
	now := h.now()
	memory := h.tracker.Memory()
	age := now.Sub(h.lastAt)

	// An empty memory is one, too: it says that there is nothing to tell of this boot.
	isWritten := !h.lastAt.IsZero() && (len(memory.GPUs) == 0 || age >= 0 && age < saveHealthEvery)
	if isWritten && memory.IsSame(h.last) {
		return
	}

	h.last = memory
	h.lastAt = now

	select {
	case h.due <- struct{}{}:
	default: // it is due already
	}
}

// run writes the memory when it is due, and once more at the end if there is any. A disk that hangs
// holds up nothing but that.
func (h *healthMemory) run(ctx context.Context) error {
	for {
		select {
		case <-h.due:
			h.write(ctx)
		case <-ctx.Done():
			if len(h.tracker.Memory().GPUs) > 0 {
				h.write(ctx)
			}

			return nil
		}
	}
}

// write writes the memory, and returns a moment after ctx ends at the latest.
func (h *healthMemory) write(ctx context.Context) {
	written := make(chan error, 1)

	go func() {
		text, err := json.Marshal(healthDocument{Boot: h.boot, Memory: h.tracker.Memory()})
		if err == nil {
			err = store.WriteFile(h.path, text)
		}

		written <- err
	}()

	abandoned := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(saveHealthWithin, func() { close(abandoned) })
	})()

	select {
	case err := <-written:
		if err != nil {
			level.Error(h.logger).Log(
				"msg", "cannot keep what was seen of the GPUs; a restart would forget their XIDs",
				"file", h.path,
				"err", err,
			)
		}
	case <-abandoned:
	}
}
