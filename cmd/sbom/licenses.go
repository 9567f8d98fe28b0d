package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// identifyLicenses returns the SPDX identifiers of the licenses in a text, which can have several.
// Each is recognized by a sentence that it always has.
func identifyLicenses(text string) []string {
	words := strings.Join(strings.Fields(text), " ")
	has := func(part string) bool { return strings.Contains(words, part) }

	var ids []string
	if has("Apache License Version 2.0, January 2004") ||
		has("http://www.apache.org/licenses/LICENSE-2.0") {
		ids = append(ids, "Apache-2.0")
	}

	if has("Redistribution and use in source and binary forms") {
		if has("to endorse or promote products") {
			ids = append(ids, "BSD-3-Clause")
		} else {
			ids = append(ids, "BSD-2-Clause")
		}
	}

	if has("Permission to use, copy, modify, and/or distribute this software for any purpose") ||
		has("Permission to use, copy, modify, and distribute this software for any purpose") {
		ids = append(ids, "ISC")
	}

	if has("Permission is hereby granted, free of charge, to any person obtaining a copy") {
		ids = append(ids, "MIT")
	}

	return ids
}

// isNotice reports whether a file goes with a license but is none: a notice, patent grant or list of
// authors.
func (f licenseFile) isNotice() bool {
	base := strings.ToUpper(f.name[strings.LastIndex(f.name, "/")+1:])

	return strings.HasPrefix(base, "NOTICE") || strings.HasPrefix(base, "PATENTS") ||
		strings.HasPrefix(base, "AUTHORS")
}

// licenses returns the SPDX identifiers of a module. It is an error if a license is unknown.
func (m *module) licenses() ([]string, error) {
	var ids []string

	for _, f := range m.files {
		if f.isNotice() {
			continue
		}

		known := identifyLicenses(f.text)
		if len(known) == 0 {
			return nil, fmt.Errorf(
				"module %s: the license in %s is not known: expected a text that identify knows",
				m.path,
				f.name,
			)
		}

		ids = append(ids, known...)
	}

	if len(ids) == 0 {
		return nil, fmt.Errorf("module %s has no license", m.path)
	}

	slices.Sort(ids)

	return slices.Compact(ids), nil
}

// licenseTexts returns the texts of all license files. A text that several modules have is there
// once, below the names of all of them.
func licenseTexts(name string, modules []module) []byte {
	owners := map[string][]string{} // by text
	var texts []string              // in the order of their first owner

	for _, m := range modules {
		for _, f := range m.files {
			if owners[f.text] == nil {
				texts = append(texts, f.text)
			}

			owners[f.text] = append(
				owners[f.text],
				fmt.Sprintf("%s %s (%s)", m.path, m.version, f.name),
			)
		}
	}

	line := strings.Repeat("=", 80)
	var b bytes.Buffer
	fmt.Fprintf(
		&b,
		"The programs of %s contain the Go modules below. These are their licenses and notices.\n",
		name,
	)

	for _, text := range texts {
		fmt.Fprintf(
			&b,
			"\n%s\n%s\n%s\n\n%s\n",
			line,
			strings.Join(owners[text], "\n"),
			line,
			strings.TrimSpace(text),
		)
	}

	return b.Bytes()
}
