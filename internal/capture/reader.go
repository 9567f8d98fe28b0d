package capture

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// ParseError is one thing wrong with a file.
type ParseError struct {
	File    string
	Line    int
	Key     string // such as "recorded.gpus.gpu2.answers.nvmlDeviceGetName"
	Message string // what stands there and what was expected
}

func (e *ParseError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Key, e.Message)
}

// reader decodes a file into structs and collects what is wrong with it, so that everything is reported at once.
type reader struct {
	file  string
	errs  []*ParseError
	rec   *Recording
	calls []callType // of the entity that is read
	later []func()   // checks of values that depend on others of the file
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

// syntaxError has file and line of an error that the YAML library gives only a line, inside its text.
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

// decode reads a node into a value. What the rest of the package relies on is checked by the value's method expected,
// after everything has been read.
func (r *reader) decode(n *yaml.Node, key string, v reflect.Value) {
	errs := len(r.errs)
	switch into := v.Addr().Interface().(type) {
	case **yaml.Node:
		*into = n
	case *answers:
		*into = r.answers(n, key, r.calls)
	case *fieldValue:
		*into = r.fieldValue(n, key)
	case *time.Duration:
		d, err := time.ParseDuration(r.text(n, key))
		if *into = d; err != nil {
			r.fail(n, key, "is %s; expected a duration such as 1.5s", kindOf(n))
		}
	case encoding.TextUnmarshaler:
		if err := into.UnmarshalText([]byte(scalarText(n))); err != nil {
			r.fail(n, key, "is %s; expected %v", kindOf(n), err)
		}
	default:
		r.decodeKind(n, key, v)
	}
	if checked, ok := v.Interface().(checked); ok && len(r.errs) == errs {
		r.checkLater(n, key, checked)
	}
}

// checked is a value that is not valid merely because of its type.
type checked interface {
	// expected returns what a valid value would be, nothing if it is one.
	expected(rec *Recording) string
}

func (r *reader) checkLater(n *yaml.Node, key string, v checked) {
	r.later = append(r.later, func() {
		if expected := v.expected(r.rec); expected != "" {
			r.fail(n, key, "is %s; expected %s", kindOf(n), expected)
		}
	})
}

// decodeKind reads a node into a value of which the type has no form of its own.
func (r *reader) decodeKind(n *yaml.Node, key string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		r.decode(n, key, v.Elem())
	case reflect.Struct:
		r.decodeStruct(n, key, v)
	case reflect.Map:
		r.decodeMap(n, key, v)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			r.fail(n, key, "is %s; expected a list", kindOf(n))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			r.decode(item, fmt.Sprintf("%s[%d]", key, i), v.Index(i))
		}
	case reflect.Array:
		r.array(n, key, v)
	case reflect.String:
		v.SetString(r.text(n, key))
	default:
		r.decodeScalar(n, key, v)
	}
}

// decodeStruct reads a mapping. A key that the struct does not have, stands there twice, or is missing without being
// optional, is an error.
func (r *reader) decodeStruct(n *yaml.Node, key string, v reflect.Value) {
	if v.NumField() == 0 {
		if n.Kind != yaml.ScalarNode || n.Value != okText {
			r.fail(n, key, "is %s; expected ok or {error: CODE}", kindOf(n))
		}
		return
	}
	var names []string
	fields := map[string]int{}
	for i := range v.NumField() {
		if name := keyOf(v.Type().Field(i)); name != "" {
			names = append(names, name)
			fields[name] = i
		}
	}
	expected := strings.Join(names, ", ")
	if !r.isMapping(n, key, "a mapping with "+expected) {
		return
	}
	found := map[string]bool{}
	for name, value := range pairs(n) {
		i, known := fields[name.Value]
		at := join(key, name.Value)
		switch {
		case name.Kind != yaml.ScalarNode || !known:
			r.fail(name, at, "is not known here; expected one of %s", expected)
		case found[name.Value]:
			r.fail(name, at, "stands here twice")
		default:
			found[name.Value] = true
			if kind := v.Type().Field(i).Tag.Get("calls"); kind != "" {
				r.calls = callTypes(kind)
			}
			r.decode(value, at, v.Field(i))
		}
	}
	for _, name := range names {
		if !found[name] && !strings.Contains(v.Type().Field(fields[name]).Tag.Get("yaml"), ",omitempty") {
			r.fail(n, join(key, name), "is missing")
		}
	}
}

// decodeMap reads a mapping with keys of one type.
func (r *reader) decodeMap(n *yaml.Node, key string, v reflect.Value) {
	if !r.isMapping(n, key, "a mapping") {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for name, value := range pairs(n) {
		at := join(key, name.Value)
		k, item := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		r.decode(name, at, k)
		if v.MapIndex(k).IsValid() {
			r.fail(name, at, "stands here twice")
		}
		r.decode(value, at, item)
		v.SetMapIndex(k, item)
	}
}

// decodeScalar reads a number, or true or false.
func (r *reader) decodeScalar(n *yaml.Node, key string, v reflect.Value) {
	valid := func(tags string) bool { return n.Kind == yaml.ScalarNode && strings.Contains(tags, n.Tag) }
	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(n.Value == "true")
		if !valid("!!bool") || n.Value != "true" && n.Value != "false" {
			r.fail(n, key, "is %s; expected true or false", kindOf(n))
		}
	case v.CanFloat():
		var number float64
		if err := n.Decode(&number); err != nil || !valid("!!float !!int") {
			r.fail(n, key, "is %s; expected a number", kindOf(n))
		}
		v.SetFloat(number + 0)
	case v.CanUint():
		number, err := strconv.ParseUint(n.Value, 10, v.Type().Bits())
		if err != nil || !valid("!!int") {
			r.fail(n, key, "is %s; expected a whole number from 0 to 2^%d-1", kindOf(n), v.Type().Bits())
		}
		v.SetUint(number)
	default:
		number, err := strconv.ParseInt(n.Value, 10, v.Type().Bits())
		if err != nil || !valid("!!int") {
			r.fail(n, key, "is %s; expected a whole number of %d bits", kindOf(n), v.Type().Bits())
		}
		v.SetInt(number)
	}
}

// text reads a string. What looks like a number must be quoted: 580.10 would lose its zero.
func (r *reader) text(n *yaml.Node, key string) string {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		r.fail(n, key, "is %s; expected text (in quotes if it looks like something else)", kindOf(n))
		return ""
	}
	return n.Value
}

// scalarText is the text of a scalar, of whatever type; nothing for another node.
func scalarText(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// isMapping reports whether a node is a mapping; one that is not is an error.
func (r *reader) isMapping(n *yaml.Node, key, expected string) bool {
	if n.Kind != yaml.MappingNode {
		r.fail(n, key, "is %s; expected %s", kindOf(n), expected)
	}
	return n.Kind == yaml.MappingNode
}

// pairs iterates over the keys of a mapping and what stands there.
func pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content) && yield(n.Content[i], n.Content[i+1]); i += 2 {
		}
	}
}

func hasKey(n *yaml.Node, key string) bool {
	if n.Kind == yaml.MappingNode {
		for name := range pairs(n) {
			if name.Kind == yaml.ScalarNode && name.Value == key {
				return true
			}
		}
	}
	return false
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
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
