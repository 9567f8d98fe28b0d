package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ErrState is wrapped by what is wrong with the state file of a shared node.
var ErrState = errors.New("state file of the simulated node")

// stateFile is what nodes share: a clock, and what clients have done to the GPUs of the scenario,
// in its order. Together with the scenario it gives every state that the node has had.
type stateFile struct {
	Version  int        `json:"version"`
	ID       string     `json:"id"`       // of this beginning of the node
	Scenario string     `json:"scenario"` // its name, for readers of the file
	Digest   string     `json:"digest"`   // of the scenario's text
	Clock    stateClock `json:"clock"`
	Changes  []Change   `json:"changes"`
}

type stateClock struct {
	Mode  ClockMode  `json:"mode"`
	Start time.Time  `json:"start"`
	Now   *time.Time `json:"now,omitempty"` // of a stepped clock
}

// stateVersion is the version of the file's format.
const stateVersion = 1

// Change is one thing that was done to a GPU, with what came of it: ids and placements are not
// chosen again.
type Change struct {
	At      time.Time      `json:"at"`
	GPU     int            `json:"gpu"`
	Op      ChangeOp       `json:"op"`
	On      bool           `json:"on,omitempty"`
	Pending bool           `json:"pending,omitempty"` // the mode waits for a reset
	Profile uint32         `json:"profile,omitempty"` // by the driver's id
	GI      gpu.InstanceID `json:"gi,omitempty"`
	CI      gpu.ComputeID  `json:"ci,omitempty"`
	Start   int            `json:"start,omitempty"`
	Slices  int            `json:"slices,omitempty"` // of a compute instance
	Fault   int            `json:"fault,omitempty"`  // by its place in the scenario

	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Resource  string `json:"resource,omitempty"`
}

// ChangeOp is what was done.
type ChangeOp string

// The changes.
const (
	opMIGMode   ChangeOp = "mig-mode"   // to On
	opReset     ChangeOp = "reset"      // the GPU
	opCreateGI  ChangeOp = "create-gi"  // of Profile, at Start, under the id GI
	opDestroyGI ChangeOp = "destroy-gi" // GI
	opCreateCI  ChangeOp = "create-ci"  // of Slices, at Start of GI, under the id CI
	opDestroyCI ChangeOp = "destroy-ci" // CI of GI
	opTrigger   ChangeOp = "fault"      // Fault, which has waited for a call, begins
	opCall      ChangeOp = "call"       // Fault has counted a change, of GI and CI
	opReboot    ChangeOp = "reboot"     // the node, whatever GPU says

	opReplacePod ChangeOp = "replace-pod" // Pod of Namespace, by one that asks for Resource
)

// The bounds of a state file. Its readers do all of it over again.
const (
	maxStateBytes = 16 << 20
	maxChanges    = 1 << 16
)

// decodeState reads a state file. What does not belong to the scenario is an error.
func decodeState(data []byte, s *Scenario) (*stateFile, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()

	var f stateFile
	if err := decoder.Decode(&f); err != nil {
		return nil, fmt.Errorf("is not whole: %w", err)
	}

	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("there is data behind its end")
	}

	switch {
	case f.Version != stateVersion:
		return nil, fmt.Errorf("version %d; expected %d", f.Version, stateVersion)
	case f.ID == "" || f.Clock.Start.IsZero() || (f.Clock.Now == nil) != (f.Clock.Mode != ClockStep):
		return nil, fmt.Errorf("id or clock is missing")
	case f.Clock.Now != nil &&
		(f.Clock.Now.Before(f.Clock.Start) || f.Clock.Now.Sub(f.Clock.Start) > maxDuration):
		return nil, fmt.Errorf("its clock is at %s, and began at %s", f.Clock.Now, f.Clock.Start)
	case f.Digest != s.digest:
		return nil, fmt.Errorf(
			"was begun with another scenario, or before it was edited (%s); remove the file to "+
				"start again",
			f.Scenario,
		)
	case len(f.Changes) > maxChanges:
		return nil, fmt.Errorf("%d changes; expected at most %d", len(f.Changes), maxChanges)
	}

	if _, err := ParseClockMode(string(f.Clock.Mode)); err != nil {
		return nil, err
	}

	for i, c := range f.Changes {
		if c.GPU < 0 || c.GPU >= len(s.GPUs) || c.Fault < 0 ||
			((c.Op == opTrigger || c.Op == opCall) && c.Fault >= len(s.Faults)) {
			return nil, fmt.Errorf("change %d is about what the scenario does not have", i)
		}
	}

	return &f, nil
}

// readState reads a state file. The open file is the caller's: while it is open, its inode is not
// used again, so that another file under the name can be told from it.
func readState(path string, s *Scenario) (*stateFile, *os.File, error) {
	// O_NONBLOCK: opening a pipe would wait for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}

	var f *stateFile

	data, err := readRegular(file)
	if err == nil {
		f, err = decodeState(data, s)
	}

	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}

	return f, file, nil
}

// readRegular reads what may be read to its end: pipes and devices may have none.
func readRegular(file *os.File) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}

	if !info.Mode().IsRegular() {
		return nil, errors.New("is no regular file")
	}

	return io.ReadAll(io.LimitReader(file, maxStateBytes))
}

// writeState puts a state file in the place of the old one as a whole, or leaves that as it was.
// The caller holds the lock of the path, and closes the file.
func writeState(path string, f *stateFile) (*os.File, error) {
	data, err := json.MarshalIndent(f, "", "\t")
	if err != nil {
		return nil, err
	}

	if len(data) >= maxStateBytes {
		return nil, fmt.Errorf(
			"%s: has grown to %d bytes; remove it to start again",
			path,
			len(data),
		)
	}

	next := path + ".next"

	file, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}

	if _, err = file.Write(append(data, '\n')); err == nil {
		if err = file.Sync(); err == nil {
			err = os.Rename(next, path)
		}
	}

	if err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(next))
	}

	return file, nil
}
