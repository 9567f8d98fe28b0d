// Package cmptest compares values and texts in tests and says what differs.
package cmptest

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Equal fails the test, which continues, unless got equals want. The message names what was
// compared and lists the fields that differ. Unexported fields count; errors are equal if errors.Is
// reports so.
func Equal[T any](t testing.TB, what string, got, want T, options ...cmp.Option) {
	t.Helper()

	options = append(
		options,
		cmp.Exporter(func(reflect.Type) bool { return true }),
		cmpopts.EquateErrors(),
	)
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// HasTexts fails the test, which continues, for each part that is missing in text.
func HasTexts(t testing.TB, text string, parts ...string) {
	t.Helper()

	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

// LacksTexts fails the test, which continues, for each part that text contains.
func LacksTexts(t testing.TB, text string, parts ...string) {
	t.Helper()

	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("%q is in:\n%s", part, text)
		}
	}
}
