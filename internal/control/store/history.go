package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
)

// historyFile is how a history stands in its file: with a CRC-32C over the bytes of State.
type historyFile struct {
	Checksum string          `json:"crc32c"`
	State    json.RawMessage `json:"state"`
}

func writeHistory(path string, document []byte) error {
	if !json.Valid(document) {
		return errors.New("history is not JSON")
	}
	document = bytes.TrimSpace(document)
	file, err := replaceFile(path, fmt.Appendf(nil, "{\"crc32c\":%q,\"state\":%s}\n", checksumText(document), document))
	if err != nil {
		return err
	}
	return file.Close()
}

// readHistory reads the history, nil if there is none. One that is damaged is copied aside for a person to look at.
func readHistory(path string) (document []byte, damaged bool, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	var f historyFile
	if json.Unmarshal(content, &f) != nil || f.Checksum != checksumText(f.State) {
		_ = os.WriteFile(path+".damaged", content, 0o600) // the original stands until it is replaced
		return nil, true, nil //nolint:nilerr // damage is an answer
	}
	return f.State, false, nil
}

func checksumText(b []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli())) }
