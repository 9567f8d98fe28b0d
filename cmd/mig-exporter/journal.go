package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// journalVariable is the variable in which systemd gives the device and the inode of the stream that
// connects a service's standard error to the journal, such as 8:4711. Children inherit the variable
// even if their standard error is another file.
const journalVariable = "JOURNAL_STREAM"

// isJournal reports whether w is the stream to the journal that the value of journalVariable names.
func isJournal(w io.Writer, stream string) bool {
	file, ok := w.(*os.File)
	if !ok || stream == "" {
		return false
	}

	info, err := file.Stat()
	if err != nil {
		return false
	}

	stat, ok := info.Sys().(*syscall.Stat_t)

	return ok && stream == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// The prefixes by which a line has a priority in the journal (sd-daemon(3)). A line without a prefix
// has the priority info.
const (
	journalError   = "<3>"
	journalWarning = "<4>"
	journalInfo    = "<6>"
	journalDebug   = "<7>"
)

// journalPriority returns the prefix for a line of the log; empty if the line has no level.
func journalPriority(keyvals []any) string {
	key := slices.Index(keyvals, level.Key())
	if key < 0 || key+1 >= len(keyvals) {
		return ""
	}

	switch keyvals[key+1] {
	case level.ErrorValue():
		return journalError
	case level.WarnValue():
		return journalWarning
	case level.InfoValue():
		return journalInfo
	case level.DebugValue():
		return journalDebug
	}

	return ""
}

// journalLogger writes each line with its priority in front, in one write.
type journalLogger struct {
	out    io.Writer
	format func(io.Writer) log.Logger
}

// Log implements log.Logger.
func (j journalLogger) Log(keyvals ...any) error {
	line := bytes.NewBufferString(journalPriority(keyvals))
	if err := j.format(line).Log(keyvals...); err != nil {
		return err
	}

	_, err := j.out.Write(line.Bytes())

	return err
}

// printError prints an error that ends the program for the user, without the form of the log.
func printError(w io.Writer, journal bool, err error) {
	text := fmt.Sprintf("mig-exporter: %v", err)
	if journal { // where each line is an entry of its own
		text = journalError + strings.ReplaceAll(text, "\n", "\n"+journalError)
	}

	fmt.Fprintln(w, text)
}
