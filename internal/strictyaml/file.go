// Package strictyaml reads YAML into structs and reports everything that is wrong with a file at
// once, each with file, line, key, the value and what was expected.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Node is a node of a file, as Decoders read it.
type Node = yaml.Node

// The kinds of nodes.
const (
	ScalarNode   = yaml.ScalarNode
	SequenceNode = yaml.SequenceNode
	MappingNode  = yaml.MappingNode
)

// Error is one thing wrong with a file.
type Error struct {
	File    string // empty for a document that is not from a file
	Line    int    // 0 for a value that is not from a document
	Key     string // such as "recorded.gpus.gpu2.answers.nvmlDeviceGetName"
	Message string // the value and what was expected
}

func (e *Error) Error() string {
	text := e.Message
	if e.Key != "" {
		text = e.Key + ": " + text
	}

	switch {
	case e.File != "":
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, text)
	case e.Line > 0:
		return fmt.Sprintf("line %d: %s", e.Line, text)
	}

	return text
}

// ReadFile reads a file of at most limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	return ReadAll(f, path, limit)
}

// ReadAll reads at most limit bytes of a file that is open. The path names it in errors.
func ReadAll(file io.Reader, path string, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}

	if int64(len(data)) > limit {
		return nil, &Error{
			File:    path,
			Line:    1,
			Message: fmt.Sprintf("is larger than %d bytes", limit),
		}
	}

	return data, nil
}

// Decode reads a file into a struct, which may be filled in part if there is an error. The error
// joins every *Error found, in the order of their lines.
//
// A field's key is in its yaml tag, else in its json tag; without either it is the field's name in
// snake case. Fields of embedded structs are keys of the struct itself. Fields are read in the
// order of the struct, not of the file. They may have these tags:
//
//	yaml:"name,omitempty"  the key, which need not be there; "-" for a field that is not read
//	default:"YAML"         what is read instead if the key is not there
//	oneof:"a b"            the values that are valid
//	match:"[a-z]+"         the regular expression of the values that are valid, beside expected
//	range:"1..64"          the lowest and the highest number, or number of entries of a list or mapping
//	nonzero:"a name"       the value must not be zero or empty, and what was expected instead
//	expected:"a count"     what was expected, for the error if the value is missing or not valid
//
// Arrays are text: of C characters, or of bytes in hexadecimal. Durations are not negative. Numbers
// are decimal; text that looks like something else has to be quoted. An alias is read as its
// anchor's node; the nodes read through aliases are bounded. Types may implement Decoder, Finisher,
// Checked or encoding.TextUnmarshaler, whose error is what was expected; types of other packages
// may have a Form.
func Decode(file string, data []byte, into any, forms ...Form) error {
	root, err := Document(file, data)
	if err != nil {
		return err
	}

	r := &Reader{file: file, root: into, forms: forms}
	r.Decode(root, "", into)

	for _, check := range r.checks {
		check()
	}

	slices.SortStableFunc(r.errs, func(a, b *Error) int { return a.Line - b.Line })

	errs := make([]error, 0, len(r.errs))
	for _, e := range r.errs {
		errs = append(errs, e)
	}

	return errors.Join(errs...)
}

// Document returns the one YAML document of a file, with the nodes of their anchors in the place of
// aliases. Its errors are of type *Error.
func Document(file string, data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))

	var doc, more yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		return nil, syntaxError(file, err)
	}

	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, syntaxError(file, err)
		}

		return nil, &Error{
			File:    file,
			Line:    more.Line,
			Message: "a second document; expected one in a file",
		}
	}

	if len(doc.Content) != 1 {
		return nil, syntaxError(file, io.EOF)
	}

	aliased := 0
	if n := resolveAliases(&doc, false, &aliased); n != nil {
		return nil, &Error{
			File:    file,
			Line:    n.Line,
			Message: "the document is too large once its aliases are written out",
		}
	}

	return doc.Content[0], nil
}

// maxAliased bounds the nodes below aliases, of which a small file can have any number.
const maxAliased = 200_000

// resolveAliases puts the nodes of anchors in the place of aliases. It counts the nodes that are
// reached through aliases, and returns the alias with which they are more than maxAliased.
func resolveAliases(n *yaml.Node, inAlias bool, aliased *int) *yaml.Node {
	for i, child := range n.Content {
		viaAlias := inAlias || child.Kind == yaml.AliasNode
		if child.Kind == yaml.AliasNode {
			n.Content[i] = child.Alias
		}

		if viaAlias {
			if *aliased++; *aliased > maxAliased {
				return child
			}
		}

		if tooMany := resolveAliases(n.Content[i], viaAlias, aliased); tooMany != nil {
			if child.Kind == yaml.AliasNode {
				return child
			}

			return tooMany
		}
	}

	return nil
}

// syntaxError returns an error of the YAML library with file and line. The library has only the
// line, in its text.
func syntaxError(file string, err error) error {
	if errors.Is(err, io.EOF) {
		return &Error{File: file, Line: 1, Message: "is empty"}
	}

	line := 1

	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if n, scanErr := fmt.Sscanf(text, "line %d:", &line); n == 1 && scanErr == nil {
		_, text, _ = strings.Cut(text, ": ")
	}

	return &Error{File: file, Line: line, Message: "not YAML: " + text}
}
