package migctl

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

const (
	// maxPause bounds the time between two attempts to follow a stream that broke.
	maxPause = 10 * time.Second
	// pollEvery is the time between two readings of a node that refuses its stream.
	pollEvery = 5 * time.Second
	// historyEvery is the time between two readings of the last 15 minutes.
	historyEvery = 15 * time.Second
)

// feed follows one node and sends what it learns as messages.
type feed struct {
	client     *client
	node       int           // index of the node in topState.nodes
	raw        bool          // send documents as the server wrote them, and no history
	firstPause time.Duration // how long to wait before the first attempt after a stream that ended
}

// run follows the node until ctx ends.
func (f *feed) run(ctx context.Context, messages chan<- topMessage) {
	if !f.raw {
		go f.followHistory(ctx, messages)
	}

	var backoff retry.Backoff

	for {
		received, err := f.followStream(ctx, messages)

		// An exporter that refuses its stream, since too many are open, still has its document.
		polled := !received && isRefusal(err) && f.poll(ctx, messages)
		if received || polled {
			backoff = retry.Backoff{}
		}

		first := f.firstPause
		if polled {
			first = max(first, pollEvery)
		}

		now := time.Now()
		backoff.Postpone(now, first, maxPause)
		f.send(ctx, messages, troubleMessage{
			node:   f.node,
			at:     now,
			text:   troubleText(err),
			polled: polled,

			retryAfter: backoff.Next.Sub(now),
		})

		if retry.Sleep(ctx, time.Until(backoff.Next)) != nil {
			return
		}
	}
}

// troubleText says why no reading comes. It leaves out the node's address, which is shown beside it.
func troubleText(err error) string {
	var silent *unreachable
	if errors.As(err, &silent) {
		err = silent.err
	}

	return err.Error()
}

// isRefusal reports whether the exporter answered, but with an error instead of a stream.
func isRefusal(err error) bool {
	var problem *api.Problem
	return errors.As(err, &problem) || errors.Is(err, errNotExporter)
}

func (f *feed) send(ctx context.Context, messages chan<- topMessage, m topMessage) {
	select {
	case <-ctx.Done():
	case messages <- m:
	}
}

// poll asks once for the document and reports whether it came.
func (f *feed) poll(ctx context.Context, messages chan<- topMessage) bool {
	data, err := f.client.getDocument(ctx, "/node")

	return err == nil && f.sendReading(ctx, messages, data) == nil
}

// sendReading sends a document of the node, decoded unless the feed is raw.
func (f *feed) sendReading(ctx context.Context, messages chan<- topMessage, data []byte) error {
	if err := f.client.checkDocument(data); err != nil {
		return err
	}

	if f.raw {
		f.send(ctx, messages, rawMessage{data})
		return nil
	}

	var doc nodedoc.Document
	if err := f.client.decodeAnswer(data, &doc); err != nil {
		return err
	}

	f.send(ctx, messages, readingMessage{node: f.node, at: time.Now(), doc: doc})

	return nil
}

// followStream sends the readings of the node's stream until it ends. received is true if there were
// any; the error says why the stream ended.
func (f *feed) followStream(
	ctx context.Context,
	messages chan<- topMessage,
) (received bool, err error) {
	err = f.client.streamNode(ctx, func(data []byte) error {
		received = true

		return f.sendReading(ctx, messages, data)
	})

	return received, err
}

// followHistory sends the last 15 minutes of the node every historyEvery, until ctx ends. It ignores
// errors: a node without history has no sparklines, and the stream reports a node that does not
// answer.
func (f *feed) followHistory(ctx context.Context, messages chan<- topMessage) {
	for {
		data, err := f.client.getDocument(ctx, "/node/history")

		var past history.Document
		if err == nil && json.Unmarshal(data, &past) == nil {
			f.send(ctx, messages, historyMessage{node: f.node, past: &past})
		}

		if retry.Sleep(ctx, historyEvery) != nil {
			return
		}
	}
}
