package capture

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
)

// maxFileBytes bounds a recording; three polls of the largest node are a thousandth of it.
const maxFileBytes = 256 << 20

// IsRecording reports whether a scenario file is a recording. One that cannot be read or is not YAML is none; the reader
// of scenarios says why.
func IsRecording(path string) bool {
	data, err := readFile(path)
	if err != nil {
		return false
	}
	root, err := (&reader{file: path}).document(data)
	return err == nil && hasKey(root, "recorded")
}

// Load reads a recording.
func Load(path string) (*Recording, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	if len(data) > maxFileBytes {
		return nil, &ParseError{File: path, Line: 1, Message: fmt.Sprintf("is larger than %d bytes", maxFileBytes)}
	}
	return data, nil
}

// Parse reads a recording. The path names it in errors. The error joins every *ParseError found, in the order of their
// lines.
func Parse(path string, data []byte) (*Recording, error) {
	r := &reader{file: path, rec: &Recording{}}
	root, err := r.document(data)
	if err != nil {
		return nil, err
	}
	r.decode(root, "", reflect.ValueOf(r.rec).Elem())
	for _, check := range r.later {
		check()
	}
	if len(r.errs) == 0 {
		return r.rec, nil
	}
	slices.SortStableFunc(r.errs, func(a, b *ParseError) int { return a.Line - b.Line })
	errs := make([]error, 0, len(r.errs))
	for _, e := range r.errs {
		errs = append(errs, e)
	}
	return nil, errors.Join(errs...)
}
