package web

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	toolkit "github.com/prometheus/exporter-toolkit/web"
)

// CheckConfig reads the web configuration and the certificates that it names. The error names the
// file, and the line and key if the parser reports them. An empty name is no error.
func CheckConfig(file string) error {
	err := toolkit.Validate(file)
	if err == nil {
		return nil
	}

	var path *fs.PathError
	if errors.As(err, &path) && path.Path == file {
		err = path.Err
	}

	if text, many := strings.CutPrefix(err.Error(), "yaml: unmarshal errors:\n"); many {
		return fmt.Errorf("web config %s: %s", file, joinLines(text))
	}

	if strings.HasPrefix(err.Error(), "crypto/bcrypt: ") { // the toolkit does not say where
		err = fmt.Errorf("basic_auth_users: expected bcrypt hashes of the passwords: %w", err)
	}

	return fmt.Errorf("web config %s: %w", file, err)
}

// joinLines joins the lines of the parser's list: errors are logged, and logs escape line breaks.
func joinLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}

	return strings.Join(lines, "; ")
}
