package spec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// reader goes through a document and keeps the first of its errors.
type reader struct {
	err   *Error
	nodes int // read so far; aliases read some more than once
}

// spend counts nodes, and reports whether there were not too many.
func (r *reader) spend(n *yaml.Node, key string) bool {
	if r.nodes += len(n.Content); r.nodes > maxNodes {
		r.fail(n, key, "the document is too large once its aliases are written out")
	}
	return r.nodes <= maxNodes
}

func (r *reader) fail(n *yaml.Node, key, format string, args ...any) {
	if r.err == nil {
		r.err = &Error{Line: n.Line, Key: key, Text: fmt.Sprintf(format, args...)}
	}
}

// document reads the only document there is.
func document(data []byte, most int) (*yaml.Node, error) {
	if len(data) > most {
		return nil, wrong("", "%d bytes; expected at most %d", len(data), most)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, wrong("", "the document is empty")
	} else if err != nil {
		return nil, syntax(err)
	}
	if err := decoder.Decode(&more); err == nil {
		return nil, &Error{Line: more.Line, Text: "a second document; expected one"}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntax(err)
	}
	return doc.Content[0], nil
}

// syntax takes the library's line out of its message.
func syntax(err error) *Error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := regexp.MustCompile(`^line (\d+): (.*)$`).FindStringSubmatch(text); m != nil {
		if line, err := strconv.Atoi(m[1]); err == nil {
			return &Error{Line: line, Text: m[2]}
		}
	}
	return wrong("", "%s", text)
}

// field is an entry of a mapping.
type field struct {
	name, key string // the key is the path to it
	at, value *yaml.Node
}

// resolved follows an alias. What it stands for is read anew each time, so that the bounds hold.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// fields reads a mapping of at most so many entries. allowed are its keys; nil is any.
func (r *reader) fields(n *yaml.Node, key string, most int, allowed ...string) []field {
	n = resolved(n)
	if n.Kind != yaml.MappingNode {
		expected := "a mapping"
		if allowed != nil {
			expected += " with " + strings.Join(allowed, ", ")
		}
		r.fail(n, key, "is %s; expected %s", kindOf(n), expected)
		return nil
	}
	if len(n.Content)/2 > most {
		r.fail(n, key, "has %d entries; expected at most %d", len(n.Content)/2, most)
		return nil
	}
	if !r.spend(n, key) {
		return nil
	}
	var list []field
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], resolved(n.Content[i+1])
		f := field{name: name.Value, key: join(key, name.Value), at: name, value: value}
		switch {
		case name.Kind != yaml.ScalarNode || name.Tag == "!!null" || name.Value == "" || len(name.Value) > maxText:
			r.fail(name, key, "has a key that is %s; expected a name", kindOf(name))
			return nil
		case allowed != nil && !slices.Contains(allowed, f.name):
			r.fail(name, f.key, "is not known here; expected one of %s", strings.Join(allowed, ", "))
			return nil
		case seen[f.name]:
			r.fail(name, f.key, "stands here twice")
			return nil
		}
		seen[f.name] = true
		list = append(list, f)
	}
	return list
}

func join(key, name string) string {
	if len(name) > 60 {
		name = name[:60] + "..."
	}
	if key == "" {
		return name
	}
	return key + "." + name
}

// items reads a list of at most so many items.
func (r *reader) items(n *yaml.Node, key string, most int, expected string) []field {
	n = resolved(n)
	switch {
	case n.Kind != yaml.SequenceNode:
		r.fail(n, key, "is %s; expected %s", kindOf(n), expected)
		return nil
	case len(n.Content) > most:
		r.fail(n, key, "has %d items; expected at most %d", len(n.Content), most)
		return nil
	case !r.spend(n, key):
		return nil
	}
	list := make([]field, 0, len(n.Content))
	for i, item := range n.Content {
		list = append(list, field{key: fmt.Sprintf("%s[%d]", key, i), at: item, value: resolved(item)})
	}
	return list
}

// text reads a string that is not empty.
func (r *reader) text(f field, expected string) string {
	if f.value.Kind != yaml.ScalarNode || f.value.Tag != "!!str" || f.value.Value == "" || len(f.value.Value) > maxText {
		r.fail(f.value, f.key, "is %s; expected %s", kindOf(f.value), expected)
		return ""
	}
	return f.value.Value
}

// number reads a whole number from 0 on, in plain decimal digits.
func (r *reader) number(f field, most int, expected string) int {
	if n, ok := wholeNumber(f.value, most); ok {
		return n
	}
	r.fail(f.value, f.key, "is %s; expected %s", kindOf(f.value), expected)
	return 0
}

func wholeNumber(n *yaml.Node, most int) (int, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || len(n.Value) > 1 && n.Value[0] == '0' {
		return 0, false
	}
	v, err := strconv.ParseUint(n.Value, 10, 31)
	return int(v), err == nil && v <= uint64(most)
}

func (r *reader) boolean(f field) bool {
	if f.value.Kind != yaml.ScalarNode || f.value.Tag != "!!bool" || f.value.Value != "true" && f.value.Value != "false" {
		r.fail(f.value, f.key, "is %s; expected true or false", kindOf(f.value))
		return false
	}
	return f.value.Value == "true"
}

// kindOf says in an author's words what a node is.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch {
	case n.Tag == "!!null":
		return "empty"
	case n.Tag == "!!str":
		return fmt.Sprintf("the string %.60q", n.Value)
	case n.Tag == "!!int" || n.Tag == "!!float" || n.Tag == "!!bool":
		return fmt.Sprintf("%.60s", n.Value)
	}
	return fmt.Sprintf("%.60q", n.Value)
}
