package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// streams counts the open event streams, and bounds them in total and for each actor.
type streams struct {
	total, perActor int
	closing         chan struct{} // closed when the server shuts down

	mu     sync.Mutex
	closed bool
	open   map[string]int // number of open streams by actor
	all    sync.WaitGroup // of open streams
}

func newStreams(total, perActor int) *streams {
	return &streams{
		total:    total,
		perActor: perActor,
		closing:  make(chan struct{}),
		open:     make(map[string]int),
	}
}

// tryOpen counts one more stream and reports true, or false if there are too many. After true, call
// closeOne.
func (s *streams) tryOpen(actor string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	opened := 0
	for _, n := range s.open {
		opened += n
	}

	if s.closed || opened >= s.total || s.open[actor] >= s.perActor {
		return false
	}

	s.open[actor]++
	s.all.Add(1)

	return true
}

func (s *streams) closeOne(actor string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.open[actor]--; s.open[actor] == 0 {
		delete(s.open, actor)
	}

	s.all.Done()
}

// close ends all streams; no further one can be opened.
func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.closed {
		s.closed = true
		close(s.closing)
	}
}

func (s *streams) waitAll() { s.all.Wait() }

// streamEvents streams the events of an operation until it ends. A client that reconnects with
// Last-Event-ID misses none.
func (c *call) streamEvents() error {
	id := c.pathID(&c.entry.Op)
	after := 0

	if last := c.r.Header.Get("Last-Event-ID"); last != "" {
		n, err := strconv.Atoi(last)
		if err != nil || n < 0 {
			return problem(
				api.Malformed,
				http.StatusBadRequest,
				"Last-Event-ID: expected the id of an event, a whole number",
			)
		}

		after = n
	}

	if !c.s.streams.tryOpen(c.identity.name) {
		return c.refuseForNow(5, "too many streams of events are open")
	}

	defer c.s.streams.closeOne(c.identity.name)
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()

	events, err := c.s.backend.Events(ctx, id, after)
	if err != nil {
		return err
	}

	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.Header().Set("X-Accel-Buffering", "no") // proxies must not buffer it
	c.w.WriteHeader(http.StatusOK)

	if c.r.Method == http.MethodHead {
		return nil
	}

	return c.logClientGone(c.writeEvents(events))
}

// writeEvents writes until the events end, the client does not read them in time, or the server
// shuts down.
func (c *call) writeEvents(events <-chan api.Event) error {
	heartbeat := time.NewTicker(c.s.limits.heartbeat)
	defer heartbeat.Stop()

	if err := c.writeEvent(": events of an operation\n\n"); err != nil {
		return err
	}

	for {
		text := ": still here\n\n"

		select {
		case <-c.s.streams.closing:
			return nil
		case <-c.r.Context().Done():
			return nil
		case <-heartbeat.C:
		case event, ok := <-events:
			if !ok {
				return nil
			}

			data, err := json.Marshal(event)
			if err != nil {
				return err
			}

			text = fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", event.Seq, event.Kind, data)
		}

		if err := c.writeEvent(text); err != nil {
			return err
		}
	}
}

// writeEvent writes text within its own deadline: the server's write timeout is for whole answers.
func (c *call) writeEvent(text string) error {
	connection := http.NewResponseController(c.w)
	if err := connection.SetWriteDeadline(time.Now().Add(c.s.limits.eventWrite)); err != nil {
		return err
	}

	if _, err := c.w.Write([]byte(text)); err != nil {
		return err
	}

	return connection.Flush()
}
