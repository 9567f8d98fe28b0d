// Package secretfile reads files with a secret: a token, a password. What cannot be one is an error here,
// with the file's name, rather than a refusal by the server that it would be sent to. No error has anything
// of what is in a file.
package secretfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxBytes bounds a file. A server takes no header that long.
const maxBytes = 64 << 10

// errNoHeader says that a token cannot be the value of an HTTP header (RFC 9110, 5.5).
var errNoHeader = errors.New("expected a token in one line, without control characters")

// Read returns the secret in a file, without the white space around it.
func Read(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()

	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return "", err
	}

	if len(text) > maxBytes {
		return "", fmt.Errorf("%s: expected a secret of at most %d KiB", path, maxBytes>>10)
	}

	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("%s is empty: expected a secret", path)
	}

	return secret, nil
}

// ReadToken returns the token in a file. It can be sent in a header.
func ReadToken(path string) (string, error) {
	token, err := Read(path)
	if err != nil {
		return "", err
	}

	if err := CheckToken(token); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}

	return token, nil
}

// CheckToken returns an error if a token cannot be sent in a header.
func CheckToken(token string) error {
	isControl := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	if strings.ContainsFunc(token, isControl) {
		return errNoHeader
	}

	return nil
}
