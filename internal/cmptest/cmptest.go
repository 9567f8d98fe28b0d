// Package cmptest compares values in tests and says what differs.
package cmptest

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Equal fails the test, which continues, unless got equals want. The message names what was compared and lists the
// fields that differ. Unexported fields count; errors are equal if errors.Is reports so.
func Equal[T any](t testing.TB, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	options = append(options, cmp.Exporter(func(reflect.Type) bool { return true }), cmpopts.EquateErrors())
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
