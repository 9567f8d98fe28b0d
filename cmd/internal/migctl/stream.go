package migctl

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// streamQuiet is how long a stream may send nothing. The exporter sends a comment every 15 seconds.
const streamQuiet = 45 * time.Second

// errStreamEnded is the error of a stream that the exporter ended.
var errStreamEnded = errors.New("the exporter has ended the stream")

// streamNode passes the node's document to handle after each reading of the node, until the stream
// ends. Its error says why it ended.
func (c *client) streamNode(ctx context.Context, handle func(data []byte) error) error {
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()

	// An exporter whose host is gone sends nothing, and closes no connection.
	quietTimer := time.AfterFunc(c.timeout, cancel)
	defer quietTimer.Stop()

	accept := func(h http.Header) { h.Set("Accept", "text/event-stream, application/problem+json") }

	res, err := c.sendRequest(streaming, http.MethodGet, "/node/stream", nil, accept)
	if err != nil {
		return c.explainStreamEnd(ctx, err)
	}
	defer res.Body.Close()

	err = readEvents(&timedReader{res.Body, quietTimer}, func(name string, data []byte) error {
		if name == "end" {
			return errStreamEnded
		}

		return handle(data)
	})

	return c.explainStreamEnd(ctx, err)
}

// explainStreamEnd returns the error that says to the operator why a stream ended. err is nil if the
// exporter closed the stream; it is context.Canceled, without the end of ctx, after the timer.
func (c *client) explainStreamEnd(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return &unreachable{c.address, errStreamEnded}
	case errors.Is(err, context.Canceled) && ctx.Err() == nil:
		return &unreachable{c.address, os.ErrDeadlineExceeded}
	case errors.Is(err, errStreamEnded):
		return &unreachable{c.address, err}
	}

	var problem *api.Problem
	var silent *unreachable

	if errors.As(err, &problem) || errors.As(err, &silent) {
		return err
	}

	return c.connectionError(ctx, err)
}

// timedReader restarts a timer with each read, so that the timer fires after a read that waits for
// streamQuiet.
type timedReader struct {
	io.Reader
	quietTimer *time.Timer
}

func (r *timedReader) Read(b []byte) (int, error) {
	r.quietTimer.Reset(streamQuiet)
	return r.Reader.Read(b)
}
