package capture

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"
)

// NVML's structs are written with their fields' names in snake case, arrays of C characters as text.

const okText = "ok" // an answer that is nothing but success

func scalar(tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
}

func textNode(s string) *yaml.Node { return scalar("!!str", strings.ToValidUTF8(s, "\uFFFD")) }

func intNode(n int) *yaml.Node { return scalar("!!int", strconv.Itoa(n)) }

// mapping is written on one line.
type mapping struct{ node *yaml.Node }

func newMapping() mapping { return mapping{&yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}} }

func (m mapping) add(key string, value *yaml.Node) {
	m.node.Content = append(m.node.Content, textNode(key), value)
}

// encode writes a value of one of the questions' types.
func encode(v reflect.Value) *yaml.Node {
	switch v.Kind() {
	case reflect.Bool:
		return scalar("!!bool", strconv.FormatBool(v.Bool()))
	case reflect.String:
		return textNode(v.String())
	case reflect.Float64: // as text, since it may be no number
		return textNode(strconv.FormatFloat(v.Float(), 'g', -1, 64))
	case reflect.Slice:
		list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for i := range v.Len() {
			list.Content = append(list.Content, encode(v.Index(i)))
		}
		return list
	case reflect.Array:
		return textNode(cString(v))
	case reflect.Struct:
		return encodeStruct(v)
	}
	if v.CanUint() {
		return scalar("!!int", strconv.FormatUint(v.Uint(), 10))
	}
	return scalar("!!int", strconv.FormatInt(v.Int(), 10))
}

func encodeStruct(v reflect.Value) *yaml.Node {
	if f, ok := v.Interface().(fieldValue); ok {
		return encodeField(f)
	}
	if v.NumField() == 0 {
		return textNode(okText)
	}
	m := newMapping()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; !isPadding(name) {
			m.add(snake(name), encode(v.Field(i)))
		}
	}
	return m.node
}

// isPadding: go-nvml's structs have the compiler's padding as fields.
func isPadding(name string) bool { return strings.HasPrefix(name, "Pad_cgo_") }

// cString is the text in an array of C characters, which it may fill without a NUL.
func cString(v reflect.Value) string {
	var b []byte
	for i := range v.Len() {
		c := byte(v.Index(i).Int())
		if c == 0 {
			break
		}
		b = append(b, c)
	}
	return string(b)
}

// snake is memory_size_mb for MemorySizeMB.
func snake(name string) string {
	var out strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(runes[i-1]) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// fieldKinds names the types of field values.
func fieldKinds() argument {
	return named("double", "unsigned_int", "unsigned_long", "unsigned_long_long", "signed_long_long", "signed_int", "unsigned_short")
}

// encodeField writes a field's value in its type, a double as text, which may be no number; one of a type that is not known here as its bytes. Bytes beyond the
// type's are left out.
func encodeField(f fieldValue) *yaml.Node {
	var raw [8]byte
	binary.NativeEndian.PutUint64(raw[:], f.bits)
	m := newMapping()
	var value *yaml.Node
	switch nvml.ValueType(int32(f.kind)) {
	case nvml.VALUE_TYPE_DOUBLE:
		value = textNode(strconv.FormatFloat(math.Float64frombits(f.bits), 'g', -1, 64))
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		value = encode(reflect.ValueOf(binary.NativeEndian.Uint32(raw[:4])))
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		value = encode(reflect.ValueOf(f.bits))
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		value = encode(reflect.ValueOf(int64(f.bits)))
	case nvml.VALUE_TYPE_SIGNED_INT:
		value = encode(reflect.ValueOf(int32(binary.NativeEndian.Uint32(raw[:4]))))
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		value = encode(reflect.ValueOf(binary.NativeEndian.Uint16(raw[:2])))
	default:
		value = textNode(hex.EncodeToString(raw[:]))
	}
	m.add(fieldKinds().name(uint64(f.kind)), value)
	return m.node
}
