package capture

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"reflect"
	"strings"
	"unicode"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"
)

// NVML's structs are written on one line, with their fields' names in snake case and arrays of C characters as text.

const okText = "ok" // an answer that is nothing but success

// mapping is a mapping of keys to nodes, which are given in turn.
func mapping(keysAndNodes ...any) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	for _, part := range keysAndNodes {
		n, ok := part.(*yaml.Node)
		if !ok {
			n = encode(reflect.ValueOf(part))
		}
		m.Content = append(m.Content, n)
	}
	return m
}

// encode writes an answer.
func encode(v reflect.Value) *yaml.Node {
	var n yaml.Node
	switch v.Kind() {
	case reflect.Slice:
		n = yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for i := range v.Len() {
			n.Content = append(n.Content, encode(v.Index(i)))
		}
		return &n
	case reflect.Struct:
		return encodeStruct(v)
	case reflect.Array:
		return encode(reflect.ValueOf(arrayText(v)))
	case reflect.String:
		n.SetString(strings.ToValidUTF8(v.String(), "\uFFFD"))
		return &n
	case reflect.Float64:
		v = reflect.ValueOf(v.Float() + 0) // not -0, which YAML reads as a whole number
	}
	if err := n.Encode(v.Interface()); err != nil {
		n.SetString(err.Error()) // no such type in NVML
	}
	return &n
}

func encodeStruct(v reflect.Value) *yaml.Node {
	if f, ok := v.Interface().(fieldValue); ok {
		value := f.newValue()
		if _, err := binary.Decode(f.bytes[:], binary.NativeEndian, value); err != nil {
			value = &f.bytes // not reached: no type is longer
		}
		return mapping(valueTypeNames.name(uint64(f.kind)), encode(reflect.ValueOf(value).Elem()))
	}
	if v.NumField() == 0 {
		return encode(reflect.ValueOf(okText))
	}
	m := mapping()
	for i := range v.NumField() {
		if name := keyOf(v.Type().Field(i)); name != "" {
			m.Content = append(m.Content, encode(reflect.ValueOf(name)), encode(v.Field(i)))
		}
	}
	return m
}

// arrayText is the text in an array of C characters, which it may fill without a NUL; bytes are written as hexadecimal.
func arrayText(v reflect.Value) string {
	var b []byte
	if v.Type().Elem().Kind() == reflect.Uint8 {
		for i := range v.Len() {
			b = append(b, byte(v.Index(i).Uint()))
		}
		return hex.EncodeToString(b)
	}
	for i := range v.Len() {
		b = append(b, byte(v.Index(i).Int()))
	}
	text, _, _ := strings.Cut(string(b), "\x00")
	return text
}

func (r *reader) array(n *yaml.Node, key string, v reflect.Value) {
	text := r.text(n, key)
	if v.Type().Elem().Kind() == reflect.Uint8 {
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != v.Len() {
			r.fail(n, key, "is %s; expected %d bytes in hexadecimal", kindOf(n), v.Len())
			return
		}
		reflect.Copy(v, reflect.ValueOf(b))
		return
	}
	if len(text) > v.Len() {
		r.fail(n, key, "is %d bytes long; NVML has room for %d", len(text), v.Len())
		return
	}
	for i := range len(text) {
		v.Index(i).SetInt(int64(int8(text[i])))
	}
}

// keyOf is the key of a struct's field: of its tag, or memory_size_mb for MemorySizeMB. go-nvml's structs have the
// compiler's padding as fields, which have none.
func keyOf(f reflect.StructField) string {
	if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name != "" {
		return name
	}
	if strings.HasPrefix(f.Name, "Pad_cgo_") {
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

// fieldValue is a value of nvmlDeviceGetFieldValues: its nvmlValueType_t, and its bytes as they lie in memory. Those
// beyond the type's are left out of a file.
type fieldValue struct {
	kind  uint32
	bytes [8]byte
}

// newValue returns a pointer to a zero value of the field's type, to the bytes for a type that is not known here.
func (f fieldValue) newValue() any {
	switch nvml.ValueType(int32(f.kind)) {
	case nvml.VALUE_TYPE_DOUBLE:
		return new(float64)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return new(uint32)
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return new(uint64)
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return new(int64)
	case nvml.VALUE_TYPE_SIGNED_INT:
		return new(int32)
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return new(uint16)
	}
	return new([8]byte)
}

// fieldValue reads a field's value with its type, {UNSIGNED_INT: 45}.
func (r *reader) fieldValue(n *yaml.Node, key string) (f fieldValue) {
	const expected = "a value with its type, such as {UNSIGNED_INT: 45}"
	if !r.isMapping(n, key, expected) {
		return f
	}
	if len(n.Content) != 2 {
		r.fail(n, key, "has %d keys; expected %s", len(n.Content)/2, expected)
		return f
	}
	name, value := n.Content[0], n.Content[1]
	key += "." + name.Value
	kind, ok := valueTypeNames.value(name.Value)
	if !ok || kind > math.MaxUint32 {
		r.fail(name, key, "is no type of a field's value; expected one such as UNSIGNED_INT")
		return f
	}
	f.kind = uint32(kind)
	v := f.newValue()
	r.decode(value, key, reflect.ValueOf(v).Elem())
	if _, err := binary.Encode(f.bytes[:], binary.NativeEndian, v); err != nil {
		r.fail(value, key, "%v", err)
	}
	return f
}
