package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ParseError is one thing wrong with a file.
type ParseError struct {
	File    string
	Line    int
	Key     string // such as "recorded.gpus[2].answers.nvmlDeviceGetName"
	Message string // what stands there and what was expected
}

func (e *ParseError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Key, e.Message)
}

// reader collects what is wrong with a file, so that everything is seen at once.
type reader struct {
	file string
	errs []*ParseError
}

func (r *reader) fail(n *yaml.Node, key, format string, args ...any) {
	r.errs = append(r.errs, &ParseError{File: r.file, Line: n.Line, Key: key, Message: fmt.Sprintf(format, args...)})
}

// document reads the one YAML document of a file.
func (r *reader) document(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		return nil, r.syntaxError(err)
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, r.syntaxError(err)
		}
		return nil, &ParseError{File: r.file, Line: more.Line, Message: "a second document; expected one recording in a file"}
	}
	if len(doc.Content) != 1 {
		return nil, r.syntaxError(io.EOF)
	}
	return doc.Content[0], nil
}

// syntaxError puts file and line where the YAML library tells only a line, inside its text.
func (r *reader) syntaxError(err error) error {
	if errors.Is(err, io.EOF) {
		return &ParseError{File: r.file, Line: 1, Message: "is empty"}
	}
	line := 1
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if n, scanErr := fmt.Sscanf(text, "line %d:", &line); n == 1 && scanErr == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	return &ParseError{File: r.file, Line: line, Message: "not YAML: " + text}
}

// object is a YAML mapping whose keys are known beforehand.
type object struct {
	r      *reader
	node   *yaml.Node
	key    string
	fields map[string]*yaml.Node // nil where the node is no mapping
}

// pair is a key of a YAML mapping with what stands there.
type pair struct{ key, value *yaml.Node }

func pairs(n *yaml.Node) []pair {
	list := make([]pair, 0, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		list = append(list, pair{n.Content[i], n.Content[i+1]})
	}
	return list
}

// mapping tells whether a node is a mapping, and fails where it is not.
func (r *reader) mapping(n *yaml.Node, key, expected string) bool {
	if n.Kind != yaml.MappingNode {
		r.fail(n, key, "is %s; expected %s", kindOf(n), expected)
	}
	return n.Kind == yaml.MappingNode
}

// object reads a mapping. A key that is not allowed, stands there twice, or is required and missing, is an error; those
// with a ? before them may be missing.
func (r *reader) object(n *yaml.Node, key string, allowed ...string) object {
	o := object{r: r, node: n, key: key}
	names := make([]string, 0, len(allowed))
	for _, name := range allowed {
		names = append(names, strings.TrimPrefix(name, "?"))
	}
	if !r.mapping(n, key, "a mapping with "+strings.Join(names, ", ")) {
		return o
	}
	o.fields = make(map[string]*yaml.Node)
	for _, p := range pairs(n) {
		switch name := p.key.Value; {
		case p.key.Kind != yaml.ScalarNode || !slices.Contains(names, name):
			r.fail(p.key, o.sub(name), "is not known here; expected one of %s", strings.Join(names, ", "))
		case o.fields[name] != nil:
			r.fail(p.key, o.sub(name), "stands here twice")
		default:
			o.fields[name] = p.value
		}
	}
	for _, name := range allowed {
		if !strings.HasPrefix(name, "?") && o.fields[name] == nil {
			r.fail(n, o.sub(name), "is missing")
		}
	}
	return o
}

func (o object) sub(name string) string {
	if o.key == "" {
		return name
	}
	return o.key + "." + name
}

// kindOf says in a reader's words what a node is.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias, which recordings do not use"
	}
	if n.Tag == "!!null" {
		return "empty"
	}
	return strconv.Quote(n.Value)
}

func (o object) list(name string) []*yaml.Node {
	n := o.fields[name]
	if n == nil {
		return nil
	}
	return o.r.list(n, o.sub(name))
}

func (r *reader) list(n *yaml.Node, key string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, key, "is %s; expected a list", kindOf(n))
		return nil
	}
	return n.Content
}

// text reads a string. What looks like a number must be quoted: 580.10 would lose its zero.
func (r *reader) text(n *yaml.Node, key string) string {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		r.fail(n, key, "is %s; expected text (in quotes where it looks like something else)", kindOf(n))
		return ""
	}
	return n.Value
}

func (o object) text(name string) string {
	if n := o.fields[name]; n != nil {
		return o.r.text(n, o.sub(name))
	}
	return ""
}

func (r *reader) boolean(n *yaml.Node, key string) bool {
	if n.Kind != yaml.ScalarNode || n.Value != "true" && n.Value != "false" || n.Tag != "!!bool" {
		r.fail(n, key, "is %s; expected true or false", kindOf(n))
		return false
	}
	return n.Value == "true"
}

// signed reads a whole number of so many bits.
func (r *reader) signed(n *yaml.Node, key string, bits int) int64 {
	v, err := strconv.ParseInt(n.Value, 10, bits)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil {
		r.fail(n, key, "is %s; expected a whole number of %d bits", kindOf(n), bits)
		return 0
	}
	return v
}

// unsigned reads a whole number of so many bits that is not negative.
func (r *reader) unsigned(n *yaml.Node, key string, bits int) uint64 {
	v, err := strconv.ParseUint(n.Value, 10, bits)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil {
		r.fail(n, key, "is %s; expected a whole number from 0 to 2^%d-1", kindOf(n), bits)
		return 0
	}
	return v
}

// number reads a number from 0 to a highest one.
func (o object) number(name string, highest uint64) int {
	n := o.fields[name]
	if n == nil {
		return 0
	}
	errs := len(o.r.errs)
	v := o.r.unsigned(n, o.sub(name), 32)
	if v > highest && len(o.r.errs) == errs {
		o.r.fail(n, o.sub(name), "is %d; expected at most %d", v, highest)
		return 0
	}
	return int(v)
}
