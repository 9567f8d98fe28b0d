package web

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// Publisher provides the last Snapshot, and signals when there is another.
type Publisher interface {
	Snapshots
	// Next returns a channel that is closed once Current returns another Snapshot than after.
	Next(after *gpu.Snapshot) <-chan struct{}
}

// Node serves the state of the node. All listeners share one, so that a Snapshot is encoded once
// and the limit of streams holds for all of them together.
type Node struct {
	State   http.Handler // the document of /api/v1/node
	Stream  http.Handler // the same for each Snapshot, as server-sent events
	History http.Handler // the readings of the last minutes
	Health  http.Handler // the health of the node and its GPUs

	report func() *health.Report
	past   *history.History
	snaps  Publisher
	stream *streamHandler
	pool   *buffers
	logger log.Logger
}

// NewNode returns the handlers. They don't authenticate. report returns how the node is now.
func NewNode(
	snaps Publisher, past *history.History, report func() *health.Report, logger log.Logger,
) *Node {
	pool := new(buffers)
	stream := newStreamHandler(newEventSource(snaps, appendDocument, pool, logger), logger)

	return &Node{
		State:   newStateHandler(snaps, pool, logger, func(s *gpu.Snapshot) any { return nodedoc.New(s) }),
		Stream:  stream,
		History: newStateHandler(snaps, pool, logger, func(*gpu.Snapshot) any { return past.Document() }),
		Health:  &reportHandler{report: report, pool: pool, logger: logger},
		report:  report,
		past:    past,
		snaps:   snaps,
		stream:  stream,
		pool:    pool,
		logger:  logger,
	}
}

// addPageView lets the stream serve the content of the page, too. It must be called before the first
// request.
func (n *Node) addPageView(page *pageHandler) {
	source := newEventSource(n.snaps, page.renderNode, n.pool, n.logger)
	source.staleAfter = pageStaleAfter // the page says how old readings are
	n.stream.views[viewPage] = source
}

// Close ends all streams. Streams that clients open later end at once.
func (n *Node) Close() { n.stream.close() }

func appendDocument(dst *bytes.Buffer, s *gpu.Snapshot) error {
	return json.NewEncoder(dst).Encode(nodedoc.New(s))
}
