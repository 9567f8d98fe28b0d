// Package damaged makes damaged copies of a built C library, for tests of what loads it.
package damaged

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
)

// WithoutSymbols writes a copy of a library that loads, but does not export some of its symbols.
func WithoutSymbols(library, to string, symbols ...string) error {
	content, err := os.ReadFile(library)
	if err != nil {
		return err
	}

	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("read %s: %w", library, err)
	}

	names := f.Section(".dynstr")
	if names == nil {
		return fmt.Errorf("read %s: no .dynstr section", library)
	}

	table := content[names.Offset : names.Offset+names.FileSize]
	for _, symbol := range symbols {
		at := bytes.Index(table, []byte("\x00"+symbol+"\x00"))
		if at < 0 {
			return fmt.Errorf("read %s: %s is not exported", library, symbol)
		}

		// The dynamic linker finds a symbol by the hash of its name, then compares the name. The hash is
		// still that of the old name: neither name is found any more.
		table[at+1] = '_'
	}

	return os.WriteFile(to, content, 0o777)
}

// Truncated writes the first bytes of a library, which the dynamic linker refuses as too short.
func Truncated(library, to string) error {
	content, err := os.ReadFile(library)
	if err != nil {
		return err
	}

	return os.WriteFile(to, content[:min(len(content), 32)], 0o777)
}
