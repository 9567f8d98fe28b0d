package handles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

const ownPID = 4242

// proc is a tree like /proc.
type proc struct {
	t   testing.TB
	dir string
}

func (p proc) write(path, content string) {
	p.t.Helper()

	path = filepath.Join(p.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p proc) link(path, target string) {
	p.t.Helper()

	path = filepath.Join(p.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}

	if err := os.Symlink(target, path); err != nil {
		p.t.Fatal(err)
	}
}

func (p proc) process(pid int, command string, open ...string) {
	p.t.Helper()
	p.write(fmt.Sprintf("%d/comm", pid), command+"\n")

	if err := os.MkdirAll(filepath.Join(p.dir, strconv.Itoa(pid), "fd"), 0o755); err != nil {
		p.t.Fatal(err)
	}

	for fd, target := range open {
		p.link(fmt.Sprintf("%d/fd/%d", pid, fd), target)
	}
}

// minors are of two GPUs' first instances, as the driver numbers them.
const minors = `config 1
monitor 2
gpu0/gi0/access 3
gpu0/gi0/ci0/access 4
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu0/gi1/ci1/access 14
gpu0/gi2/access 21
gpu0/gi2/ci0/access 22
gpu1/gi1/access 147
gpu1/gi1/ci0/access 148
`

// empty is a node with a driver and no processes but init and this one.
func empty(t testing.TB) proc {
	p := proc{t, t.TempDir()}
	p.write("driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n")
	p.write("driver/nvidia-caps/mig-minors", minors)
	p.write("sys/kernel/ostype", "Linux\n")
	p.process(1, "systemd", "/dev/null")
	p.link("1/ns/pid", "pid:[4026531836]")
	p.link("self", strconv.Itoa(ownPID))
	p.process(ownPID, "mig-exporter", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12")

	return p
}

// twoInstances is a GPU of minor number 0 with the GPU instances 1 and 2.
func twoInstances() mig.GPULayout {
	return mig.GPULayout{
		Facts: gpu.Facts{UUID: "GPU-fb8bbc70-d551-45f9-43d4-9734f9cddb2c", Minor: gpu.Some(0)}, MIG: gpu.Some(true),
		Instances: []mig.Instance{{ID: 1}, {ID: 2}},
	}
}

// text writes handles as "pid command gi/ci", with "-" for what is absent.
func text(handles []control.Handle) string {
	var out []string

	for _, h := range handles {
		gi := "-"
		ci := "-"

		if id, ok := h.Instance.Get(); ok {
			gi = fmt.Sprint(id)
		}

		if id, ok := h.Compute.Get(); ok {
			ci = fmt.Sprint(id)
		}

		out = append(out, fmt.Sprintf("%d %s %s/%s", h.PID, h.Command, gi, ci))
	}

	return strings.Join(out, ", ")
}

func TestOpen(t *testing.T) {
	for _, tc := range []struct {
		name string
		open []string
		want string
	}{
		{"nothing", nil, ""},
		{"other files", []string{"/dev/null", "socket:[123]", "anon_inode:[eventpoll]", "/home/u/nvidia0.log",
			"/dev/nvidiax"}, ""},
		{"files of all GPUs", []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
			"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"}, ""},
		{"another GPU", []string{"/dev/nvidia1", "/dev/nvidia10", "/dev/nvidia-caps/nvidia-cap147",
			"/dev/nvidia-caps/nvidia-cap148"}, ""},
		{"an NVML client", []string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"}, "7 job -/-"},
		{"the user of an instance", []string{"/dev/nvidia0", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12",
			"/dev/nvidia-caps/nvidia-cap13"}, "7 job 1/0"},
		{"in any order, opened twice", []string{"/dev/nvidia-caps/nvidia-cap14", "/dev/nvidia-caps/nvidia-cap12",
			"/dev/nvidia-caps/nvidia-cap14", "/dev/nvidia0"}, "7 job 1/1"},
		{"both compute instances", []string{"/dev/nvidia-caps/nvidia-cap14", "/dev/nvidia-caps/nvidia-cap12",
			"/dev/nvidia-caps/nvidia-cap13"}, "7 job 1/0, 7 job 1/1"},
		{"a GPU instance alone", []string{"/dev/nvidia-caps/nvidia-cap21"}, "7 job 2/-"},
		{"two GPU instances", []string{"/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia-caps/nvidia-cap12"},
			"7 job 1/-, 7 job 2/0"},
		{"one that is gone", []string{"/dev/nvidia-caps/nvidia-cap4"}, "7 job 0/0"},
		{"files created again since", []string{"/dev/nvidia-caps/nvidia-cap12 (deleted)"}, "7 job 1/-"},
		{"a device deleted", []string{"/dev/nvidia0 (deleted)"}, "7 job -/-"},
		{"files at another place", []string{"/run/nvidia/driver/dev/nvidia0", "/nvidia-cap22"}, "7 job 2/0"},
		{"capabilities of an old driver", []string{"/proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access"}, "7 job 2/0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := empty(t)
			p.process(7, "job", tc.open...)

			got, err := New(p.dir, nil).Open(t.Context(), twoInstances())
			if err != nil || text(got) != tc.want {
				t.Errorf("got %q, %v, want %q", text(got), err, tc.want)
			}
		})
	}
}

func TestOpenListsByProcess(t *testing.T) {
	p := empty(t)
	p.process(900, "nvidia-smi", "/dev/nvidia0")
	p.process(31, "b", "/dev/nvidia-caps/nvidia-cap12")
	p.process(1000, "a", "/dev/nvidia-caps/nvidia-cap12")

	got, err := New(p.dir, nil).Open(t.Context(), twoInstances())
	if want := "31 b 1/-, 900 nvidia-smi -/-, 1000 a 1/-"; err != nil || text(got) != want {
		t.Errorf("got %q, %v, want %q", text(got), err, want)
	}
}

func TestOpenWithoutADriver(t *testing.T) {
	p := proc{t, t.TempDir()}
	p.process(7, "job", "/dev/nvidia0")

	if got, err := New(p.dir, nil).Open(t.Context(), twoInstances()); err != nil || got != nil {
		t.Errorf("got %q, %v, want nothing", text(got), err)
	}

	if got, err := New(p.dir, gpu.ErrPIDNamespace).Open(t.Context(), twoInstances()); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("outside of the host's PID namespace: got %q, %v, want %v", text(got), err, gpu.ErrNotFound)
	}

	if got, err := New(filepath.Join(p.dir, "elsewhere"), nil).
		Open(t.Context(), twoInstances()); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("at another path: got %q, %v, want %v", text(got), err, gpu.ErrNotFound)
	}
}

func TestOpenReadsSingleCapabilities(t *testing.T) {
	p := empty(t)
	if err := os.RemoveAll(filepath.Join(p.dir, "driver", "nvidia-caps")); err != nil {
		t.Fatal(err)
	}

	p.process(7, "job", "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia-caps/nvidia-cap148")

	if _, err := New(p.dir, nil).Open(t.Context(), twoInstances()); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("without capabilities: %v, want %v", err, gpu.ErrNotFound)
	}

	root := "driver/nvidia/capabilities/"
	p.write(root+"mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n")

	for path, minor := range map[string]int{
		"gpu0/mig/gi1/access": 12, "gpu0/mig/gi1/ci0/access": 13, "gpu0/mig/gi2/access": 21, "gpu0/mig/gi2/ci0/access": 22,
		"gpu1/mig/gi1/ci0/access": 148,
	} {
		p.write(root+path, fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor))
	}

	got, err := New(p.dir, nil).Open(t.Context(), twoInstances())
	if want := "7 job 2/0"; err != nil || text(got) != want {
		t.Errorf("got %q, %v, want %q", text(got), err, want)
	}
}

// TestOpenDoesNotGuess: what could not be looked at may be anything.
func TestOpenDoesNotGuess(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(p proc, g *mig.GPULayout)
		want error
	}{
		{"no minor number", func(_ proc, g *mig.GPULayout) { g.Minor = gpu.None[int]() }, gpu.ErrNotFound},
		{"an instance without a capability",
			func(_ proc, g *mig.GPULayout) { g.Instances = append(g.Instances, mig.Instance{ID: 6}) }, gpu.ErrNotFound},
		{"another PID namespace", func(p proc, _ *mig.GPULayout) {
			if err := os.Remove(filepath.Join(p.dir, "1", "ns", "pid")); err != nil {
				p.t.Fatal(err)
			}

			p.link("1/ns/pid", "pid:[4026532574]")
		}, gpu.ErrNoPermission},
		{"another PID namespace, by its name", func(p proc, _ *mig.GPULayout) {
			if err := os.Remove(filepath.Join(p.dir, "1", "ns", "pid")); err != nil {
				p.t.Fatal(err)
			}

			p.link("1/ns/pid", "pid:[4026532574]")
		}, gpu.ErrPIDNamespace},
		{"no process 1", func(p proc, _ *mig.GPULayout) {
			if err := os.RemoveAll(filepath.Join(p.dir, "1")); err != nil {
				p.t.Fatal(err)
			}
		}, gpu.ErrNotFound},
		{"no own process", func(p proc, _ *mig.GPULayout) {
			if err := os.Remove(filepath.Join(p.dir, "self")); err != nil {
				p.t.Fatal(err)
			}
		}, gpu.ErrNotFound},
		{"something else than files", func(p proc, _ *mig.GPULayout) { p.write("8/fd", "") }, gpu.ErrUnavailable},
	} {
		p := empty(t)
		g := twoInstances()
		tc.make(p, &g)

		if got, err := New(p.dir, nil).Open(t.Context(), g); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %q, %v, want %v", tc.name, text(got), err, tc.want)
		}
	}
}

func TestOpenNeedsNoCapabilitiesWithoutInstances(t *testing.T) {
	p := empty(t)
	if err := os.RemoveAll(filepath.Join(p.dir, "driver", "nvidia-caps")); err != nil {
		t.Fatal(err)
	}

	p.process(7, "dcgm", "/dev/nvidia0")
	g := twoInstances()

	g.Instances, g.MIG = nil, gpu.Some(false)
	if got, err := New(p.dir, nil).Open(t.Context(), g); err != nil || text(got) != "7 dcgm -/-" {
		t.Errorf("got %q, %v", text(got), err)
	}
}

func TestOpenForgivesProcessesThatEnd(t *testing.T) {
	p := empty(t)
	p.write("8/comm", "gone\n") // its files are gone already
	p.process(9, "job", "/dev/nvidia-caps/nvidia-cap12")

	if err := os.Remove(filepath.Join(p.dir, "9", "comm")); err != nil {
		t.Fatal(err)
	}

	if got, err := New(p.dir, nil).Open(t.Context(), twoInstances()); err != nil || text(got) != "9  1/-" {
		t.Errorf("got %q, %v", text(got), err)
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	p := empty(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := New(p.dir, nil).Open(ctx, twoInstances()); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("got %v, want %v", err, gpu.ErrTimeout)
	}
}

// TestKnown: the errors of a process that may not be looked at, which root meets in no tree of its
// own.
func TestKnown(t *testing.T) {
	for err, want := range map[error]error{
		&os.PathError{Op: "open", Path: "/proc/1/fd", Err: os.ErrPermission}: gpu.ErrNoPermission,
		&os.PathError{Op: "open", Path: "/proc/1/fd", Err: os.ErrNotExist}:   gpu.ErrNotFound,
		&os.PathError{Op: "open", Path: "/proc/1/fd", Err: os.ErrInvalid}:    gpu.ErrUnavailable,
	} {
		if got := withSentinel(err); !errors.Is(got, want) {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
}

func BenchmarkOpen5000Processes(b *testing.B) {
	p := empty(b)
	for pid := 10_000; pid < 15_000; pid++ {
		p.process(pid, "worker", "/dev/null", "pipe:[1]", "pipe:[2]", "socket:[3]", "socket:[4]", "anon_inode:[eventpoll]",
			"/usr/lib/locale/locale-archive", "/var/log/messages", "socket:[5]", "socket:[6]")
	}

	p.process(20_000, "job", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12")

	f := New(p.dir, nil)
	for b.Loop() {
		got, err := f.Open(b.Context(), twoInstances())
		if err != nil || len(got) != 1 {
			b.Fatal(got, err)
		}
	}
}
