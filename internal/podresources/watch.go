package podresources

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync/atomic"

	"github.com/fsnotify/fsnotify"
	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// socketWatch notices that a new socket has replaced the old one, as when a kubelet starts. The
// system may have no watch left: busy nodes often reach the kernel's limit on inotify instances.
// Then we reconnect only after the backoff.
type socketWatch struct {
	socket        string // absolute
	dir           string
	logger        log.Logger
	watcher       *fsnotify.Watcher // nil if the system has none left
	watching      atomic.Bool       // watcher watches dir
	socketCreated atomic.Bool       // a socket may have been created since resetSocketCreated
	warned        bool              // a failure to watch was logged
	done          chan struct{}     // closed when the goroutine has ended
}

func newSocketWatch(socket string, logger log.Logger) *socketWatch {
	w := &socketWatch{
		socket: socket,
		dir:    filepath.Dir(socket),
		logger: logger,
		done:   make(chan struct{}),
	}

	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.warnOnce(err)
		close(w.done)

		return w
	}

	w.watcher = notify
	go w.handleEvents()

	return w
}

// startWatching watches the directory if it exists and is not watched yet. It is not safe for
// concurrent use.
func (w *socketWatch) startWatching() {
	if w.watcher == nil || w.watching.Load() {
		return
	}

	// We set this before Add: the goroutine may see at once that the directory was removed.
	w.watching.Store(true)

	if err := w.watcher.Add(w.dir); err != nil {
		w.watching.Store(false)

		if !errors.Is(err, fs.ErrNotExist) {
			w.warnOnce(err)
		}

		return
	}

	w.socketCreated.Store(true) // a socket may have been created before Add
}

// resetSocketCreated reports whether a new socket may have been created since the last call.
func (w *socketWatch) resetSocketCreated() bool { return w.socketCreated.Swap(false) }

func (w *socketWatch) close() {
	if w.watcher != nil {
		// The only error is that it is closed already.
		_ = w.watcher.Close()
	}

	<-w.done
}

func (w *socketWatch) handleEvents() {
	defer close(w.done)

	for {
		select {
		case event, ok := <-w.watcher.Events:
			if !ok {
				return
			}

			w.handleEvent(event)
		case err, ok := <-w.watcher.Errors:
			if !ok {
				return
			}

			// Events were lost, perhaps that of a new socket.
			level.Debug(w.logger).Log(
				"msg", "cannot watch the kubelet's socket",
				"dir", w.dir,
				"err", err,
			)
			w.socketCreated.Store(true)
		}
	}
}

func (w *socketWatch) handleEvent(event fsnotify.Event) {
	switch {
	case event.Name == w.socket && event.Has(fsnotify.Create):
		w.socketCreated.Store(true)
	case event.Name == w.dir && (event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename)):
		// The watch ended with the directory; the only error is that it does not exist.
		_ = w.watcher.Remove(w.dir)
		w.watching.Store(false)
	}
}

func (w *socketWatch) warnOnce(err error) {
	if w.warned {
		return
	}

	w.warned = true
	level.Warn(w.logger).Log(
		"msg", "cannot watch the kubelet's socket; a restarted kubelet is found more slowly",
		"dir", w.dir,
		"err", err,
	)
}
