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

// streams are the streams of events that are open, bounded altogether and for each actor.
type streams struct {
	most, mostOfOne int
	closing         chan struct{} // closed when the server shuts down

	mu     sync.Mutex
	closed bool
	open   map[string]int // by actor
	all    sync.WaitGroup
}

func newStreams(most, mostOfOne int) *streams {
	return &streams{most: most, mostOfOne: mostOfOne, closing: make(chan struct{}), open: make(map[string]int)}
}

func (s *streams) tryOpen(actor string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := 0
	for _, n := range s.open {
		total += n
	}
	if s.closed || total >= s.most || s.open[actor] >= s.mostOfOne {
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

// close ends all streams, and lets none begin any more.
func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
}

func (s *streams) waitAll() { s.all.Wait() }

// events streams what happens in an operation, to its end. A client that comes back with Last-Event-ID misses nothing.
func (c *call) events() error {
	id := c.id(&c.entry.Op)
	after := 0
	if last := c.r.Header.Get("Last-Event-ID"); last != "" {
		n, err := strconv.Atoi(last)
		if err != nil || n < 0 {
			return problem(api.Malformed, http.StatusBadRequest, "Last-Event-ID: expected the id of an event, a whole number.")
		}
		after = n
	}
	if !c.s.streams.tryOpen(c.identity.name) {
		return c.tooMany(5, "Too many streams of events are open.")
	}
	defer c.s.streams.closeOne(c.identity.name)
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	events, err := c.s.engine.Events(ctx, id, after)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.Header().Set("X-Accel-Buffering", "no") // proxies must not hold it back
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method == http.MethodHead {
		return nil
	}
	return c.logClientGone(c.stream(events))
}

// stream writes until there are no more events, the client does not take them in time, or the server shuts down.
func (c *call) stream(events <-chan api.Event) error {
	heartbeat := time.NewTicker(c.s.limits.heartbeat)
	defer heartbeat.Stop()
	if err := c.send(": events of an operation\n\n"); err != nil {
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
		if err := c.send(text); err != nil {
			return err
		}
	}
}

// send writes within a deadline of its own; the server's is for whole answers.
func (c *call) send(text string) error {
	connection := http.NewResponseController(c.w)
	if err := connection.SetWriteDeadline(time.Now().Add(c.s.limits.eventWrite)); err != nil {
		return err
	}
	if _, err := c.w.Write([]byte(text)); err != nil {
		return err
	}
	return connection.Flush()
}
