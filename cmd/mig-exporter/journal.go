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

// journalVariable has the device and the inode of the stream by which systemd connects the standard
// error of a service to the journal, such as 8:4711. Children inherit it, also those whose standard
// error is another file.
const journalVariable = "JOURNAL_STREAM"

// isJournal reports whether what is written to w goes to the journal, by the value of
// journalVariable.
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

// The priorities of the journal, as a line begins with them (sd-daemon(3)). A line without one is
// as info.
const (
	journalError   = "<3>"
	journalWarning = "<4>"
	journalInfo    = "<6>"
	journalDebug   = "<7>"
)

// journalPriority returns the priority of a line of the log, empty if the line has no level.
func journalPriority(keyvals []any) string {
	at := slices.Index(keyvals, level.Key())
	if at < 0 || at+1 >= len(keyvals) {
		return ""
	}

	switch keyvals[at+1] {
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

// printError prints an error that ends the program before it has a log, or besides it.
func printError(w io.Writer, journal bool, err error) {
	text := fmt.Sprintf("mig-exporter: %v", err)
	if journal { // each line is an entry of its own
		text = journalError + strings.ReplaceAll(text, "\n", "\n"+journalError)
	}

	fmt.Fprintln(w, text)
}
