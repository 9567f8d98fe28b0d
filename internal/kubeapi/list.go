package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// List sends a request for a list and calls each with every item of the answer. Items are decoded one by one, and what T has
// no field for is skipped, so that the memory in use is that of one item. After an error, some items may have been passed to
// each. Errors are those of Client.Do; an answer that is not a whole list is one.
func List[T any](ctx context.Context, c *Client, r Request, each func(item *T)) error {
	return c.sendAndRead(ctx, r, func(body io.Reader) error { return decodeList(body, each) })
}

// decodeList reads a list object. A list is whole if it has items, even none, and nothing remains to be asked for.
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

// decodeItems reads an array, or null.
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

// expectDelim reads a token, which is an opening or closing bracket. The end of the answer is one before its time.
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
