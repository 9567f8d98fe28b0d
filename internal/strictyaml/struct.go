package strictyaml

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// decodeStruct reads a mapping. A key that the struct does not have, is there twice, or is missing
// without being optional, is an error.
func (r *Reader) decodeStruct(n *yaml.Node, key string, v reflect.Value) {
	fields := fieldsOf(v.Type())
	names := make([]string, len(fields))

	for i, f := range fields {
		names[i] = KeyOf(f)
	}

	expected := strings.Join(names, ", ")
	if !r.IsMapping(n, key, "a mapping with "+expected) {
		return
	}

	values := map[string]*yaml.Node{}

	for name, value := range Pairs(n) {
		entryKey := Join(key, name.Value)
		switch {
		case name.Kind != yaml.ScalarNode || !slices.Contains(names, name.Value):
			r.Fail(name, entryKey, "is not known here; expected one of %s", expected)
		case values[name.Value] != nil:
			r.Fail(name, entryKey, "duplicate key")
		default:
			values[name.Value] = value
		}
	}

	for i, f := range fields {
		r.decodeField(n, values[names[i]], Join(key, names[i]), f.Tag, v.FieldByIndex(f.Index))
	}
}

// fieldsOf lists the fields of a struct and of those embedded in it that have keys.
func fieldsOf(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
		return KeyOf(f) == ""
	})
}

// tagOf returns the tag that has the key of a struct's field.
func tagOf(tag reflect.StructTag) string { return cmp.Or(tag.Get("yaml"), tag.Get("json")) }

// KeyOf returns the key of a struct's field: the name in its tag, or memory_size_mb for
// MemorySizeMB. It returns "" for fields that have none: embedded structs, fields that are not
// exported or tagged "-", and the compiler's padding, which cgo makes fields of.
func KeyOf(f reflect.StructField) string {
	if name, _, _ := strings.Cut(tagOf(f.Tag), ","); name != "" {
		return strings.TrimPrefix(name, "-")
	}

	if f.Anonymous || !f.IsExported() || strings.HasPrefix(f.Name, "Pad_cgo_") {
		return ""
	}

	var out strings.Builder

	runes := []rune(f.Name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(runes[i-1]) {
			out.WriteByte('_')
		}

		out.WriteRune(unicode.ToLower(r))
	}

	return out.String()
}

// decodeField reads the value of a struct's field, which is nil if its key is not in the mapping.
func (r *Reader) decodeField(
	mapping, n *yaml.Node,
	key string,
	tag reflect.StructTag,
	v reflect.Value,
) {
	isMany := v.Kind() == reflect.Slice || v.Kind() == reflect.Map
	expected := expectedOf(tag, isMany)

	if n == nil {
		defaultText, hasDefault := tag.Lookup("default")
		if !hasDefault {
			if strings.Contains(tagOf(tag), ",omit") { // omitempty or omitzero
				return
			}

			message := "is missing"
			if expected != "" {
				message += "; expected " + expected
			}

			r.Fail(mapping, key, "%s", message)

			return
		}

		var err error
		if n, err = Document("", []byte(defaultText)); err != nil {
			r.Fail(mapping, key, "the default %q: %v", defaultText, err)
			return
		}
	}

	lowest, highest, hasRange := rangeOf(tag)
	if entries := entriesOf(n); hasRange && isMany && entries >= 0 &&
		(entries < lowest || entries > highest) {
		r.Fail(n, key, "has %d entries; expected %d to %d", entries, lowest, highest)
		return
	}

	before := len(r.errs)
	r.decode(n, key, v)

	valid := len(r.errs) == before
	if nonzero, ok := tag.Lookup("nonzero"); ok && valid && reflect.Indirect(v).IsZero() {
		r.Expected(n, key, "%s", nonzero)
		return
	}

	allowed := valid && (isMany || allows(tag, n.Value))
	// What the tags expect replaces the errors of decode, unless these are about a key below this
	// one.
	if !allowed && expected != "" && (valid || r.errs[before].Key == key) {
		r.errs = r.errs[:before]
		r.Expected(n, key, "%s", expected)
	}
}

// expectedOf returns what the tags of a field expect.
func expectedOf(tag reflect.StructTag, isMany bool) string {
	lowest, highest, hasRange := rangeOf(tag)
	allowed := strings.Join(strings.Fields(tag.Get("oneof")), ", ")

	switch text := tag.Get("expected"); {
	case text != "":
		return text
	case allowed != "":
		return "one of " + allowed
	case hasRange && !isMany:
		return fmt.Sprintf("a whole number from %d to %d", lowest, highest)
	}

	return ""
}

// allows reports whether the tags of a field allow a value.
func allows(tag reflect.StructTag, value string) bool {
	if lowest, highest, ok := rangeOf(tag); ok {
		number, err := strconv.ParseInt(value, 10, 64)
		if err != nil || number < lowest || number > highest {
			return false
		}
	}

	if pattern, ok := tag.Lookup("match"); ok {
		if matches, err := regexp.MatchString("^(?:"+pattern+")$", value); err != nil || !matches {
			return false
		}
	}

	allowed, ok := tag.Lookup("oneof")

	return !ok || slices.Contains(strings.Fields(allowed), value)
}

// rangeOf returns the range tag of a field.
func rangeOf(tag reflect.StructTag) (lowest, highest int64, ok bool) {
	low, high, ok := strings.Cut(tag.Get("range"), "..")
	lowest, lowErr := strconv.ParseInt(low, 10, 64)
	highest, highErr := strconv.ParseInt(high, 10, 64)

	return lowest, highest, ok && lowErr == nil && highErr == nil
}

// entriesOf returns the number of entries of a list or a mapping; -1 for another node.
func entriesOf(n *yaml.Node) int64 {
	switch n.Kind {
	case yaml.SequenceNode:
		return int64(len(n.Content))
	case yaml.MappingNode:
		return int64(len(n.Content) / 2)
	}

	return -1
}
