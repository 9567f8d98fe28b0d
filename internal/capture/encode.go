package capture

import (
	"encoding/hex"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// encode returns the YAML node of a value, on one line and as strictyaml reads it. The value is a
// slice, a struct, an array, text, a number, or true or false; an encoder encodes itself.
func encode(value any) *yaml.Node { return encodeValue(reflect.ValueOf(value)) }

// encoder is a value with a YAML form of its own.
type encoder interface{ EncodeYAML() *yaml.Node }

func encodeValue(v reflect.Value) *yaml.Node {
	var n yaml.Node

	if own, ok := v.Interface().(encoder); ok {
		return own.EncodeYAML()
	}

	switch v.Kind() {
	case reflect.Slice:
		n = yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for i := range v.Len() {
			n.Content = append(n.Content, encodeValue(v.Index(i)))
		}

		return &n
	case reflect.Struct:
		m := mapping()

		for i := range v.NumField() {
			if name := strictyaml.KeyOf(v.Type().Field(i)); name != "" {
				m.Content = append(m.Content, encode(name), encodeValue(v.Field(i)))
			}
		}

		return m
	case reflect.Array:
		return encode(arrayText(v))
	case reflect.String:
		n.SetString(strings.ToValidUTF8(v.String(), "\uFFFD"))
		return &n
	case reflect.Float64:
		v = reflect.ValueOf(v.Float() + 0) // not -0, which YAML reads as a whole number
	}

	if err := n.Encode(v.Interface()); err != nil {
		n.SetString(err.Error()) // does not happen with the types of a recording
	}

	return &n
}

// mapping returns a mapping on one line. It is given keys and values in turn; a value may be a node.
func mapping(keysAndValues ...any) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}

	for _, part := range keysAndValues {
		n, ok := part.(*yaml.Node)
		if !ok {
			n = encode(part)
		}

		m.Content = append(m.Content, n)
	}

	return m
}

// arrayText returns the text in an array of C characters, which it may fill without a NUL, or the
// bytes of an array in hexadecimal.
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
