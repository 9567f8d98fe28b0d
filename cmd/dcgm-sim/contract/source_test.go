package contract

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/cmd/dcgm-sim/damaged"
	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// What the exporter's source of profiling makes of DCGM's habits, through go-dcgm and the C
// library.

const aMIGNode = `gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4"]}]
workloads: [{name: w, memory: 1GiB, sm: 21}]
processes: [{device: 0/3g.20gb@4, workload: w}]
`

// lookFor lets seconds pass and returns the last error.
func (p *pictures) lookFor(seconds int) error {
	var err error
	for range seconds {
		_, _, _, err = p.look()
	}

	return err
}

// picturesOf has a source of a mode in the place of the one through the library; lines is its log.
func picturesOf(t *testing.T, opts dcgmsource.Options) (p *pictures, lines *strings.Builder) {
	p = newPictures(t, nil)
	lines = &strings.Builder{}
	opts.Now, opts.Logger = p.node.Now, log.NewLogfmtLogger(lines)
	p.library = dcgmsource.New(dcgmsource.Open(opts.Mode, opts.Address), opts)

	return p, lines
}

// TestSourceWithoutRoot: an embedded engine that does not start for lack of root is started three
// times in fifteen minutes, and leaves so many threads; the error says what to do.
func TestSourceWithoutRoot(t *testing.T) {
	path := scenario(t, aMIGNode+"faults: [{kind: dcgm-requires-root}]\n")
	if !inChild(t, environment(t, path)...) {
		return
	}

	p, _ := picturesOf(t, dcgmsource.Options{Mode: dcgmsource.ModeEmbedded, User: func() int { return 65534 }})
	err := p.lookFor(10)

	before := threads(t)
	if err = errors.Join(err, p.lookFor(15*60)); !errors.Is(err, dcgmsource.ErrRequiresRoot) ||
		!errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("%v", err)
	}

	for _, text := range []string{"run this program as root", "--dcgm.address=HOST:PORT", "3 starts have failed"} {
		says(t, "without root", err, text)
	}

	if now := threads(t); now > before+2 { // the Go runtime may start one of its own
		t.Errorf("%d threads after the third start, %d a quarter of an hour later", before, now)
	}
}

// TestSourceOfAnotherVersion: the error names the engine's version, the library's and the
// program's; it ends with the mismatch.
func TestSourceOfAnotherVersion(t *testing.T) {
	path := scenario(t, aMIGNode+"faults: [{kind: dcgm-version-mismatch, for: 100s}]\n")
	if !inChild(t, environment(t, path)...) {
		return
	}

	p, _ := picturesOf(t, dcgmsource.Options{Mode: dcgmsource.ModeRemote, Address: "localhost:5555"})

	err := p.lookFor(60)
	if !errors.Is(err, dcgmsource.ErrVersion) || !errors.Is(err, gpu.ErrUnavailable) {
		t.Fatal(err)
	}

	for _, text := range []string{"the host engine at localhost:5555 is DCGM 4.2.3", "libdcgm.so.4 here is DCGM 4.5.3",
		"made for DCGM 4.5", "install one version"} {
		says(t, "another version", err, text)
	}

	if err := p.lookFor(120); err != nil {
		t.Errorf("with the right version: %v", err)
	}
}

// TestSourceOnDamagedLibraries: the source is unavailable, says what is wrong, and does not end the
// process.
func TestSourceOnDamagedLibraries(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		damage     func(library, to string) error
		err        error
	}{
		{"incomplete", "lacks dcgmGetGpuInstanceHierarchy, dcgmUpdateAllFields", func(library, to string) error {
			return damaged.WithoutSymbols(library, to, "dcgmGetGpuInstanceHierarchy", "dcgmUpdateAllFields")
		}, dcgmsource.ErrLibrary},
		{"truncated", "file too short", damaged.Truncated, dcgmsource.ErrLibrary},
		{"absent", "libdcgm.so.4 not found", func(string, string) error { return nil }, dcgmsource.ErrNoLibrary},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := scenario(t, aMIGNode)

			dir := t.TempDir()
			if os.Getenv(childVariable) == "" {
				if err := tt.damage(library(), filepath.Join(dir, "libdcgm.so.4")); err != nil {
					t.Fatal(err)
				}
			}

			if !inChild(t, append(environment(t, path), "LD_LIBRARY_PATH="+dir)...) {
				return
			}

			p, _ := picturesOf(t, dcgmsource.Options{Mode: dcgmsource.ModeEmbedded})

			err := p.lookFor(60)
			if !errors.Is(err, tt.err) || !errors.Is(err, gpu.ErrUnavailable) {
				t.Errorf("%v", err)
			}

			says(t, tt.name, err, tt.text)
		})
	}
}

// TestSourceAfterAChangeOfTheMIGMode: another client changes the mode. A remote engine follows, an
// embedded one is started again.
func TestSourceAfterAChangeOfTheMIGMode(t *testing.T) {
	for _, mode := range []dcgmsource.Mode{dcgmsource.ModeEmbedded, dcgmsource.ModeRemote} {
		t.Run(string(mode), func(t *testing.T) {
			path := scenario(t, "gpus: [{model: H100-80GB}]\n")
			if !inChild(t, environment(t, path)...) {
				return
			}

			p, lines := picturesOf(t, dcgmsource.Options{Mode: mode, Address: "localhost:5555"})
			if err := p.lookFor(5); err != nil {
				t.Fatal(err)
			}

			if err := p.node.SetMIGMode(0, true); err != nil {
				t.Fatal(err)
			}

			repartition(t, p.node)

			if err := p.lookFor(19); err != nil {
				t.Fatal(err)
			}

			_, got, _, err := p.look()
			for _, profiling := range got {
				if len(profiling.Instances) != 1 {
					t.Errorf("%+v, %v\n%s", profiling, err, lines)
				}
			}

			restarted := strings.Contains(lines.String(), "restarting it")
			if want := mode == dcgmsource.ModeEmbedded; restarted != want {
				t.Errorf("started again: %v, want %v\n%s", restarted, want, lines)
			}
		})
	}
}

// TestSourceWithoutProfilingModule: the package is named once for all GPUs that need it; GPUs with
// GPM are profiled all the same.
func TestSourceWithoutProfilingModule(t *testing.T) {
	path := scenario(t,
		"gpus: [{model: A100-40GB, count: 2}, {model: H100-80GB}]\nfaults: [{kind: dcgm-no-profiling-module}]\n")
	if !inChild(t, environment(t, path)...) {
		return
	}

	p, lines := picturesOf(t, dcgmsource.Options{Mode: dcgmsource.ModeRemote, Address: "localhost:5555"})
	if err := p.lookFor(59); err != nil {
		t.Fatal(err)
	}

	_, got, _, err := p.look()
	profiled := 0

	for _, one := range got {
		if one.GPU.SM.Present() {
			profiled++
		}
	}

	if n := strings.Count(lines.String(),
		"install the package datacenter-gpu-manager-4-proprietary where the nv-hostengine at localhost:5555 runs"); n != 1 ||
		profiled != 1 {
		t.Errorf("said %d times, %d GPUs are profiled, %v\n%s", n, profiled, err, lines)
	}
}
