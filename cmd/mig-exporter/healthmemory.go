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

// healthFile is the file in the state folder that keeps what health depends on over a restart of this
// program. The driver reports an XID, for example, only once.
const healthFile = "health.json"

const (
	// saveHealthEvery is how often we write the file if only the time of the last reading changes.
	saveHealthEvery = 10 * time.Minute
	// saveHealthWithin bounds the last write, when the program stops.
	saveHealthWithin = 2 * time.Second
)

// healthDocument is the content of the file.
type healthDocument struct {
	Boot string `json:"boot"` // we drop the memory of another boot, since a reboot resets all GPUs
	health.Memory
}

// healthMemory keeps the memory of the health tracker in a file.
type healthMemory struct {
	tracker *health.Tracker
	path    string
	boot    string
	now     func() time.Time
	logger  log.Logger
	due     chan struct{} // has a value when run is to write the memory

	// The poll loop owns these.
	last   health.Memory // the memory when it was last due
	lastAt time.Time     // when that was; zero before
}

// stateDir returns a folder that outlives the process: partition control's if it is on, or else
// right-sizing's. It is empty if there is none.
func (c *Config) stateDir() string {
	if c.Control.Enabled {
		return c.Control.StateDir
	}

	return c.Advise.StateDir
}

// openHealthMemory loads what an earlier process in this boot has seen of the GPUs, and keeps in dir
// what this one sees. Without dir it does nothing.
func (x *exporter) openHealthMemory(dir string) {
	if dir == "" {
		return
	}

	boot, err := x.node.boot()
	if err != nil || boot == "" {
		level.Warn(x.logger).Log(
			"msg", "a restart will forget the XIDs of the GPUs: cannot tell this boot of the node from others",
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

// recall loads the file. If it cannot be read, it only logs a warning.
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

	if d.Boot != h.boot {
		d.Memory = health.Memory{} // the node has booted since
	}

	h.tracker.Recall(d.Memory)
	h.last = d.Memory
}

// observe has run write the memory if it has changed, or if the file is old.
func (h *healthMemory) observe(*gpu.Snapshot) {
	now := h.now()
	memory := h.tracker.Memory()
	age := now.Sub(h.lastAt)

	// An empty memory says that no GPU had a problem in this boot: to write that once is enough. The
	// age is negative if the clock was set back.
	isFresh := !h.lastAt.IsZero() && (len(memory.GPUs) == 0 || age >= 0 && age < saveHealthEvery)
	if isFresh && memory.IsSame(h.last) {
		return
	}

	h.last = memory
	h.lastAt = now

	select {
	case h.due <- struct{}{}:
	default: // it is due already
	}
}

// run writes the memory when it is due, and once more at the end unless it is empty. A disk that hangs
// delays only run, and not the polls.
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

// write writes the memory. It returns at the latest saveHealthWithin after ctx ends, even if the disk
// hangs: the goroutine then ends with the program.
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
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(saveHealthWithin, func() { close(abandoned) })
	})
	defer stop()

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
