package capture

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"reflect"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"
)

// decode reads a value of one of the questions' types, as encode writes it.
func (r *reader) decode(n *yaml.Node, key string, t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	r.decodeInto(v, n, key)
	return v
}

func (r *reader) decodeInto(v reflect.Value, n *yaml.Node, key string) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.boolean(n, key))
	case reflect.String:
		v.SetString(r.text(n, key))
	case reflect.Float64:
		v.SetFloat(r.float(n, key))
	case reflect.Slice:
		for i, item := range r.list(n, key) {
			v.Set(reflect.Append(v, r.decode(item, key+"["+strconv.Itoa(i)+"]", v.Type().Elem())))
		}
	case reflect.Array:
		r.decodeCString(v, n, key)
	case reflect.Struct:
		r.decodeStruct(v, n, key)
	default:
		if v.CanUint() {
			v.SetUint(r.unsigned(n, key, v.Type().Bits()))
		} else {
			v.SetInt(r.signed(n, key, v.Type().Bits()))
		}
	}
}

func (r *reader) float(n *yaml.Node, key string) float64 {
	v, err := strconv.ParseFloat(r.text(n, key), 64)
	if err != nil {
		r.fail(n, key, "is %s; expected a number in quotes", kindOf(n))
	}
	return v
}

func (r *reader) decodeCString(v reflect.Value, n *yaml.Node, key string) {
	text := r.text(n, key)
	if len(text) > v.Len() {
		r.fail(n, key, "is %d bytes long; NVML has room for %d", len(text), v.Len())
		return
	}
	for i := range len(text) {
		v.Index(i).SetInt(int64(int8(text[i])))
	}
}

func (r *reader) decodeStruct(v reflect.Value, n *yaml.Node, key string) {
	if v.Type() == reflect.TypeFor[fieldValue]() {
		v.Set(reflect.ValueOf(r.decodeField(n, key)))
		return
	}
	if v.NumField() == 0 {
		if n.Kind != yaml.ScalarNode || n.Value != okText {
			r.fail(n, key, "is %s; expected ok or {error: CODE}", kindOf(n))
		}
		return
	}
	var names []string
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; !isPadding(name) {
			names = append(names, snake(name))
		}
	}
	o := r.object(n, key, names...)
	for i := range v.NumField() {
		name := snake(v.Type().Field(i).Name)
		if at := o.fields[name]; at != nil {
			r.decodeInto(v.Field(i), at, o.sub(name))
		}
	}
}

// decodeField reads a field's value with its type, {unsigned_int: 45}.
func (r *reader) decodeField(n *yaml.Node, key string) fieldValue {
	const expected = "a value with its type, such as {unsigned_int: 45}"
	if !r.mapping(n, key, expected) {
		return fieldValue{}
	}
	if len(n.Content) != 2 {
		r.fail(n, key, "has %d keys; expected %s", len(n.Content)/2, expected)
		return fieldValue{}
	}
	name, value := n.Content[0], n.Content[1]
	kind, ok := fieldKinds().value(name.Value)
	if !ok || kind > math.MaxUint32 {
		r.fail(name, key+"."+name.Value, "is no type of a field's value; expected one such as unsigned_int")
		return fieldValue{}
	}
	f := fieldValue{kind: uint32(kind)}
	key += "." + name.Value
	var raw [8]byte
	switch nvml.ValueType(int32(f.kind)) {
	case nvml.VALUE_TYPE_DOUBLE:
		f.bits = math.Float64bits(r.float(value, key))
		return f
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		binary.NativeEndian.PutUint32(raw[:4], uint32(r.unsigned(value, key, 32)))
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		f.bits = r.unsigned(value, key, 64)
		return f
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		f.bits = uint64(r.signed(value, key, 64))
		return f
	case nvml.VALUE_TYPE_SIGNED_INT:
		binary.NativeEndian.PutUint32(raw[:4], uint32(int32(r.signed(value, key, 32))))
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		binary.NativeEndian.PutUint16(raw[:2], uint16(r.unsigned(value, key, 16)))
	default:
		b, err := hex.DecodeString(r.text(value, key))
		if err != nil || len(b) != len(raw) {
			r.fail(value, key, "is %s; expected 8 bytes in hexadecimal", kindOf(value))
			return f
		}
		copy(raw[:], b)
	}
	f.bits = binary.NativeEndian.Uint64(raw[:])
	return f
}
