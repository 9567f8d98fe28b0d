package rightsizing

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// FileName is the name of the evidence's file in Options.StateDir.
const FileName = "rightsizing-evidence"

// saveEvery is the time between two saves of the evidence, by the times of Snapshots.
const saveEvery = 10 * time.Minute

// evidenceFile keeps the evidence of right-sizing over restarts. Only one goroutine at a time may
// use it.
type evidenceFile struct {
	path      string
	writeFile func(path string, content []byte) error // Options.WriteFile
	saved     time.Time                               // the Snapshot's time at the last attempt
	logger    log.Logger
}

// openEvidence returns the file in the state folder, and the evidence in it, nil if there is none. It
// renames a file that cannot be read. If it cannot rename that either, it returns no file, so that we
// never overwrite it.
func openEvidence(o *Options) (*evidenceFile, *advise.Checkpoint) {
	f := &evidenceFile{
		path:      filepath.Join(o.StateDir, FileName),
		writeFile: o.WriteFile,
		logger:    o.Logger,
	}
	f.checkFolder()

	content, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}

	var found *advise.Checkpoint
	if err == nil {
		found, err = advise.ReadCheckpoint(bytes.NewReader(content))
	}

	if err != nil && !f.setAside(err) {
		return nil, nil
	}

	return f, found
}

// checkFolder logs an error if it cannot write a file beside the evidence. Otherwise the operator
// would not see the error until the first save, minutes later.
func (f *evidenceFile) checkFolder() {
	attempt := f.path + ".attempt"

	err := f.writeFile(attempt, nil)
	if err == nil {
		err = os.Remove(attempt)
	}

	if err != nil {
		level.Error(f.logger).Log(
			"msg", "cannot write the evidence for right-sizing; "+
				"trying again every ten minutes. A restart loses it",
			"file", f.path,
			"err", err,
			"see", "--advise.state-dir",
		)
	}
}

// setAside renames the file, since it cannot be used, and reports whether it did. It keeps the last
// two such files. why is for the log.
func (f *evidenceFile) setAside(why error) bool {
	aside := f.path + ".unusable-1"
	older := f.path + ".unusable-2"

	err := os.Rename(aside, older)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(f.path, aside)
	}

	if err != nil {
		level.Error(f.logger).Log(
			"msg", "cannot use the evidence for right-sizing nor rename its file, "+
				"which stays as it is; no evidence is saved",
			"file", f.path,
			"err", errors.Join(why, err),
		)

		return false
	}

	level.Warn(f.logger).Log(
		"msg", "cannot use the evidence for right-sizing; "+
			"renamed its file and started without evidence",
		"file", f.path,
		"as", aside,
		"err", why,
	)

	return true
}

// logRestored logs which evidence was restored. sameGPUs says whether the node still has one of the
// GPUs in the evidence. It logs the number of workloads whose evidence was invalid, and the first
// three errors.
func (f *evidenceFile) logRestored(c *advise.Checkpoint, sameGPUs bool) {
	level.Info(f.logger).Log(
		"msg", "restored the evidence for right-sizing",
		"file", f.path,
		"workloads", len(c.Workloads),
	)

	if !sameGPUs {
		level.Warn(f.logger).Log(
			"msg", "none of this node's GPUs is in its evidence for right-sizing; "+
				"using it, since the node's name is the same",
			"file", f.path,
			"node", c.Node,
		)
	}

	if dropped := c.Dropped(); len(dropped) > 0 {
		level.Warn(f.logger).Log(
			"msg", "dropped the invalid evidence of some workloads, which start without evidence",
			"file", f.path,
			"dropped", len(dropped),
			"err", errors.Join(dropped[:min(len(dropped), 3)]...),
		)
	}
}

// isDue reports whether to save the evidence at the time of a Snapshot: saveEvery after the last
// save or the first Snapshot, or if the clock was set back.
func (f *evidenceFile) isDue(now time.Time) bool {
	if f.saved.IsZero() {
		f.saved = now
	}

	return now.Sub(f.saved) >= saveEvery || now.Before(f.saved)
}

// write replaces the file by newer evidence. at is the time of the Snapshot. If it fails, we try
// again when the next save is due.
func (f *evidenceFile) write(evidence *advise.Checkpoint, at time.Time) {
	f.saved = at
	var content bytes.Buffer

	err := evidence.Write(&content)
	if err == nil {
		err = f.writeFile(f.path, content.Bytes())
	}

	if err != nil {
		level.Error(f.logger).Log(
			"msg", "cannot save the evidence for right-sizing; "+
				"a restart would lose what came after the last save",
			"file", f.path,
			"err", err,
		)
	}
}
