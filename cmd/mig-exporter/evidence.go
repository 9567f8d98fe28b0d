package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/control/store"
)

// evidenceName is the name of the evidence in --advise.state-dir.
const evidenceName = "rightsizing-evidence"

// saveEvery is how often the evidence is saved, by the time of the Snapshots.
const saveEvery = 10 * time.Minute

// evidenceFile keeps the evidence of right-sizing over restarts. It is used by one goroutine at a time.
type evidenceFile struct {
	path   string
	saved  time.Time // time of the Snapshot of the last attempt
	logger log.Logger
}

// openEvidence gives the advisor the evidence that the folder has of a node. A file that cannot be used is set aside
// under another name. If that is impossible the result is nil: nothing is lost by being overwritten.
func openEvidence(dir, node string, advisor *advise.Advisor, logger log.Logger) *evidenceFile {
	f := &evidenceFile{path: filepath.Join(dir, evidenceName), logger: logger}
	content, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f
	}
	if err == nil {
		err = advisor.Restore(bytes.NewReader(content), node)
	}
	if err == nil {
		level.Info(logger).Log("msg", "restored the evidence for right-sizing", "file", f.path)
		return f
	}
	aside, asideErr := setAside(f.path)
	if asideErr != nil {
		level.Error(logger).Log("file", f.path, "err", errors.Join(err, asideErr),
			"msg", "cannot use the evidence for right-sizing nor rename its file; no evidence is saved")
		return nil
	}
	level.Warn(logger).Log(
		"msg", "cannot use the evidence for right-sizing; renamed its file and started without evidence",
		"file", f.path, "as", aside, "err", err)
	return f
}

// setAside gives a file a name that no other file has, and returns it.
func setAside(path string) (string, error) {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.unusable-%d", path, n)
		err := os.Link(path, aside) // unlike Rename it replaces no file
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		return aside, os.Remove(path)
	}
}

// isDue reports whether the evidence is to be saved at the time of a Snapshot; a clock that was set back counts too.
func (f *evidenceFile) isDue(now time.Time) bool {
	if f.saved.IsZero() {
		f.saved = now
	}
	return now.Sub(f.saved) >= saveEvery || now.Before(f.saved)
}

// write replaces the file by newer evidence. If it fails, the next attempt comes when the next save is due.
func (f *evidenceFile) write(evidence *advise.Checkpoint, at time.Time) {
	f.saved = at
	var content bytes.Buffer
	err := evidence.Write(&content)
	if err == nil {
		err = store.WriteFile(f.path, content.Bytes())
	}
	if err != nil {
		level.Error(f.logger).Log("file", f.path, "err", err,
			"msg", "cannot save the evidence for right-sizing; a restart would lose what came after the last save")
	}
}
