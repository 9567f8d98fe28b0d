package migctl

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// streamEvents reads an operation's server-sent events, beginning after the event with the number
// after. It returns the number of the last event, and nil if the server ended the stream.
func (c *client) streamEvents(
	ctx context.Context,
	id string,
	after int,
	handle func(api.Event),
) (int, error) {
	res, err := c.sendRequest(
		ctx,
		http.MethodGet,
		operationPath(id)+"/events",
		nil,
		func(h http.Header) {
			h.Set("Accept", "text/event-stream")

			if after > 0 {
				h.Set("Last-Event-ID", strconv.Itoa(after))
			}
		},
	)
	if err != nil {
		return after, err
	}
	defer res.Body.Close()

	err = readEvents(res.Body, func(_ string, data []byte) error {
		var e api.Event
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("event after %d: %w", after, err)
		}

		if e.Seq > after { // the server may send an event twice
			after = e.Seq
			handle(e)
		}

		return nil
	})
	if err != nil {
		return after, c.connectionError(ctx, err)
	}

	return after, nil
}

func operationPath(id string) string { return "/operations/" + url.PathEscape(id) }

// readEvents reads a stream of server-sent events, and calls handle with the name and the data of each.
// As the standard says, it does not handle an event that the end of the stream cuts off.
func readEvents(r io.Reader, handle func(name string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxAnswer)
	var name string
	var data []byte

	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 {
			if len(data) > 0 {
				if err := handle(name, data); err != nil {
					return err
				}
			}

			name = ""
			data = nil

			continue
		}

		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))

		switch string(field) {
		case "event":
			name = string(value)
		case "data":
			if data != nil {
				data = append(data, '\n')
			}

			data = append(data, value...)
		}
	}

	if err := lines.Err(); err != nil {
		return err
	}

	if data != nil {
		return errors.New("the stream of events broke off")
	}

	return nil
}
