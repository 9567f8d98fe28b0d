package secretfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// write writes a file with a text and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

func TestSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"s3cret":                      "s3cret",
		" s3cret\r\n":                 "s3cret",
		"with space\n":                "with space",
		"a\tb":                        "a\tb",
		strings.Repeat("x", maxBytes): strings.Repeat("x", maxBytes),
	} {
		got, err := ReadToken(write(t, text))
		if err != nil || got != want {
			t.Errorf("%.20q: got %.20q, %v", text, got, err)
		}
	}
}

// TestUnusableFiles: the error names the file and what was expected, and nothing of what is in it.
func TestUnusableFiles(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "is empty: expected a secret",
		" \n\t":                         "is empty: expected a secret",
		"s3cret\x00":                    "expected a token in one line, without control characters",
		"s3cret\ns3cret":                "expected a token in one line, without control characters",
		"s3cret\x7f":                    "expected a token in one line, without control characters",
		strings.Repeat("x", maxBytes+1): "expected a secret of at most 64 KiB",
	} {
		path := write(t, text)

		_, err := ReadToken(path)
		if err == nil {
			t.Errorf("%.20q: no error", text)
			continue
		}

		cmptest.HasTexts(t, err.Error(), path, want)
		cmptest.LacksTexts(t, err.Error(), "s3cret")
	}

	if _, err := ReadToken("/dev/zero"); err == nil {
		t.Error("/dev/zero: no error")
	}

	if _, err := ReadToken(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}

	// A password may have more than one line: it is not sent as it is.
	if got, err := Read(write(t, "two\nlines\n")); err != nil || got != "two\nlines" {
		t.Errorf("a password of two lines: %q, %v", got, err)
	}
}
