package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// A file begins with a line of text: a name, the sequence number of its document, the document's length and a CRC-32C over both
// and the document. Then comes the document. What stands behind it in a slot is left over from longer ones. A slot of zero bytes
// alone was never written.
const (
	headerFormat = "mig-exporter state %016x %08x %08x\n"
	headerSize   = 54
)

// slot is a file that holds one document at a time.
type slot struct {
	file   *os.File
	size   int64
	broken bool // what is on disk is not known: the file must be created again
	unused bool
}

func openSlot(path string) (*slot, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &slot{file: file, size: info.Size()}, nil
}

// read returns the slot's document, nil if it was never written.
func (sl *slot) read() (document []byte, sequence uint64, valid bool, err error) {
	content, err := io.ReadAll(io.NewSectionReader(sl.file, 0, sl.size))
	if err != nil {
		return nil, 0, false, err
	}
	if sl.unused = len(bytes.Trim(content, "\x00")) == 0; sl.unused {
		return nil, 0, true, nil
	}
	document, sequence, valid = decode(content)
	return document, sequence, valid, nil
}

func decode(content []byte) (document []byte, sequence uint64, valid bool) {
	if len(content) < headerSize {
		return nil, 0, false
	}
	var length, sum uint32
	if _, err := fmt.Sscanf(string(content[:headerSize]), headerFormat, &sequence, &length, &sum); err != nil {
		return nil, 0, false
	}
	if uint64(len(content)) < headerSize+uint64(length) || sequence == 0 {
		return nil, 0, false
	}
	document = content[headerSize : headerSize+length]
	if !bytes.HasPrefix(content, encode(sequence, document)) {
		return nil, 0, false
	}
	return document, sequence, true
}

func encode(sequence uint64, document []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum(fmt.Appendf(nil, "%x %x", sequence, len(document)), table), table, document)
	return append(fmt.Appendf(nil, headerFormat, sequence, len(document), sum), document...)
}

// grow makes the slot at least size bytes long, with zeros that are on disk, and leaves its document as it is.
func (sl *slot) grow(size int64) error {
	if sl.size >= size {
		return nil
	}
	_, err := sl.file.WriteAt(make([]byte, size-sl.size), sl.size)
	if err == nil {
		err = sl.file.Sync()
	}
	if err != nil {
		return errors.Join(err, sl.file.Truncate(sl.size))
	}
	sl.size = size
	return nil
}

// write replaces the slot's document; it allocates room on disk only if too little was reserved. After a failed write or sync, whether the pages are on disk cannot be found out, since a
// second sync may report success when they are lost: the next write makes a new file.
func (sl *slot) write(sequence uint64, document []byte) error {
	content := encode(sequence, document)
	if sl.broken {
		return sl.rewrite(content)
	}
	err := sl.grow(int64(len(content)))
	if err != nil {
		return err
	}
	_, err = sl.file.WriteAt(content, 0)
	if err == nil {
		err = sl.file.Sync()
	}
	sl.broken, sl.unused = err != nil, false
	return err
}

// rewrite puts a new file in the place of a broken one.
func (sl *slot) rewrite(content []byte) error {
	path := sl.file.Name()
	padded := append(content, make([]byte, max(0, sl.size-int64(len(content))))...)
	file, err := replaceFile(path, padded)
	if err != nil {
		return err
	}
	_ = sl.file.Close() // nothing of it is needed any more
	sl.file, sl.broken = file, false
	return nil
}

// replaceFile writes a file under another name and renames it. The file that it returns has the path as its name.
func replaceFile(path string, content []byte) (*os.File, error) {
	file, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(path+".new"))
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}
