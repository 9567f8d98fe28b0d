package journal

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"strconv"
)

// A record is a line: the CRC-32C of its content and the content's length, eight hexadecimal digits each, and the content,
// which has no line break. An operator can read it with any tool.
const (
	headerSize = 8 + 1 + 8 + 1
	maxRecord  = 16 << 20
)

func encode(record []byte) ([]byte, error) {
	switch {
	case len(record) == 0 || len(record) > maxRecord:
		return nil, fmt.Errorf("record of %d bytes: expected 1 to %d", len(record), maxRecord)
	case bytes.IndexByte(record, '\n') >= 0 || bytes.IndexByte(record, 0) >= 0:
		return nil, fmt.Errorf("record with a line break or a NUL byte")
	}
	line := fmt.Appendf(nil, "%08x %08x ", checksum(record), len(record))
	return append(append(line, record...), '\n'), nil
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// decode returns the whole records and their size on disk. What follows them is torn: a line without an end, or with NUL
// bytes, which are what a file system shows of blocks that were never written.
func decode(content []byte) (records [][]byte, size int64, corrupt *CorruptError) {
	for len(content) > 0 {
		end := bytes.IndexByte(content, '\n')
		if end < 0 {
			return records, size, nil
		}
		record, reason := decodeLine(content[:end])
		if reason != "" {
			if end == len(content)-1 && bytes.IndexByte(content, 0) >= 0 {
				return records, size, nil
			}
			return records, size, &CorruptError{Record: len(records) + 1, Reason: reason}
		}
		records = append(records, record)
		size += int64(end + 1)
		content = content[end+1:]
	}
	return records, size, nil
}

func decodeLine(line []byte) (record []byte, reason string) {
	if len(line) < headerSize || line[8] != ' ' || line[17] != ' ' {
		return nil, "it has no header"
	}
	sum, sumErr := strconv.ParseUint(string(line[:8]), 16, 32)
	length, lengthErr := strconv.ParseUint(string(line[9:17]), 16, 32)
	record = line[headerSize:]
	switch {
	case sumErr != nil || lengthErr != nil:
		return nil, "its header cannot be read"
	case uint64(len(record)) != length:
		return nil, fmt.Sprintf("it has %d bytes instead of %d", len(record), length)
	case uint64(checksum(record)) != sum:
		return nil, "its checksum does not match"
	default:
		return record, ""
	}
}
