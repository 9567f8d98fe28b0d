package main

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestManPage: whatis finds a summary, and each flag names its variable.
func TestManPage(t *testing.T) {
	page, _, code := runBinary(t, nil, "--help-man")
	cmptest.Equal(t, "exit code", code, exitOK)
	cmptest.HasTexts(t, page, ".SH \"NAME\"\nmig-exporter \\- export metrics of NVIDIA GPUs", ".SH \"FILES\"")

	for _, f := range allFlags() {
		if f.Envar != "" {
			cmptest.HasTexts(t, page, "($"+f.Envar+")")
		}
	}
}
