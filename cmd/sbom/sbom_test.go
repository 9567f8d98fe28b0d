package main

import (
	"debug/buildinfo"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/testbuild"
)

// build builds a program of this module.
func build(t *testing.T, name string) string {
	t.Helper()

	dir, err := testbuild.Programs()
	if err != nil {
		t.Fatal(err)
	}

	return filepath.Join(dir, name)
}

// TestOfAProgram: the document has every module that the program itself lists, with its checksum
// and a license, and the standard library; the texts have the license of each. A second run gives
// the same bytes.
func TestOfAProgram(t *testing.T) {
	program := build(t, "migctl")

	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}

	if len(info.Deps) < 10 {
		t.Fatalf("the program has %d modules: it is no good example", len(info.Deps))
	}

	var documents, texts []string

	for range 2 {
		dir := t.TempDir()

		sbom := filepath.Join(dir, "sbom.json")

		licenses := filepath.Join(dir, "licenses")
		if err := run([]string{"-version=1.2.3", "-sbom=" + sbom, "-licenses=" + licenses, program}, io.Discard); err != nil {
			t.Fatal(err)
		}

		documents, texts = append(documents, read(t, sbom)), append(texts, read(t, licenses))
	}

	cmptest.Equal(t, "second document", documents[1], documents[0])
	cmptest.Equal(t, "second texts", texts[1], texts[0])

	var d document
	if err := json.Unmarshal([]byte(documents[0]), &d); err != nil {
		t.Fatal(err)
	}

	byName := map[string]component{}
	for _, c := range d.Components {
		byName[c.Name] = c
	}

	cmptest.Equal(t, "components", len(byName), len(info.Deps)+1)
	cmptest.Equal(t, "dependencies of the product", len(d.Dependencies[0].DependsOn), len(info.Deps)+1)

	for _, m := range info.Deps {
		c := byName[m.Path]
		cmptest.Equal(t, "version of "+m.Path, c.Version, m.Version)

		if len(c.Hashes) != 1 || len(c.Hashes[0].Content) != 64 {
			t.Errorf("hashes of %s are %+v, want one of 64 digits", m.Path, c.Hashes)
		}

		if len(c.Licenses) == 0 {
			t.Errorf("%s has no license", m.Path)
		}

		if !strings.Contains(texts[0], "\n"+m.Path+" "+m.Version+" (") {
			t.Errorf("the texts lack module %s", m.Path)
		}
	}

	cmptest.Equal(t, "version of the standard library", byName["std"].Version, strings.TrimPrefix(info.GoVersion, "go"))

	for _, want := range []string{"TERMS AND CONDITIONS FOR USE", "Copyright 2009 The Go Authors", "SoundCloud Ltd."} {
		if !strings.Contains(texts[0], want) {
			t.Errorf("the texts lack %q", want)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

func TestIdentify(t *testing.T) {
	const (
		apache = "Apache License\n  Version 2.0, January 2004\n"
		mit    = "Permission is hereby granted, free\nof charge, to any person obtaining a copy of this software"
		bsd    = "Redistribution and use in source and binary forms, with or without modification"
		third  = "Neither the name may be used to endorse or promote\n products derived from it"
		isc    = "Permission to use, copy, modify, and distribute this software for any\npurpose with or without fee"
	)

	for text, want := range map[string][]string{
		apache:         {"Apache-2.0"},
		mit:            {"MIT"},
		bsd:            {"BSD-2-Clause"},
		bsd + third:    {"BSD-3-Clause"},
		isc:            {"ISC"},
		mit + apache:   {"Apache-2.0", "MIT"},
		"All rights.":  nil,
		"GNU GENERAL ": nil,
	} {
		cmptest.Equal(t, text, identifyLicenses(text), want)
	}
}

// TestUnknownLicenses: no document is made of a module whose license is unknown, or that has a
// notice alone.
func TestUnknownLicenses(t *testing.T) {
	for name, files := range map[string][]licenseFile{
		"unknown":     {{name: "LICENSE", text: "All rights reserved."}},
		"second":      {{name: "LICENSE", text: "http://www.apache.org/licenses/LICENSE-2.0"}, {name: "a/COPYING", text: "?"}},
		"notice only": {{name: "NOTICE", text: "http://www.apache.org/licenses/LICENSE-2.0"}},
	} {
		if out, err := newSBOM("p", "1", []module{{path: "m", files: files}}, nil); err == nil {
			t.Errorf("%s: no error, but\n%s", name, out)
		}
	}

	if err := run([]string{"-version=1"}, io.Discard); err == nil {
		t.Error("no error without programs")
	}
}

// TestPackages: packages are components with the package URLs that scanners know, and no license of
// ours to tell.
func TestPackages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "packages")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("debian libstdc++6 12.2.0-14+deb12u1 amd64 debian-12 gcc-12\n" +
		"nvidia datacenter-gpu-manager-4-core 1:4.2.3~1 amd64\n" +
		"debian ca-certificates 20230311 all debian-12 ca-certificates\n")

	packages, err := readPackages(path)
	if err != nil {
		t.Fatal(err)
	}

	text, err := newSBOM("p", "1", nil, packages)
	if err != nil {
		t.Fatal(err)
	}

	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}

	var purls []string

	for _, c := range d.Components {
		cmptest.Equal(t, "reference of "+c.Name, c.Ref, c.PURL)
		purls = append(purls, c.PURL)
	}

	want := []string{
		"pkg:deb/debian/ca-certificates@20230311?arch=all&distro=debian-12",
		"pkg:deb/nvidia/datacenter-gpu-manager-4-core@1%3A4.2.3~1?arch=amd64",
		"pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12&upstream=gcc-12",
	}
	cmptest.Equal(t, "package URLs", purls, want)
	cmptest.Equal(t, "dependencies of the product", d.Dependencies[0].DependsOn, want)

	if strings.Contains(string(text), "null") || strings.Count(string(text), `"licenses"`) != 1 {
		t.Errorf("a license of a package:\n%s", text)
	}

	write("debian libc6 2.36-9\n")

	if _, err := readPackages(path); err == nil {
		t.Error("no error for a package without architecture")
	}
}
