package strictyaml

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// decodeStruct reads a mapping. A key that the struct does not have, is there twice, or is missing without being
// optional, is an error.
func (r *Reader) decodeStruct(n *yaml.Node, key string, v reflect.Value) {
	fields := fieldsOf(v.Type())
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = keyOf(f)
	}
	expected := strings.Join(names, ", ")
	if !r.IsMapping(n, key, "a mapping with "+expected) {
		return
	}
	values := map[string]*yaml.Node{}
	for name, value := range Pairs(n) {
		at := Join(key, name.Value)
		switch {
		case name.Kind != yaml.ScalarNode || !slices.Contains(names, name.Value):
			r.Fail(name, at, "is not known here; expected one of %s", expected)
		case values[name.Value] != nil:
			r.Fail(name, at, "duplicate key")
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
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return keyOf(f) == "" })
}

// keyOf is the key of a struct's field: of its tag, or memory_size_mb for MemorySizeMB. Embedded structs, fields that
// are not exported or tagged "-", and the compiler's padding, which cgo makes fields of, have none.
func keyOf(f reflect.StructField) string {
	if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name != "" {
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
func (r *Reader) decodeField(mapping, n *yaml.Node, key string, tag reflect.StructTag, v reflect.Value) {
	expected := tag.Get("expected")
	if n == nil {
		defaultText, hasDefault := tag.Lookup("default")
		if !hasDefault {
			if !strings.Contains(tag.Get("yaml"), ",omitempty") {
				r.Fail(mapping, key, "%s", strings.TrimSuffix("is missing; expected "+expected, "; expected "))
			}
			return
		}
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(defaultText), &doc); err != nil || len(doc.Content) != 1 {
			r.Fail(mapping, key, "the default %q is not YAML", defaultText)
			return
		}
		n = doc.Content[0]
	}
	lowest, highest, hasRange := rangeOf(tag)
	if entries := entriesOf(n); hasRange && entries >= 0 && (entries < lowest || entries > highest) {
		r.Fail(n, key, "has %d entries; expected %d to %d", entries, lowest, highest)
		return
	}
	errs := len(r.errs)
	r.decode(n, key, v)
	valid, value := len(r.errs) == errs, reflect.Indirect(v)
	if hasRange && value.CanInt() {
		valid = valid && value.Int() >= lowest && value.Int() <= highest
		expected = cmp.Or(expected, fmt.Sprintf("a whole number from %d to %d", lowest, highest))
	}
	if allowed := strings.Fields(tag.Get("oneof")); len(allowed) > 0 {
		valid = valid && slices.Contains(allowed, value.String())
		expected = cmp.Or(expected, "one of "+strings.Join(allowed, ", "))
	}
	if !valid && expected != "" && (len(r.errs) == errs || r.errs[errs].Key == key) {
		r.errs = r.errs[:errs]
		r.Expected(n, key, "%s", expected)
	}
}

// rangeOf is the range tag of a field.
func rangeOf(tag reflect.StructTag) (lowest, highest int64, ok bool) {
	low, high, ok := strings.Cut(tag.Get("range"), "..")
	lowest, lowErr := strconv.ParseInt(low, 10, 64)
	highest, highErr := strconv.ParseInt(high, 10, 64)
	return lowest, highest, ok && lowErr == nil && highErr == nil
}

// entriesOf counts the entries of a list or a mapping; it is -1 for another node.
func entriesOf(n *yaml.Node) int64 {
	switch n.Kind {
	case yaml.SequenceNode:
		return int64(len(n.Content))
	case yaml.MappingNode:
		return int64(len(n.Content) / 2)
	}
	return -1
}
