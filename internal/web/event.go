package web

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// event is one server-sent event, encoded when it is first sent. Its bytes are shared and must not
// be modified.
type event struct {
	// number counts the Snapshots that the source has shown. Two events of the same Snapshot have the
	// same number: a watcher needs only one of them.
	number uint64
	text   func() []byte
	packed func() []byte // the text in deflate blocks that refer to nothing before them
}

// newEvent returns an event whose text encode returns. encode is called at most once.
func newEvent(pool *buffers, encode func() []byte) *event {
	text := sync.OnceValue(encode)

	return &event{text: text, packed: sync.OnceValue(func() []byte {
		buf := pool.get()
		defer pool.put(buf)
		pool.deflate(buf, text())

		return bytes.Clone(buf.Bytes())
	})}
}

// eventSource makes the events of one view.
type eventSource struct {
	snaps Publisher
	// encode appends the view of a Snapshot to dst.
	encode         func(dst *bytes.Buffer, s *gpu.Snapshot) error
	pool           *buffers
	logger         log.Logger
	every          time.Duration // the least time between two events
	heartbeatAfter time.Duration // the time without an event after which a heartbeat is sent
	// staleAfter is the age from which on the text of an event is out of date, such as "read 2 s ago".
	// A watcher that connects later gets the event encoded anew. 0 is never.
	staleAfter time.Duration

	opening, heartbeat, ending *event

	mu      sync.Mutex
	snap    *gpu.Snapshot // the Snapshot that last shows
	shown   time.Time     // when the first event of snap was created
	last    *event        // nil before the first event
	created time.Time     // when last was created: later than shown if the event was encoded anew
	number  uint64        // the number of last
}

func newEventSource(snaps Publisher, encode func(*bytes.Buffer, *gpu.Snapshot) error, pool *buffers,
	logger log.Logger) *eventSource {
	fixed := func(text string) *event { return newEvent(pool, func() []byte { return []byte(text) }) }

	return &eventSource{
		snaps:          snaps,
		encode:         encode,
		pool:           pool,
		logger:         logger,
		every:          eventEvery,
		heartbeatAfter: heartbeatEvery,
		opening:        fixed("retry: 3000\n\n"), // browsers connect again after three seconds
		heartbeat:      fixed(": no new reading\n\n"),
		ending:         fixed("event: end\ndata: the exporter stops\n\n"),
	}
}

// await blocks until there is an event of a later Snapshot than the one that after shows, and returns
// it. It returns nil when ctx ends, or when it is time for a heartbeat.
func (s *eventSource) await(ctx context.Context, after *event) *event {
	ctx, cancel := context.WithTimeout(ctx, s.heartbeatAfter)
	defer cancel()

	for {
		next, changed, pause := s.nextEvent(after)
		if next != nil {
			return next
		}

		var oldEnough <-chan time.Time
		if changed == nil { // there is a new Snapshot, but the last event is too young to be replaced
			oldEnough = time.After(pause)
		}

		select {
		case <-changed:
		case <-oldEnough:
		case <-ctx.Done():
			return nil
		}
	}
}

// nextEvent returns an event of a later Snapshot than the one that after shows; after is nil for a new
// watcher. If there is none yet, it says what to wait for: if changed is set, until that is closed,
// and otherwise for pause, until the last event is old enough to be replaced.
func (s *eventSource) nextEvent(after *event) (next *event, changed <-chan struct{}, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()

	snap := s.snaps.Current()
	pause = s.every - time.Since(s.shown)

	// Show the new Snapshot, unless its predecessor was shown a moment ago.
	if snap != s.snap && (s.last == nil || pause <= 0) {
		s.snap = snap
		s.shown = time.Now()
		s.number++
		s.renew(snap)
	}

	// The other watchers got the event when it was new.
	if after == nil && s.last != nil && s.staleAfter > 0 && time.Since(s.created) > s.staleAfter {
		s.renew(s.snap)
	}

	switch {
	case s.last != nil && (after == nil || s.last.number != after.number):
		return s.last, nil, 0
	case snap != s.snap:
		return nil, nil, pause
	default:
		return nil, s.snaps.Next(snap), 0
	}
}

// renew makes a new event of the Snapshot that the source shows.
func (s *eventSource) renew(snap *gpu.Snapshot) {
	s.last = newEvent(s.pool, func() []byte { return s.encodeEvent(snap) })
	s.last.number = s.number
	s.created = time.Now()
}

// forget drops the last event, which keeps its Snapshot in memory. A watcher that has connected
// meanwhile gets another event of the same Snapshot.
func (s *eventSource) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.snap = nil
	s.last = nil
}

// encodeEvent returns the text of the event of a Snapshot.
func (s *eventSource) encodeEvent(snap *gpu.Snapshot) []byte {
	data := s.pool.get()
	defer s.pool.put(data)

	if err := s.encode(data, snap); err != nil {
		_ = level.Error(s.logger).Log("msg", "cannot encode an event of the node's stream", "err", err)
		return []byte(": this reading could not be encoded\n\n")
	}

	text := fmt.Appendf(nil, "id: %d\nevent: node\n", snap.Generation)
	for line := range bytes.Lines(normalizeLineEnds(data.Bytes())) {
		text = append(text, "data: "...)
		text = append(text, bytes.TrimSuffix(line, []byte("\n"))...)
		text = append(text, '\n')
	}

	return append(text, '\n')
}

// normalizeLineEnds replaces carriage returns, which a name may have: they end lines of events and
// of HTML, too.
func normalizeLineEnds(text []byte) []byte {
	if !bytes.ContainsRune(text, '\r') {
		return text
	}

	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))

	return bytes.ReplaceAll(text, []byte("\r"), []byte("\n"))
}
