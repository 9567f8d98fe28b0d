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
	wanted := words(name)
	if len(wanted) == 0 {
		return Model{}, false
	}

	var short []Model

	for _, m := range Models() {
		leads := false

		for _, known := range append([]string{m.Name}, m.Aliases...) {
			have := words(known)
			if slices.Equal(have, wanted) {
				return m, true
			}

			leads = leads || len(have) > len(wanted) && slices.Equal(have[:len(wanted)], wanted)
		}

		if leads {
			short = append(short, m)
		}
	}

	if len(short) != 1 {
		return Model{}, false
	}

	return short[0], true
}

// words splits a model's name into its letters-and-digits words, in lower case.
func words(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}
