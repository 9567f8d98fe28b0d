package strictyaml

import (
	"cmp"
	"encoding"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Reader decodes one file and collects what is wrong with it.
type Reader struct {
	file   string
	root   any
	forms  []Form
	errs   []*Error
	checks []func() // run when everything has been read, since a value may depend on others of the file
}

// MaxDuration keeps sums of durations far from overflow.
const MaxDuration = 10 * 365 * 24 * time.Hour

// Root returns the value that the file is read into. The sections before the current one, in the
// order of its struct, have been read.
func (r *Reader) Root() any { return r.root }

// Decoder is implemented by pointers to types that are read in a form of their own.
type Decoder interface {
	DecodeYAML(r *Reader, n *yaml.Node, key string)
}

// Form is how values of one type are read.
type Form struct {
	typ  reflect.Type
	read func(r *Reader, n *Node, key string, into any)
}

// FormOf returns the form of a type that has no methods of its own. read reads a value as Decoder
// does.
func FormOf[T any](read func(r *Reader, n *Node, key string, into *T)) Form {
	return Form{
		reflect.TypeFor[T](),
		func(r *Reader, n *Node, key string, into any) { read(r, n, key, into.(*T)) },
	}
}

// OneOf returns a form of values that have names: text, true or false. Names can be added while a
// file is read.
func OneOf[T any](byName map[string]T) Form {
	return FormOf(func(r *Reader, n *Node, key string, into *T) {
		var known bool
		if *into, known = byName[n.Value]; !known || n.Tag != "!!str" && n.Tag != "!!bool" {
			names := strings.Join(slices.Sorted(maps.Keys(byName)), ", ")
			r.Expected(
				n,
				key,
				"one of %s",
				cmp.Or(names, "the names of this file, of which there are none yet"),
			)
		}
	})
}

// Finisher is implemented by pointers to types that have more to do once they have been read
// without a mistake, such as to check what depends on several keys.
type Finisher interface {
	FinishYAML(r *Reader, n *Node, key string)
}

// Checked is implemented by values that can be invalid although their type is right.
type Checked interface {
	// Valid reports whether the value is valid, and what was expected if not. It is called after
	// everything has been read into root, which is what Decode was called with.
	Valid(root any) (valid bool, expected string)
}

// Fail reports what is wrong with a node.
func (r *Reader) Fail(n *yaml.Node, key, format string, args ...any) {
	r.errs = append(
		r.errs,
		&Error{File: r.file, Line: n.Line, Key: key, Message: fmt.Sprintf(format, args...)},
	)
}

// FailAt reports what is wrong with a key of a mapping, or with its absence.
func (r *Reader) FailAt(mapping *yaml.Node, key, name, format string, args ...any) {
	r.Fail(cmp.Or(Value(mapping, name), mapping), Join(key, name), format, args...)
}

// FailFound reports a mistake that was found in the value that has been read from a node: at the
// node of its key, or the nearest one around that.
func (r *Reader) FailFound(n *yaml.Node, key string, found *Error) {
	r.Fail(nodeOf(n, key, found.Key), found.Key, "%s", found.Message)
}

// nodeOf returns the node of a key below a node, or the nearest one around it.
func nodeOf(n *yaml.Node, key, wanted string) *yaml.Node {
	nearest := n
	nearestKey := key

	consider := func(entryKey string, entry *yaml.Node) {
		// Names such as 1g.5gb have dots, so we take the longest key.
		if len(entryKey) > len(nearestKey) && strings.HasPrefix(wanted, entryKey) {
			nearest = entry
			nearestKey = entryKey
		}
	}

	for name, entry := range Pairs(n) {
		consider(Join(key, name.Value), entry)
	}

	if n.Kind == yaml.SequenceNode {
		for i, entry := range n.Content {
			consider(fmt.Sprintf("%s[%d]", key, i), entry)
		}
	}

	if nearest == n {
		return n
	}

	return nodeOf(nearest, nearestKey, wanted)
}

// Expected reports that a node is not what was expected there.
func (r *Reader) Expected(n *yaml.Node, key, format string, args ...any) {
	r.Fail(n, key, "is %s; expected %s", kindOf(n), fmt.Sprintf(format, args...))
}

// Check checks a value of a node after everything has been read.
func (r *Reader) Check(n *yaml.Node, key string, v Checked) {
	r.checks = append(r.checks, func() {
		if valid, expected := v.Valid(r.root); !valid {
			r.Expected(n, key, "%s", expected)
		}
	})
}

// Decode reads a node into the value that into points to, and reports whether it was valid.
func (r *Reader) Decode(n *yaml.Node, key string, into any) bool {
	before := len(r.errs)
	r.decode(n, key, reflect.ValueOf(into).Elem())

	return len(r.errs) == before
}

func (r *Reader) decode(n *yaml.Node, key string, v reflect.Value) {
	before := len(r.errs)
	if i := slices.IndexFunc(r.forms, func(f Form) bool { return f.typ == v.Type() }); i >= 0 {
		r.forms[i].read(r, n, key, v.Addr().Interface())
		return
	}

	switch into := v.Addr().Interface().(type) {
	case **yaml.Node:
		*into = n
	case Decoder:
		into.DecodeYAML(r, n, key)
	case *time.Duration:
		d, err := time.ParseDuration(n.Value)
		if *into = d; err != nil || n.Kind != yaml.ScalarNode || d < 0 || d > MaxDuration {
			r.Expected(n, key, "a duration such as 30s or 1h30m")
		}
	case *time.Time:
		at, err := time.Parse(time.RFC3339Nano, n.Value)
		if *into = at.UTC(); err != nil || n.Kind != yaml.ScalarNode {
			r.Expected(n, key, "a time such as 2026-01-31T12:00:00Z")
		}
	case encoding.TextUnmarshaler:
		text := n.Value
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			text = ""
		}

		if err := into.UnmarshalText([]byte(text)); err != nil {
			r.Expected(n, key, "%v", err)
		}
	default:
		r.decodeKind(n, key, v)
	}

	if len(r.errs) > before {
		return
	}

	if into, ok := v.Addr().Interface().(Finisher); ok {
		into.FinishYAML(r, n, key)
	}

	if v, ok := v.Interface().(Checked); ok {
		r.Check(n, key, v)
	}
}

// decodeKind reads a node into a value whose type has no form of its own.
func (r *Reader) decodeKind(n *yaml.Node, key string, v reflect.Value) {
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
			r.Expected(n, key, "a list")
			return
		}

		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))

		for i, item := range n.Content {
			r.decode(item, fmt.Sprintf("%s[%d]", key, i), v.Index(i))
		}
	case reflect.Array:
		r.decodeArray(n, key, v)
	case reflect.String:
		v.SetString(r.text(n, key))
	default:
		r.decodeScalar(n, key, v)
	}
}

// decodeMap reads a mapping with keys of one type.
func (r *Reader) decodeMap(n *yaml.Node, key string, v reflect.Value) {
	if !r.IsMapping(n, key, "a mapping") {
		return
	}

	v.Set(reflect.MakeMap(v.Type()))

	for name, value := range Pairs(n) {
		entryKey := Join(key, name.Value)
		k := reflect.New(v.Type().Key()).Elem()
		item := reflect.New(v.Type().Elem()).Elem()
		r.decode(name, entryKey, k)

		if v.MapIndex(k).IsValid() {
			r.Fail(name, entryKey, "duplicate key")
		}

		r.decode(value, entryKey, item)
		v.SetMapIndex(k, item)
	}
}

// decodeScalar reads a number, or true or false.
func (r *Reader) decodeScalar(n *yaml.Node, key string, v reflect.Value) {
	hasTag := func(tags string) bool { return n.Kind == yaml.ScalarNode && strings.Contains(tags, n.Tag) }

	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(n.Value == "true")

		if !hasTag("!!bool") || n.Value != "true" && n.Value != "false" {
			r.Expected(n, key, "true or false")
		}
	case v.CanFloat():
		var number float64
		if err := n.Decode(&number); err != nil || !hasTag("!!float !!int") {
			r.Expected(n, key, "a number")
		}

		v.SetFloat(number + 0) // 0 for -0
	case v.CanUint():
		number, err := strconv.ParseUint(n.Value, 10, v.Type().Bits())
		if err != nil || !hasTag("!!int") || isOctal(n.Value) {
			r.Expected(n, key, "a whole number from 0 to 2^%d-1", v.Type().Bits())
		}

		v.SetUint(number)
	default:
		number, err := strconv.ParseInt(n.Value, 10, v.Type().Bits())
		if err != nil || !hasTag("!!int") || isOctal(n.Value) {
			r.Expected(n, key, "a whole number of %d bits", v.Type().Bits())
		}

		v.SetInt(number)
	}
}

// isOctal reports whether YAML 1.1 reads the digits of a number as octal.
func isOctal(number string) bool {
	digits := strings.TrimLeft(number, "+-")
	return len(digits) > 1 && digits[0] == '0'
}

// text reads a string. What looks like a number must be quoted: 580.10 would lose its zero.
func (r *Reader) text(n *yaml.Node, key string) string {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		r.Expected(n, key, "text (in quotes if it looks like something else)")
		return ""
	}

	return n.Value
}

// decodeArray reads text into an array of C characters, which the text may fill without a NUL, or
// bytes in hexadecimal.
func (r *Reader) decodeArray(n *yaml.Node, key string, v reflect.Value) {
	text := r.text(n, key)

	bytes, err := hex.DecodeString(text)
	switch isHex := v.Type().Elem().Kind() == reflect.Uint8; {
	case isHex && (err != nil || len(bytes) != v.Len()):
		r.Expected(n, key, "%d bytes in hexadecimal", v.Len())
	case isHex:
		reflect.Copy(v, reflect.ValueOf(bytes))
	case len(text) > v.Len():
		r.Fail(n, key, "is %d bytes long; there is room for %d", len(text), v.Len())
	default:
		for i := range len(text) {
			v.Index(i).SetInt(int64(int8(text[i])))
		}
	}
}

// IsMapping reports whether a node is a mapping; one that is not is an error.
func (r *Reader) IsMapping(n *yaml.Node, key, expected string) bool {
	if n.Kind != yaml.MappingNode {
		r.Expected(n, key, "%s", expected)
	}

	return n.Kind == yaml.MappingNode
}

// Pairs iterates over the keys of a mapping and their values; another node has none.
func Pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if n.Kind != yaml.MappingNode {
			return
		}

		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// Value returns the value of a key of a mapping, or nil; another node has none.
func Value(n *yaml.Node, key string) *yaml.Node {
	for name, value := range Pairs(n) {
		if name.Kind == yaml.ScalarNode && name.Value == key {
			return value
		}
	}

	return nil
}

// HasKey reports whether a node is a mapping with a key.
func HasKey(n *yaml.Node, key string) bool { return Value(n, key) != nil }

// Join returns the key of an entry of a mapping. Long names are cut off.
func Join(key, name string) string {
	if len(name) > maxShown {
		name = name[:maxShown] + "..."
	}

	if key == "" {
		return name
	}

	return key + "." + name
}

// maxShown is how much of a key or value errors show.
const maxShown = 60

// kindOf describes a node to the author of the file. Text is in quotes.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "empty"
	case n.Tag == "!!int", n.Tag == "!!float", n.Tag == "!!bool":
		return fmt.Sprintf("%.*s", maxShown, n.Value)
	}

	return fmt.Sprintf("%.*q", maxShown, n.Value)
}
