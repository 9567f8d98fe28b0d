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

// streamNode passes the node's document to handle with each reading, until the stream ends, and
// returns why.
func (c *client) streamNode(ctx context.Context, handle func(data []byte) error) error {
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()

	// A peer that is gone without a word sends nothing any more, heartbeats included.
	quiet := time.AfterFunc(c.timeout, cancel)
	defer quiet.Stop()

	accept := func(h http.Header) { h.Set("Accept", "text/event-stream, application/problem+json") }

	res, err := c.sendRequest(streaming, http.MethodGet, "/node/stream", nil, accept)
	if err != nil {
		return c.whyStreamEnded(ctx, err)
	}
	defer res.Body.Close()

	err = readEvents(&livelyReader{res.Body, quiet}, func(name string, data []byte) error {
		if name == "end" {
			return errStreamEnded
		}

		return handle(data)
	})

	return c.whyStreamEnded(ctx, err)
}

// whyStreamEnded returns why a stream ended, for the operator.
func (c *client) whyStreamEnded(ctx context.Context, err error) error {
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

// livelyReader puts a timer off with each read.
type livelyReader struct {
	io.Reader
	quiet *time.Timer
}

func (r *livelyReader) Read(b []byte) (int, error) {
	r.quiet.Reset(streamQuiet)
	return r.Reader.Read(b)
}
