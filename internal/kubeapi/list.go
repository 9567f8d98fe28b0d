package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// List sends a request for a list and calls each with every item of the response. It decodes one
// item at a time, and only the fields that T has, so that a long list needs little memory. Before
// an error, it may have passed some items to each. Errors are those of Client.Do; an incomplete
// list is an error.
func List[T any](ctx context.Context, c *Client, r Request, each func(item *T)) error {
	return c.sendAndRead(ctx, r, func(body io.Reader) error { return decodeList(body, each) })
}

// decodeList decodes a list object. The list is complete if it has the key items, even with no
// items, and no token for a continuation.
func decodeList[T any](body io.Reader, each func(item *T)) error {
	d := json.NewDecoder(body)
	if err := expectDelim(d, json.Delim('{')); err != nil {
		return err
	}

	var metadata struct {
		Continue string `json:"continue"`
	}
	hasItems := false

	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}

		switch key {
		case "items":
			hasItems = true
			err = decodeItems(d, each)
		case "metadata":
			err = d.Decode(&metadata)
		default:
			err = d.Decode(new(json.RawMessage))
		}

		if err != nil {
			return err
		}
	}

	switch err := expectDelim(d, json.Delim('}')); {
	case err != nil:
		return err
	case !hasItems:
		return errors.New("it is no list")
	case metadata.Continue != "":
		return errors.New("the list is not whole")
	}

	return nil
}

// decodeItems decodes an array, or null.
func decodeItems[T any](d *json.Decoder, each func(item *T)) error {
	switch start, err := d.Token(); {
	case err != nil:
		return err
	case start == nil:
		return nil
	case start != json.Delim('['):
		return errors.New("its items are no list")
	}

	for d.More() {
		item := new(T)
		if err := d.Decode(item); err != nil {
			return err
		}

		each(item)
	}

	return expectDelim(d, json.Delim(']'))
}

// expectDelim reads an opening or closing bracket. An end of the response is io.ErrUnexpectedEOF.
func expectDelim(d *json.Decoder, want json.Delim) error {
	switch token, err := d.Token(); {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case token != want:
		return fmt.Errorf("expected %v", want)
	}

	return nil
}
