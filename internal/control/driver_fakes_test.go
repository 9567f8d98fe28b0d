package control

import (
	"context"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// hang waits until a call for a silent GPU is given up, and returns its error.
func (w *world) hang(ctx context.Context, only ...gpu.UUID) map[gpu.UUID]error {
	w.mu.Lock()
	id := w.silent
	known := w.silent != "" && w.hung == w.silent
	w.mu.Unlock()

	if id == "" || len(only) > 0 && !slices.Contains(only, id) {
		return nil
	}

	if !known { // else it is refused at once
		<-ctx.Done()
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.hung = id

	return map[gpu.UUID]error{id: gpu.ErrTimeout}
}

// answer ends the hang of a GPU.
func (w *world) answer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = ""
	w.hung = ""
	w.look()
}

func (w *world) Hung(id gpu.UUID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	return id == w.hung
}

func (w *world) WatchLayouts(watcher mig.LayoutWatcher) {
	w.watcher = watcher
	for _, g := range w.gpus {
		watcher.Watching(g.UUID, !w.blind)
	}
}

// report has the driver report a change of a GPU's layout.
func (w *world) report(id gpu.UUID) {
	if w.watcher != nil && !w.blind {
		w.watcher.LayoutChanged(id)
	}
}

// outcome reads a GPU.
func (w *world) outcome(id gpu.UUID, err error) (mig.Outcome, error) {
	if w.reading != nil {
		if failed := w.reading(); failed != nil {
			return mig.Outcome{}, failed
		}
	}

	return mig.Outcome{Instances: copyInstances(w.gpu(id).Instances), Read: true}, err
}
