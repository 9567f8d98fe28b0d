package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Selector names a GPU: its index, UUID or PCI bus id, or "all". In JSON it is a string or a whole
// number.
type Selector string

// UnmarshalJSON reads a string or an index.
func (s *Selector) UnmarshalJSON(data []byte) error {
	if text, ok := jsonString(data); ok && text != "" {
		*s = Selector(text)
		return nil
	}

	n, ok := wholeNumber(data, math.MaxInt32)
	if !ok {
		return errors.New(`a GPU: expected its index, UUID, PCI bus id or "all"`)
	}

	*s = Selector(strconv.FormatUint(n, 10))

	return nil
}

// DeviceList is mig-parted's list of GPUs: "all", or indexes.
type DeviceList struct {
	All     bool
	Indexes []int // nil if All is set
}

// UnmarshalJSON reads "all" or a list of indexes.
func (d *DeviceList) UnmarshalJSON(data []byte) error {
	if text, ok := jsonString(data); ok && text == "all" {
		*d = DeviceList{All: true}
		return nil
	}

	wrong := errors.New(`expected "all" or a list of indexes of GPUs, such as [0, 1]`)

	var items []json.RawMessage
	if isNull(data) || json.Unmarshal(data, &items) != nil {
		return wrong
	}

	list := DeviceList{Indexes: make([]int, 0, len(items))}
	for _, item := range items {
		n, ok := wholeNumber(item, math.MaxInt32)
		if !ok {
			return wrong
		}

		list.Indexes = append(list.Indexes, int(n))
	}

	*d = list

	return nil
}

// MarshalJSON writes "all" or the list.
func (d DeviceList) MarshalJSON() ([]byte, error) {
	if d.All {
		return []byte(`"all"`), nil
	}

	if d.Indexes == nil {
		return []byte("[]"), nil
	}

	return json.Marshal(d.Indexes)
}

// Strings is one string or a list of them.
type Strings []string

// UnmarshalJSON reads a string or a list of strings.
func (s *Strings) UnmarshalJSON(data []byte) error {
	if text, ok := jsonString(data); ok {
		*s = Strings{text}
		return nil
	}

	wrong := errors.New("expected a string or a list of strings")

	var items []json.RawMessage
	if isNull(data) || json.Unmarshal(data, &items) != nil {
		return wrong
	}

	list := make(Strings, 0, len(items))
	for _, item := range items {
		text, ok := jsonString(item)
		if !ok {
			return wrong
		}

		list = append(list, text)
	}

	*s = list

	return nil
}

// MarshalJSON writes a single string as such.
func (s Strings) MarshalJSON() ([]byte, error) {
	if len(s) == 1 {
		return json.Marshal(s[0])
	}

	return json.Marshal([]string(s))
}

// Bytes is a number of bytes: in JSON a whole number, or a string with a unit ("12GiB", "20GB").
type Bytes uint64

// UnmarshalJSON reads a whole number or a size with a unit.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if n, ok := wholeNumber(data, math.MaxInt64); ok {
		*b = Bytes(n)
		return nil
	}

	text, ok := jsonString(data)
	if !ok {
		return errors.New(`expected a number of bytes or a size such as "12GiB" or "20GB"`)
	}

	n, err := ParseBytes(text)
	if err != nil {
		return err
	}

	*b = n

	return nil
}

// ParseBytes reads a number of bytes, with a unit of 1024 (KiB, MiB, GiB, TiB) or 1000 (kB, MB, GB,
// TB) or none.
func ParseBytes(s string) (Bytes, error) {
	digits := s
	factor := uint64(1)

	for _, unit := range []struct {
		suffix string
		factor uint64
	}{
		{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
		{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
	} {
		if before, ok := strings.CutSuffix(s, unit.suffix); ok {
			digits = strings.TrimRight(before, " ")
			factor = unit.factor
			break
		}
	}

	n, ok := wholeNumber([]byte(digits), math.MaxInt64/factor)
	if !ok {
		return 0, fmt.Errorf(
			`size %.40q: expected a whole number of bytes, or one with a unit, such as "12GiB" or "20GB"`,
			s,
		)
	}

	return Bytes(n * factor), nil
}

// UnmarshalJSON reads a count, an object with one, or a list of these.
func (d *DeviceRequest) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '[' {
		return d.unmarshalOne(data)
	}

	var items []json.RawMessage
	if err := json.Unmarshal(data, &items); err != nil {
		return err
	}

	if len(items) == 0 {
		return errors.New(
			"an empty list: expected counts or objects, each for instances that are split alike",
		)
	}

	list := DeviceRequest{Each: make([]DeviceRequest, len(items))}
	for i, item := range items {
		if err := list.Each[i].unmarshalOne(item); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}

	*d = list

	return nil
}

func (d *DeviceRequest) unmarshalOne(data []byte) error {
	if n, ok := wholeNumber(data, math.MaxInt32); ok {
		*d = DeviceRequest{Count: int(n)}
		return nil
	}

	if len(data) == 0 || data[0] != '{' {
		return errors.New(`expected a count of 0 or more, or {"count": 1, "compute": ["1c", "2c"]}`)
	}

	type plain DeviceRequest // has no UnmarshalJSON, so that decoding does not call this method again

	request := plain{Count: 1}
	if err := strictly(data, &request); err != nil {
		return err
	}

	*d = DeviceRequest(request)

	return nil
}

// UnmarshalJSON reads a need. If it has no count, that is 1.
func (n *Need) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '{' {
		return errors.New(`expected a need such as {"memory": "12GiB", "sms": 20, "count": 3}`)
	}

	type plain Need // without UnmarshalJSON

	need := plain{Count: 1}
	if err := strictly(data, &need); err != nil {
		return err
	}

	*n = Need(need)

	return nil
}

// strictly decodes data and refuses unknown keys. DisallowUnknownFields of an outer decoder has no
// effect within a type that has an UnmarshalJSON of its own.
func strictly(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()

	return decoder.Decode(into)
}

// MarshalJSON writes a list, or a number if the request says nothing about compute instances.
func (d DeviceRequest) MarshalJSON() ([]byte, error) {
	if d.Each != nil {
		return json.Marshal(d.Each)
	}

	if d.Compute == nil {
		return json.Marshal(d.Count)
	}

	type request struct {
		Count   int      `json:"count"`
		Compute []string `json:"compute"` // an empty list means none
	}

	return json.Marshal(request{d.Count, d.Compute})
}

func isNull(data []byte) bool { return string(bytes.TrimSpace(data)) == "null" }

func jsonString(data []byte) (string, bool) {
	var s string
	if len(data) == 0 || data[0] != '"' || json.Unmarshal(data, &s) != nil {
		return "", false
	}

	return s, true
}

// wholeNumber reads a decimal number without sign, fraction or exponent.
func wholeNumber(data []byte, most uint64) (uint64, bool) {
	n, err := strconv.ParseUint(string(data), 10, 64) // takes no sign
	return n, err == nil && n <= most
}
