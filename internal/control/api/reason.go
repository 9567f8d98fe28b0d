package api

import (
	"strings"
	"unicode"
)

// MaxReason is the maximum length of a stated reason in bytes.
const MaxReason = 256

// IsReason reports whether a text can be a stated reason: one line.
func IsReason(text string) bool {
	return len(text) <= MaxReason && !strings.ContainsFunc(text, unicode.IsControl)
}
