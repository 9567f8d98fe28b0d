package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// maxDepth is the maximum nesting of a body.
const maxDepth = 32

// readBody reads the JSON body of a call, of at most limit bytes. It may be absent if optional is
// set.
func (c *call) readBody(limit int64, optional bool) error {
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, limit))

	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return problem(
			api.TooLarge,
			http.StatusRequestEntityTooLarge,
			"the body has more than %d bytes",
			limit,
		)
	case err != nil:
		return problem(
			api.Malformed,
			http.StatusBadRequest,
			"the body did not come whole, or not in time",
		)
	case len(body) == 0 && optional:
		return nil
	}

	media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return problem(
			api.MediaType,
			http.StatusUnsupportedMediaType,
			"expected Content-Type: application/json",
		)
	}

	if c.r.Header.Get("Content-Encoding") != "" {
		return problem(
			api.MediaType,
			http.StatusUnsupportedMediaType,
			"expected no Content-Encoding",
		)
	}

	c.body = body

	return nil
}

// field says how to decode one key of a body.
type field struct {
	into     any // pointer to where the value is stored
	required bool
}

// decodeBody decodes the body strictly, as an object of these fields. It returns an error that
// names the key if a key is unknown or in another case, repeated at any depth, null, or of another
// type; and if anything follows the object.
func (c *call) decodeBody(fields map[string]field) error {
	if err := checkJSON(c.body); err != nil {
		return problem(api.Malformed, http.StatusBadRequest, "the body: %s", err)
	}

	var object map[string]json.RawMessage
	if err := json.Unmarshal(c.body, &object); err != nil || object == nil {
		return problem(api.Malformed, http.StatusBadRequest, "the body: expected an object")
	}

	known := strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
	for _, key := range slices.Sorted(maps.Keys(object)) {
		f, ok := fields[key]
		if !ok {
			return problem(
				api.Malformed,
				http.StatusBadRequest,
				"unknown field %.64q: expected %s",
				key,
				orNone(known),
			)
		}

		if string(object[key]) == "null" {
			return problem(
				api.Malformed,
				http.StatusBadRequest,
				"field %q: expected a value, not null",
				key,
			)
		}

		if err := json.Unmarshal(object[key], f.into); err != nil {
			return problem(
				api.Malformed,
				http.StatusBadRequest,
				"field %q: expected %s",
				key,
				typeName(f.into),
			)
		}
	}

	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if _, ok := object[key]; !ok && fields[key].required {
			return problem(api.Malformed, http.StatusBadRequest, "field %q is missing", key)
		}
	}

	return nil
}

// statedReason is why a caller wants a change, in its own words.
type statedReason string

// maxReason is the maximum length of a reason in bytes.
const maxReason = api.MaxReason

// UnmarshalJSON reads a text of one line.
func (r *statedReason) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}

	if !api.IsReason(text) {
		return errors.New("too long, or not one line")
	}

	*r = statedReason(text)

	return nil
}

func orNone(known string) string {
	if known == "" {
		return "no fields"
	}

	return known
}

func typeName(into any) string {
	switch into.(type) {
	case *string:
		return "a string"
	case *bool:
		return "true or false"
	case *[]string:
		return "a list of strings"
	case *statedReason:
		return fmt.Sprintf("one line of at most %d bytes", maxReason)
	}

	return "another type"
}

// checkJSON returns an error that says what is wrong unless the document is exactly one JSON value
// without repeated keys.
func checkJSON(body []byte) error {
	if !utf8.Valid(body) {
		return errors.New("not UTF-8")
	}

	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()

	if err := checkValue(decoder, "", 0); err != nil {
		return err
	}

	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the document")
	}

	return nil
}

// checkValue reads one value, with all that it contains. at is its path in the document, such as
// "spec.devices[2]", for errors.
func checkValue(decoder *json.Decoder, at string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested more than %d deep", maxDepth)
	}

	token, err := decoder.Token()
	if err != nil {
		return notJSON(err, decoder)
	}

	delim, ok := token.(json.Delim)
	if !ok {
		return nil
	}

	seen := make(map[string]bool)

	for i := 0; decoder.More(); i++ {
		child := fmt.Sprintf("%s[%d]", at, i)

		if delim == '{' {
			token, err := decoder.Token()
			if err != nil {
				return notJSON(err, decoder)
			}

			key, _ := token.(string) // always, in an object
			child = strings.TrimPrefix(at+"."+key, ".")

			if seen[key] {
				return fmt.Errorf("field %.120q is there twice", child)
			}

			seen[key] = true
		}

		if err := checkValue(decoder, child, depth+1); err != nil {
			return err
		}
	}

	if _, err := decoder.Token(); err != nil { // the closing bracket
		return notJSON(err, decoder)
	}

	return nil
}

// notJSON returns the error to show for an error of the decoder.
func notJSON(err error, decoder *json.Decoder) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}

	return fmt.Errorf("not JSON near byte %d", decoder.InputOffset())
}
