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

// ErrState is wrapped by all errors of the state file of a shared node.
var ErrState = errors.New("state file of the simulated node")

// stateFile is what the processes of a shared node have in common: a clock, and all changes that
// clients have made to the scenario's GPUs, in order. With the scenario it determines every state
// that the node has had.
type stateFile struct {
	Version  int        `json:"version"`
	ID       string     `json:"id"`       // chosen when the file is created
	Scenario string     `json:"scenario"` // the scenario's name, for people who read the file
	Digest   string     `json:"digest"`   // of the scenario's text
	Clock    stateClock `json:"clock"`
	Changes  []Change   `json:"changes"`
}

type stateClock struct {
	Mode  ClockMode  `json:"mode"`
	Start time.Time  `json:"start"`
	Now   *time.Time `json:"now,omitempty"` // the time of a stepped clock; nil for others
}

// stateVersion is the version of the file's format.
const stateVersion = 1

// Change is one change of the node, with its result: a process that replays it does not choose ids
// and placements itself. Which fields are used depends on Op.
type Change struct {
	At      time.Time      `json:"at"`
	GPU     int            `json:"gpu"`
	Op      ChangeOp       `json:"op"`
	On      bool           `json:"on,omitempty"`
	Pending bool           `json:"pending,omitempty"` // the MIG mode waits for a reset
	Profile uint32         `json:"profile,omitempty"` // the profile's id in the driver
	GI      gpu.InstanceID `json:"gi,omitempty"`
	CI      gpu.ComputeID  `json:"ci,omitempty"`
	Start   int            `json:"start,omitempty"`
	Slices  int            `json:"slices,omitempty"` // of a compute instance
	Fault   int            `json:"fault,omitempty"`  // the fault's place in the scenario

	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Resource  string `json:"resource,omitempty"`
}

// ChangeOp is a kind of change.
type ChangeOp string

// The kinds of changes.
const (
	opMIGMode   ChangeOp = "mig-mode"   // set the MIG mode to On
	opReset     ChangeOp = "reset"      // reset the GPU
	opCreateGI  ChangeOp = "create-gi"  // create GPU instance GI of Profile at Start
	opDestroyGI ChangeOp = "destroy-gi" // destroy GPU instance GI
	opCreateCI  ChangeOp = "create-ci"  // create compute instance CI of Slices at Start of GI
	opDestroyCI ChangeOp = "destroy-ci" // destroy compute instance CI of GI
	opTrigger   ChangeOp = "fault"      // begin Fault, which has waited for a call
	opCall      ChangeOp = "call"       // count a change of GI and CI for Fault
	opReboot    ChangeOp = "reboot"     // reboot the node; GPU has no meaning

	opReplacePod ChangeOp = "replace-pod" // replace Pod of Namespace by one that asks for Resource
)

// The bounds of a state file. They limit how much a process that joins has to read and replay.
const (
	maxStateBytes = 16 << 20
	maxChanges    = 1 << 16
)

// decodeState decodes a state file, and checks that it belongs to the scenario.
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

// readState reads a state file, and returns it open. As long as the caller keeps it open, the system
// does not use its inode again, so the caller can tell it from a file that has replaced it.
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

// readRegular reads a regular file. It refuses pipes and devices, which may have no end.
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

// writeState replaces the state file atomically, and returns the new one open. After an error the old
// file is as it was. The caller holds the lock and closes the file.
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
