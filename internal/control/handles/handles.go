// Package handles finds, in /proc, the processes that have device or capability files of a GPU
// open.
//
// A GPU has one device file, /dev/nvidia<minor>. Every process that uses the driver for the GPU has
// it open: users of MIG devices, but also NVML clients, which prevent a change of the MIG mode but
// not the destruction of an instance. A process that uses an instance also has capability files
// open, /dev/nvidia-caps/nvidia-cap<minor>: those of the GPU instance and of the compute instance.
// So a process with open capability files of instances holds those instances, and one with the GPU's
// device file alone holds the whole GPU.
//
// A process with CAP_SYS_ADMIN may use an instance without its capability files; we find it only in
// the driver's list of processes.
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html
package handles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/pidns"
)

// Finder finds open files in one /proc. It is safe for concurrent use.
type Finder struct {
	proc   string // path of the host's /proc
	hidden error  // see New
}

var _ control.Handles = (*Finder)(nil)

// New returns a Finder for the host's /proc at a path. hidden is the result of pidns.CheckInitial:
// why this process may not see all processes of the host, or nil.
func New(proc string, hidden error) *Finder { return &Finder{proc: proc, hidden: hidden} }

// Open implements control.Handles. It sorts by process, then by instance. If there is no
// /proc/driver/nvidia, the node has no files of GPUs and Open returns none, unless this process may
// not see all of /proc.
//
// After an error, any process may hold the GPU. The error wraps gpu.ErrNoPermission if this process
// may not see all processes of the host, for which it must be root with CAP_SYS_PTRACE in the
// host's PID namespace (and gpu.ErrPIDNamespace if it is in another one), gpu.ErrNotFound if the
// driver does not report the files of the GPU, and gpu.ErrTimeout if ctx has ended.
func (f *Finder) Open(ctx context.Context, g mig.GPULayout) ([]control.Handle, error) {
	// A wrong path must not look like a node without a driver.
	_, err := os.Stat(f.proc)
	if err == nil {
		_, err = os.Stat(filepath.Join(f.proc, "driver", "nvidia"))
		if errors.Is(err, fs.ErrNotExist) && f.hidden == nil {
			return nil, nil
		}
	}

	if err != nil {
		return nil, fmt.Errorf("open files of %s: %w", g.UUID, withSentinel(err))
	}

	files, err := f.filesOf(g)
	if err != nil {
		return nil, fmt.Errorf("open files of %s: %w", g.UUID, err)
	}

	own, err := f.findOwnPID()
	if err != nil {
		return nil, fmt.Errorf("open files of %s: %w", g.UUID, err)
	}

	found, err := f.findHandles(ctx, own, files)
	if err != nil {
		return nil, fmt.Errorf("open files of %s: %w", g.UUID, err)
	}

	return found, nil
}

// findOwnPID returns the id of this process in the PID namespace of proc, which must be the host's:
// others do not show most processes.
func (f *Finder) findOwnPID() (string, error) {
	err := pidns.CheckInitial(filepath.Join(f.proc, "1"))
	if fileError := new(fs.PathError); errors.As(err, &fileError) {
		return "", fmt.Errorf("process 1: %w", withSentinel(err))
	}

	if err != nil {
		return "", fmt.Errorf("process 1: %w: %w", err, gpu.ErrNoPermission)
	}

	own, err := os.Readlink(filepath.Join(f.proc, "self"))
	if err != nil {
		return "", fmt.Errorf("own process: %w", withSentinel(err))
	}

	return own, nil
}

// findHandles returns the open files of all processes but our own.
func (f *Finder) findHandles(
	ctx context.Context,
	own string,
	files gpuFiles,
) ([]control.Handle, error) {
	entries, err := listDir(f.proc)
	if err != nil {
		return nil, fmt.Errorf("processes: %w", withSentinel(err))
	}

	var out []control.Handle

	for _, name := range entries {
		pid, isPID := gpu.ParseDecimal(name)
		if !isPID || name == own {
			continue
		}

		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("processes: %w: %w", err, gpu.ErrTimeout)
		}

		held, err := f.processHandles(name, files)
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", pid, withSentinel(err))
		}

		if len(held) == 0 {
			continue
		}

		command := f.command(name)

		for _, h := range held {
			h.PID = pid
			h.Command = command
			out = append(out, h)
		}
	}

	slices.SortStableFunc(out, func(a, b control.Handle) int { return int(a.PID) - int(b.PID) })

	return out, nil
}

// processHandles returns the handles of one process, without its id and name. A process that has
// ended has none.
func (f *Finder) processHandles(name string, files gpuFiles) ([]control.Handle, error) {
	dir := filepath.Join(f.proc, name, "fd")

	descriptors, err := listDir(dir)
	if isGone(err) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	var open openFiles

	for _, fd := range descriptors {
		target, err := os.Readlink(dir + "/" + fd)
		if isGone(err) {
			continue
		}

		if err != nil {
			return nil, err
		}

		open.addFile(files, target)
	}

	return open.handles(), nil
}

// command returns the name of a process; it is empty if the process has ended.
func (f *Finder) command(name string) string {
	comm, err := os.ReadFile(filepath.Join(f.proc, name, "comm"))
	if err != nil {
		return ""
	}

	return strings.TrimSpace(string(comm))
}

// listDir returns the names in a directory, in no order.
func listDir(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}

	list, err := d.Readdirnames(-1)

	return list, errors.Join(err, d.Close())
}

// isGone reports whether a process or a file of it no longer exists.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// withSentinel adds the sentinel of package gpu for an error of the file system.
func withSentinel(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", err, gpu.ErrNoPermission)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", err, gpu.ErrNotFound)
	}

	return fmt.Errorf("%w: %w", err, gpu.ErrUnavailable)
}

// openFiles are the files of a GPU that one process has open.
type openFiles struct {
	device    bool             // the GPU's device file
	instances []control.Handle // capability files
}

// addFile adds an open file if it is one of the GPU's.
func (o *openFiles) addFile(files gpuFiles, target string) {
	file, ok := files.capabilityOf(target)
	switch {
	case !ok:
	case file.whole:
		o.device = true
	default:
		o.instances = append(
			o.instances,
			control.Handle{Instance: gpu.Some(file.instance), Compute: file.compute},
		)
	}
}

// handles returns the handles of a process, the most specific ones only: not the GPU if an instance
// is open, and not a GPU instance if one of its compute instances is.
func (o *openFiles) handles() []control.Handle {
	if len(o.instances) == 0 {
		if o.device {
			return []control.Handle{{}}
		}

		return nil
	}

	slices.SortFunc(o.instances, compareHandles)

	var out []control.Handle
	for _, i := range o.instances {
		if len(out) > 0 {
			last := &out[len(out)-1]
			if compareHandles(*last, i) == 0 {
				continue
			}

			if last.Instance == i.Instance && !last.Compute.Present() {
				*last = i // a compute instance in the place of its GPU instance
				continue
			}
		}

		out = append(out, i)
	}

	return out
}

// compareHandles orders a GPU instance before its compute instances.
func compareHandles(a, b control.Handle) int {
	number := func(h control.Handle) int {
		compute := -1
		if c, ok := h.Compute.Get(); ok {
			compute = int(c)
		}

		return int(h.Instance.Or(0))<<16 + compute
	}

	return number(a) - number(b)
}

// parseNumber returns the number that follows a prefix: 12 in "nvidia-cap12".
func parseNumber(s, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return 0, false
	}

	n, err := strconv.Atoi(digits)

	return n, err == nil && n >= 0 && digits[0] != '+'
}
