package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// Types of a recording that have invalid values. Valid reports whether a value is valid, and what
// was expected. Types that are written as names check them in UnmarshalText, whose error says what
// was expected.
type (
	pollTimes   []time.Duration
	pollNumber  int    // counted from 0
	gpuName     string // a GPU of the recording
	handleCount int    // how many handles there are
	slot        string // the position of a GPU instance in the driver's lists: PROFILE/POSITION
	code        nvml.Return
	eventType   uint64
)

// maxHandles bounds a list of GPUs or GPU instances; real ones have less than a tenth of it.
const maxHandles = 1 << 10

func (p pollTimes) Valid(any) (bool, string) {
	return len(p) > 0 && p[0] == 0, "the times of one poll or more, the first 0s"
}

func (p pollNumber) Valid(root any) (bool, string) {
	last := root.(*Recording).lastPoll()
	return p >= 0 && p <= last, fmt.Sprintf("at most %d, the last poll", last)
}

// lastPoll returns the number of the last poll, or 0 if the polls could not be read.
func (r *Recording) lastPoll() pollNumber { return pollNumber(max(len(r.Recorded.Polls)-1, 0)) }

func (g gpuName) Valid(root any) (bool, string) {
	return root.(*Recording).Recorded.GPUs[g] != nil, "one of the recorded gpus"
}

func (c handleCount) Valid(any) (bool, string) {
	return c >= 0 && c <= maxHandles, fmt.Sprintf("a number of handles, at most %d", maxHandles)
}

// slotOf returns the slot of a position in the list of a profile. When the driver returns a handle,
// we know nothing else of it.
func slotOf(profile uint32, position int) slot {
	return slot(fmt.Sprintf("%d/%d", profile, position))
}

func (s slot) Valid(any) (bool, string) {
	var profile uint32
	var position int
	_, err := fmt.Sscanf(string(s), "%d/%d", &profile, &position)
	valid := err == nil && slotOf(profile, position) == s && position >= 0 && position < maxHandles

	return valid, "a profile id and a position in its list, such as 9/0"
}

func (e eventRecord) Valid(any) (bool, string) {
	return (e.Error == 0) != (e.Event == nil), "either an event or an error"
}

// MarshalText returns NVML's name of a code, without NVML_ERROR_, or its number: drivers have codes
// that headers do not.
func (c code) MarshalText() ([]byte, error) {
	if c < 0 {
		return []byte(strconv.Itoa(int(c))), nil
	}

	return []byte(returnNames.name(uint64(c))), nil
}

// UnmarshalText reads a code other than SUCCESS.
func (c *code) UnmarshalText(text []byte) error {
	v, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil {
		named, _ := returnNames.value(string(text))
		v = int64(named)
	}

	if v == 0 || v != int64(int32(v)) {
		return errors.New("a code of NVML such as NOT_SUPPORTED, or its number")
	}

	*c = code(v)

	return nil
}

// MarshalText returns NVML's name of the type, or its number.
func (e eventType) MarshalText() ([]byte, error) { return []byte(eventNames.name(uint64(e))), nil }

// UnmarshalText reads the name of a type, or its number.
func (e *eventType) UnmarshalText(text []byte) error {
	v, ok := eventNames.value(string(text))
	if !ok {
		return errors.New("a type of event such as XID_CRITICAL_ERROR, or its number")
	}

	*e = eventType(v)

	return nil
}

// okText is the answer of a call that returns a code and nothing else.
const okText = "ok"

// EncodeYAML writes ok.
func (none) EncodeYAML() *yaml.Node { return encode(okText) }

// DecodeYAML reads ok.
func (*none) DecodeYAML(r *strictyaml.Reader, n *yaml.Node, key string) {
	if n.Kind != yaml.ScalarNode || n.Value != okText {
		r.Expected(n, key, "ok or {error: CODE}")
	}
}

// fieldValue is a value of nvmlDeviceGetFieldValues: its nvmlValueType_t, and its bytes in memory.
// A file has only as many bytes as the type.
type fieldValue struct {
	kind  uint32
	bytes [8]byte
}

// newValue returns a pointer to a zero value of the field's type, or of 8 bytes for an unknown
// type.
func (f fieldValue) newValue() any {
	// In the order of the value types, from VALUE_TYPE_DOUBLE on.
	byType := []any{
		new(float64),
		new(uint32),
		new(uint64),
		new(uint64),
		new(int64),
		new(int32),
		new(uint16),
	}
	if int(f.kind) < len(byType) {
		return byType[f.kind]
	}

	return new([8]byte)
}

// EncodeYAML writes the value with its type, {UNSIGNED_INT: 45}.
func (f fieldValue) EncodeYAML() *yaml.Node {
	value := f.newValue()
	_, _ = binary.Decode(f.bytes[:], binary.NativeEndian, value) // cannot fail: no type is longer

	return mapping(valueTypeNames.name(uint64(f.kind)), reflect.ValueOf(value).Elem().Interface())
}

// DecodeYAML reads what EncodeYAML writes.
func (f *fieldValue) DecodeYAML(r *strictyaml.Reader, n *yaml.Node, key string) {
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 {
		r.Expected(n, key, "a value with its type, such as {UNSIGNED_INT: 45}")
		return
	}

	name := n.Content[0]
	value := n.Content[1]
	key += "." + name.Value

	kind, ok := valueTypeNames.value(name.Value)
	if !ok || kind > math.MaxUint32 {
		r.Fail(name, key, "is no type of a field's value; expected one such as UNSIGNED_INT")
		return
	}

	f.kind = uint32(kind)
	v := f.newValue()
	r.Decode(value, key, v)
	_, _ = binary.Encode(f.bytes[:], binary.NativeEndian, v) // cannot fail: no type is longer
}

// fillFields records or replays each field separately: which fields are read together varies. The
// timestamps of the values are not recorded, since they are not used.
func fillFields(e *entity, c nvmlsource.Call) {
	for i := range c.Fields {
		v := &c.Fields[i]

		// The scope is one link, or all of them.
		scope := numbers.name(uint64(v.ScopeId))
		call := callOf(c.Function, fieldNames.name(uint64(v.FieldId)), scope)

		field := fieldValue{v.ValueType, v.Value}
		value, ret := recordOrReplayPart(e, call, field, nvml.Return(int32(v.NvmlReturn)))
		v.NvmlReturn = uint32(ret)
		v.ValueType = value.kind
		v.Value = value.bytes
	}
}
