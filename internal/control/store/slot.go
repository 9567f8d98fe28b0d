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
// length, and a CRC-32C of both and the document. The document follows. In a slot, the remains of
// longer documents may follow that. A slot that has only zero bytes was never written.
const (
	headerFormat = "mig-exporter state %016x %08x %08x\n"
	headerSize   = 54
)

// slot is a file that holds one document at a time.
type slot struct {
	root   *os.Root // the folder
	file   *os.File
	size   int64 // of the file
	broken bool  // we don't know what is on disk: the next write has to create the file again
	unused bool  // never written
}

// openSlot opens a slot, and creates an empty one if it is missing.
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

// read returns the slot's document and its sequence number. valid reports false if the content is
// damaged. A slot that was never written is valid, and has a nil document.
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

// decode returns the document in the content of a file.
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
	if !bytes.HasPrefix(content, encode(sequence, document)) { // another checksum
		return nil, 0, false
	}

	return document, sequence, true
}

// encode returns the content of a file with a document.
func encode(sequence uint64, document []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(
		crc32.Checksum(fmt.Appendf(nil, "%x %x", sequence, len(document)), table),
		table,
		document,
	)

	return append(fmt.Appendf(nil, headerFormat, sequence, len(document), sum), document...)
}

// grow extends the slot's file to size bytes, unless it is that large already. It writes zeros and
// syncs, so that the disk space is allocated. The document does not change.
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

// write replaces the slot's document. It allocates disk space only if too little was reserved. After
// a failed write or sync, a second sync may succeed although the pages are lost, so we cannot find
// out what is on disk: the next write creates a new file.
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

// replaceFile writes content to NAME.new and renames that to name. It returns the file, open for
// reading and writing. It first removes a file or a link at NAME.new, so that it never writes
// through a link.
func replaceFile(root *os.Root, name string, content []byte) (*os.File, error) {
	newName := name + ".new"
	if err := root.Remove(newName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}

	file, err := root.OpenFile(newName, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}

	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}

	if err = errors.Join(err, file.Close()); err == nil {
		err = root.Rename(newName, name)
	}

	if err != nil {
		return nil, errors.Join(err, root.Remove(newName))
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
