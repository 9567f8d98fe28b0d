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

// FileName is the name of the evidence in its folder.
const FileName = "rightsizing-evidence"

// saveEvery is how often the evidence is saved, by the time of the Snapshots.
const saveEvery = 10 * time.Minute

// evidenceFile keeps the evidence of right-sizing over restarts. It is used by one goroutine at a
// time.
type evidenceFile struct {
	path      string
	writeFile func(path string, content []byte) error
	saved     time.Time // time of the Snapshot of the last attempt
	logger    log.Logger
}

// openEvidence returns the file in a folder and the evidence that it has, nil if there is none. A
// file that cannot be read is set aside under another name. If that is impossible the file is nil:
// nothing is lost by being overwritten.
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

// checkFolder logs an error if no file can be written beside the evidence: the first save comes
// minutes later.
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

// setAside renames the file, which cannot be used, and reports whether it has. The last two that
// were set aside are kept.
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

// logRestored reports the evidence that was restored. sameGPUs reports whether the node still has
// one of the GPUs that the evidence is of. Workloads whose evidence was invalid are counted; the
// first three are named.
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

// isDue reports whether the evidence is to be saved at the time of a Snapshot; a clock that was set
// back counts too.
func (f *evidenceFile) isDue(now time.Time) bool {
	if f.saved.IsZero() {
		f.saved = now
	}

	return now.Sub(f.saved) >= saveEvery || now.Before(f.saved)
}

// write replaces the file by newer evidence. If it fails, the next attempt comes when the next save
// is due.
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
