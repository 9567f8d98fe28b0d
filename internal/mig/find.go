package mig

import (
	"slices"
	"strings"
	"unicode"
)

// FindModel finds a known model by its name or one of its aliases. Case does not matter, nor does
// what separates the words ("rtx-pro-6000", "RTX PRO 6000"). Leading words suffice if only one
// model begins with them: "H200" is H200-141GB, but "H100" may be an 80, 94 or 96 GB GPU, so it
// finds none. A full name wins over such a short form: "H20" is H20-96GB by its alias.
func FindModel(name string) (Model, bool) {
	wanted := NameWords(name)
	if len(wanted) == 0 {
		return Model{}, false
	}

	var byPrefix []Model

	for _, m := range Models() {
		isPrefix := false

		for _, known := range append([]string{m.Name}, m.Aliases...) {
			full := NameWords(known)
			if slices.Equal(full, wanted) {
				return m, true
			}

			isPrefix = isPrefix ||
				len(full) > len(wanted) && slices.Equal(full[:len(wanted)], wanted)
		}

		if isPrefix {
			byPrefix = append(byPrefix, m)
		}
	}

	if len(byPrefix) != 1 {
		return Model{}, false
	}

	return byPrefix[0], true
}

// NameWords splits the name of a model into words of letters and digits, in lower case.
func NameWords(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}
