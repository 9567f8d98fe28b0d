// Package handles finds the processes that have device or capability files of a GPU open, in /proc.
//
// A GPU has one device file, /dev/nvidia<minor>. Every process that uses the driver for the GPU has it open: the user of a
// MIG device, but also every NVML client, which holds up a change of the MIG mode and no destruction of an instance.
// Who uses an instance has capability files open too, /dev/nvidia-caps/nvidia-cap<minor>: that of its GPU instance
// and that of its compute instance. So a process with open capability files of a GPU's instances holds those, and one
// with the GPU's device file alone holds the GPU as a whole.
//
// A process with CAP_SYS_ADMIN may use an instance without its capability files; such a one is known by the driver's
// list of processes only.
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
)

// initialNamespace is what /proc/<pid>/ns/pid says in the host's PID namespace: the kernel's PROC_PID_INIT_INO, the same
// on every Linux.
const initialNamespace = "pid:[4026531836]"

// Finder looks through the processes of one /proc. It keeps nothing; its method may be called from several goroutines.
type Finder struct {
	proc string
}

var _ control.Handles = (*Finder)(nil)

// New takes the path of the host's /proc.
func New(proc string) *Finder { return &Finder{proc: proc} }

// Open implements control.Handles: by process, then by instance. A node without /proc/driver/nvidia has no files of
// GPUs, hence none that is open.
//
// An error says that processes could not be looked at, and anyone may hold the GPU: it wraps gpu.ErrNoPermission where
// the right is lacking to see all processes of the host (root with CAP_SYS_PTRACE, in the host's PID namespace),
// gpu.ErrNotFound where the driver does not tell which files are those of the GPU, gpu.ErrTimeout where ctx ended.
func (f *Finder) Open(ctx context.Context, g mig.GPULayout) ([]control.Handle, error) {
	_, err := os.Stat(f.proc) // to be wrong about the path is not to have no driver
	if err == nil {
		_, err = os.Stat(filepath.Join(f.proc, "driver", "nvidia"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open files of %s: %w", g.UUID, known(err))
	}
	files, err := f.filesOf(g)
	if err != nil {
		return nil, fmt.Errorf("open files of %s: %w", g.UUID, err)
	}
	own, err := f.own()
	if err != nil {
		return nil, fmt.Errorf("open files of %s: %w", g.UUID, err)
	}
	found, err := f.walk(ctx, own, files)
	if err != nil {
		return nil, fmt.Errorf("open files of %s: %w", g.UUID, err)
	}
	return found, nil
}

// own is the id of this process in the namespace that proc shows, which must be the host's: in another one, most
// processes are not there to be seen.
func (f *Finder) own() (string, error) {
	namespace, err := os.Readlink(filepath.Join(f.proc, "1", "ns", "pid"))
	if err != nil {
		return "", fmt.Errorf("namespace of process 1: %w", known(err))
	}
	if namespace != initialNamespace {
		return "", fmt.Errorf("%s shows the processes of a PID namespace other than the host's (hostPID): %w", f.proc, gpu.ErrNoPermission)
	}
	own, err := os.Readlink(filepath.Join(f.proc, "self"))
	if err != nil {
		return "", fmt.Errorf("own process: %w", known(err))
	}
	return own, nil
}

func (f *Finder) walk(ctx context.Context, own string, files files) ([]control.Handle, error) {
	entries, err := names(f.proc)
	if err != nil {
		return nil, fmt.Errorf("processes: %w", known(err))
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
		held, err := f.process(name, files)
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", pid, known(err))
		}
		if len(held) == 0 {
			continue
		}
		command := f.command(name)
		for _, h := range held {
			h.PID, h.Command = pid, command
			out = append(out, h)
		}
	}
	slices.SortStableFunc(out, func(a, b control.Handle) int { return int(a.PID) - int(b.PID) })
	return out, nil
}

// process lists what one process has open, without saying who it is. A process that ends meanwhile has nothing.
func (f *Finder) process(name string, files files) ([]control.Handle, error) {
	dir := filepath.Join(f.proc, name, "fd")
	open, err := names(dir)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var held holding
	for _, fd := range open {
		target, err := os.Readlink(dir + "/" + fd)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		held.note(files, target)
	}
	return held.handles(), nil
}

// command is the name of a process; empty for one that has ended.
func (f *Finder) command(name string) string {
	comm, err := os.ReadFile(filepath.Join(f.proc, name, "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(comm))
}

// names lists a directory, in no order.
func names(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	list, err := d.Readdirnames(-1)
	return list, errors.Join(err, d.Close())
}

// gone tells that a process or a file of it is no more.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// known adds the sentinel of gpu that an error of the file system stands for.
func known(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", err, gpu.ErrNoPermission)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", err, gpu.ErrNotFound)
	}
	return fmt.Errorf("%w: %w", err, gpu.ErrUnavailable)
}

// holding is what one process has open of a GPU.
type holding struct {
	whole     bool
	instances []control.Handle
}

// note adds an open file.
func (h *holding) note(files files, target string) {
	file, ok := files.find(target)
	switch {
	case !ok:
	case file.whole:
		h.whole = true
	default:
		h.instances = append(h.instances, control.Handle{Instance: gpu.Some(file.instance), Compute: file.compute})
	}
}

// handles sums up: the file of a GPU instance says nothing more where one of its compute instances is open too, and that
// of the GPU where any of its instances is.
func (h *holding) handles() []control.Handle {
	if len(h.instances) == 0 {
		if h.whole {
			return []control.Handle{{}}
		}
		return nil
	}
	slices.SortFunc(h.instances, func(a, b control.Handle) int { return compare(a, b) })
	var out []control.Handle
	for _, i := range h.instances {
		if len(out) > 0 {
			last := &out[len(out)-1]
			if compare(*last, i) == 0 {
				continue
			}
			if sameInstance(*last, i) && !last.Compute.Present() {
				*last = i
				continue
			}
		}
		out = append(out, i)
	}
	return out
}

func sameInstance(a, b control.Handle) bool { return a.Instance == b.Instance }

// compare puts a GPU instance before its compute instances.
func compare(a, b control.Handle) int {
	number := func(h control.Handle) int {
		compute := -1
		if c, ok := h.Compute.Get(); ok {
			compute = int(c)
		}
		return int(h.Instance.Or(0))<<16 + compute
	}
	return number(a) - number(b)
}

// numbered reads the number that follows a prefix.
func numbered(s, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0 && digits[0] != '+'
}
