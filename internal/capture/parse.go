package capture

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// maxFileBytes bounds a recording; one of three polls of the largest node has a thousandth of it.
const maxFileBytes = 256 << 20

// IsRecording reports whether a scenario file is a recording. It returns false for a file that
// cannot be read or is not YAML; the reader of scenarios reports the reason.
func IsRecording(path string) bool {
	data, err := strictyaml.ReadFile(path, maxFileBytes)
	if err != nil {
		return false
	}

	root, err := strictyaml.Document(path, data)

	return err == nil && strictyaml.HasKey(root, "recorded")
}

// Load reads a recording.
func Load(path string) (*Recording, error) {
	data, err := strictyaml.ReadFile(path, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}

	return Parse(path, data)
}

// Parse reads a recording, which errors name by path. The error joins every *strictyaml.Error
// found, in the order of their lines.
func Parse(path string, data []byte) (*Recording, error) {
	rec := &Recording{}
	if err := strictyaml.Decode(path, data, rec); err != nil {
		return nil, err
	}

	return rec, nil
}
