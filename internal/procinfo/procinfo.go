// Package procinfo reads the names and the users of processes from the process table. It reads no
// arguments and no environment.
package procinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
)

// maxHead is how much of a status file we read. The name comes first and the user ids soon after
// it: numbers and states alone are between them.
const maxHead = 512

// Reader reads the processes of one process table. It is safe for concurrent use.
type Reader struct {
	procDir string
	users   *users // nil: users are not read
}

// New returns a Reader of a process table, such as /proc. Users are found only if that is asked
// for.
func New(procDir string, withUsers bool) *Reader {
	r := &Reader{procDir: procDir}
	if withUsers {
		r.users = newUsers()
	}

	return r
}

// Describe returns the name of a process and its user; empty if the process has ended, or may not
// be seen. The user is the id while no name is known for it. Describe doesn't wait for names of
// users.
//
// We read the file each time, so that a reused process id never gets the name of an earlier
// process, and a process that executes another program gets the new name.
func (r *Reader) Describe(pid uint32) (name, user string) {
	head, err := r.readHead(pid)
	if err != nil {
		return "", ""
	}

	name, uid, known := parseStatus(head)
	if known && r.users != nil {
		user = r.users.find(uid)
	}

	return CleanName(name), user
}

// readHead returns the beginning of the status file of a process.
func (r *Reader) readHead(pid uint32) (string, error) {
	path := filepath.Join(r.procDir, strconv.FormatUint(uint64(pid), 10), "status")

	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("status of process %d: %w", pid, err)
	}
	defer f.Close()

	var head [maxHead]byte

	n, err := f.Read(head[:])
	if err != nil {
		return "", fmt.Errorf("status of process %d: %w", pid, err)
	}

	return string(head[:n]), nil
}

// parseStatus returns the name and the real user id in a status file. A program can have any name,
// but no line of its own: the kernel escapes line breaks and backslashes (fs/proc/array.c,
// proc_task_name).
func parseStatus(head string) (name string, uid uint32, known bool) {
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":\t")

		switch key {
		case "Name":
			name = value
		case "Uid":
			realID, _, _ := strings.Cut(value, "\t")
			id, err := strconv.ParseUint(realID, 10, 32)

			return name, uint32(id), err == nil
		}
	}

	return name, 0, false
}

// maxName bounds the names of processes and users. The kernel cuts names of programs off after 15
// bytes.
const maxName = 64

// CleanName returns the beginning of a name, with U+FFFD for what cannot be printed, such as escape
// sequences of terminals, and for bytes that are no UTF-8. Any user can choose the name of a
// process.
func CleanName(name string) string {
	n := 0

	return strings.Map(func(c rune) rune {
		n++

		switch {
		case n > maxName:
			return -1
		case !unicode.IsPrint(c):
			return unicode.ReplacementChar
		}

		return c
	}, name)
}
