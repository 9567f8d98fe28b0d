package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mig-exporter/mig-exporter/internal/privatedir"
)

// A file begins with a line of text: a name, the sequence number of its document, the document's
// length, and a CRC-32C of both and the document. The document follows. The rest of a slot is left
// over from longer documents. A slot that has only zero bytes was never written.
const (
	headerFormat = "mig-exporter state %016x %08x %08x\n"
	headerSize   = 54
)

// slot is a file that holds one document at a time.
type slot struct {
	root   *os.Root // the folder
	file   *os.File
	size   int64
	broken bool // the content on disk is unknown: the file must be created again
	unused bool // never written
}

func openSlot(folder *privatedir.Dir, name string) (*slot, error) {
	file, err := folder.OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}

	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return &slot{root: folder.Root, file: file, size: info.Size()}, nil
}

// read returns the slot's document and its sequence number; valid is false if the content is
// invalid. The document is nil, and valid, if the slot was never written.
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

	_, err := fmt.Sscanf(string(content[:headerSize]), headerFormat, &sequence, &length, &sum)
	if err != nil {
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
	sum := crc32.Update(
		crc32.Checksum(fmt.Appendf(nil, "%x %x", sequence, len(document)), table),
		table,
		document,
	)

	return append(fmt.Appendf(nil, headerFormat, sequence, len(document), sum), document...)
}

// grow extends the slot to size bytes, with zeros that are on disk, unless it has that size. Its
// document does not change.
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

// write replaces the slot's document. It allocates disk space only if too little was reserved.
// After a failed write or sync, there is no way to find out whether the pages are on disk, since a
// second sync may succeed although they are lost: the next write creates a new file.
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

	sl.broken = err != nil
	sl.unused = false

	return err
}

// rewrite replaces a broken file by a new one.
func (sl *slot) rewrite(content []byte) error {
	padded := append(content, make([]byte, max(0, sl.size-int64(len(content))))...)

	file, err := replaceFile(sl.root, filepath.Base(sl.file.Name()), padded)
	if err != nil {
		return err
	}

	_ = sl.file.Close() // it is not needed any more
	sl.file = file
	sl.broken = false

	return nil
}

// replaceFile writes content to a new file and renames it. It returns the file, open for reading
// and writing. A file or a link that has the name of the new file is removed, never written
// through.
func replaceFile(root *os.Root, name string, content []byte) (*os.File, error) {
	fresh := name + ".new"
	if err := root.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}

	file, err := root.OpenFile(fresh, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}

	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}

	if err = errors.Join(err, file.Close()); err == nil {
		err = root.Rename(fresh, name)
	}

	if err != nil {
		return nil, errors.Join(err, root.Remove(fresh))
	}

	if err := syncRoot(root); err != nil {
		return nil, err
	}

	return root.OpenFile(name, os.O_RDWR, 0)
}

// syncRoot blocks until the entries of a folder are on disk.
func syncRoot(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}

	return errors.Join(dir.Sync(), dir.Close())
}
