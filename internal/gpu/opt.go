package gpu

import "encoding/json"

// Opt is a value that may be absent. The zero Opt is absent. A reading that the hardware does not
// offer is an absent Opt, never 0 or -1.
type Opt[T any] struct {
	value T
	ok    bool
}

// Some returns a present value.
func Some[T any](v T) Opt[T] { return Opt[T]{value: v, ok: true} }

// None returns an absent value.
func None[T any]() Opt[T] { return Opt[T]{} }

// Get returns the value and whether it is present.
func (o Opt[T]) Get() (T, bool) { return o.value, o.ok }

// Present reports whether there is a value.
func (o Opt[T]) Present() bool { return o.ok }

// Or returns the value, or other if it is absent.
func (o Opt[T]) Or(other T) T {
	if o.ok {
		return o.value
	}

	return other
}

// IsZero makes `omitzero` leave an absent value out of JSON; a present zero stays.
func (o Opt[T]) IsZero() bool { return !o.ok }

// MarshalJSON encodes the value, or null if it is absent.
func (o Opt[T]) MarshalJSON() ([]byte, error) {
	if !o.ok {
		return []byte("null"), nil
	}

	return json.Marshal(o.value)
}

// UnmarshalJSON decodes a value. From null, o becomes absent.
func (o *Opt[T]) UnmarshalJSON(b []byte) error {
	*o = Opt[T]{}

	if string(b) == "null" {
		return nil
	}

	if err := json.Unmarshal(b, &o.value); err != nil {
		return err
	}

	o.ok = true

	return nil
}
