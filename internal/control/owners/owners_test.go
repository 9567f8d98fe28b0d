package owners

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

var _ control.Cluster = (*Cluster)(nil)

const gpuA gpu.UUID = "GPU-fb8bbc70-d551-45f9-43d4-9734f9cddb2c"

func write(t *testing.T, path, content string) {
	t.Helper()

	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestGresOfGPUs(t *testing.T) {
	for _, tc := range []struct{ content, want string }{
		{"", ""},
		{"AutoDetect=nvml\n", "AutoDetect=nvml"},
		{"# AutoDetect=nvml\nName=bandwidth Type=lustre Count=4G\n", ""},
		{"AutoDetect=off\nName=mps Count=100\nNAME=GPU type=a100 FILE=/dev/nvidia[0-3] Cores=0,1 # all of them\n",
			"NAME=GPU type=a100 FILE=/dev/nvidia[0-3] Cores=0,1"},
		{"Name=gpu Type=1g.5gb \\\n  MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21\n",
			"Name=gpu Type=1g.5gb    MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21"},
		{"NodeName=n1 AutoDetect=NVIDIA Name=gpu\n", "NodeName=n1 AutoDetect=NVIDIA Name=gpu"},
		{"Name=gpu File=/dev/dri/renderD128\nAutoDetect=rsmi\n", ""},
	} {
		if got := gresOfGPUs(tc.content); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.content, got, tc.want)
		}
	}
}

func TestLocalOwners(t *testing.T) {
	dir := t.TempDir()
	l := &LocalFinder{ProcDir: filepath.Join(dir, "proc"), SysDir: filepath.Join(dir, "sys"),
		GresFiles: []string{filepath.Join(dir, "none"), filepath.Join(dir, "gres.conf")}}
	want := func(step, want string) {
		t.Helper()

		got, err := l.Owners(t.Context())
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, %v, want %s", step, got, err, want)
		}
	}
	want("a bare node", "map[]")
	device := func(address string, files map[string]string) {
		for name, content := range files {
			write(t, filepath.Join(l.SysDir, "bus/pci/devices", address, name), content)
		}
	}
	device("0000:07:00.0", map[string]string{"vendor": "0x10de\n", "class": "0x030200\n", "sriov_numvfs": "0\n"})
	// a switch
	device("0000:0a:00.0", map[string]string{"vendor": "0x10de\n", "class": "0x068000\n", "sriov_numvfs": "4\n"})
	// a network card
	device("0000:18:00.0", map[string]string{"vendor": "0x15b3\n", "class": "0x020700\n", "sriov_numvfs": "8\n"})
	want("GPUs of the bare-metal driver", "map[]")
	device("0000:07:00.0", map[string]string{"sriov_numvfs": "16\n"})
	want("virtual functions", "map[:[vGPU (0000:07:00.0 has 16 virtual functions)]]")
	write(t, filepath.Join(l.ProcDir, "driver/nvidia/gpus/0000:07:00.0/information"),
		"Model: \t\t NVIDIA A100-SXM4-40GB\nGPU UUID: \t "+string(gpuA)+"\nDevice Minor: \t 0\n")
	want("virtual functions of a known GPU", "map["+string(gpuA)+":[vGPU (0000:07:00.0 has 16 virtual functions)]]")
	device("0000:07:00.0", map[string]string{"sriov_numvfs": "0\n"})
	device("0000:47:00.0", map[string]string{"vendor": "0x10de\n", "class": "0x030000\n",
		"mdev_supported_types/nvidia-222/name": "GRID T4-1B\n"})
	want("mediated devices", "map[:[vGPU (0000:47:00.0 has 1 types of mediated devices)]]")
	write(t, filepath.Join(dir, "gres.conf"), "AutoDetect=nvml\n")
	want("Slurm too",
		"map[:[vGPU (0000:47:00.0 has 1 types of mediated devices) Slurm ("+dir+"/gres.conf: AutoDetect=nvml)]]")

	l.GresFiles = []string{dir} // not a file
	if got, err := l.Owners(t.Context()); !errors.Is(err, gpu.ErrUnavailable) || len(got[""]) != 1 {
		t.Errorf("with a gres.conf that cannot be read: %v, %v", got, err)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := l.Owners(ended); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("after the end: %v", err)
	}
}

// known is a source that says what a test gives it, and a cordoner that notes what it is asked.
type known struct {
	owners map[gpu.UUID][]string
	err    error
	calls  []string
}

func (k *known) Owners(context.Context) (map[gpu.UUID][]string, error) { return k.owners, k.err }
func (k *known) Cordon(context.Context) (bool, error) {
	k.calls = append(k.calls, "cordon")
	return true, nil
}
func (k *known) Uncordon(context.Context) error {
	k.calls = append(k.calls, "uncordon")
	return nil
}

func TestNodeJoinsItsSources(t *testing.T) {
	a := &known{owners: map[gpu.UUID][]string{"": {"Slurm"}, gpuA: {"vGPU"}}}
	b := &known{owners: map[gpu.UUID][]string{"": {"GKE"}}, err: gpu.ErrNoPermission}
	n := NewCluster(b, a, b)

	got, err := n.Owners(t.Context())
	if want := "map[:[GKE Slurm] " + string(gpuA) + ":[vGPU]]"; fmt.Sprint(got) != want ||
		!errors.Is(err, gpu.ErrNoPermission) {
		t.Errorf("got %v, %v, want %s and the error", got, err, want)
	}

	if ok, err := n.Cordon(t.Context()); !ok || err != nil {
		t.Errorf("cordon: %v, %v", ok, err)
	}

	if err := n.Uncordon(t.Context()); err != nil || fmt.Sprint(b.calls) != "[cordon uncordon]" {
		t.Errorf("uncordon: %v, calls %v", err, b.calls)
	}

	alone := NewCluster(nil)
	if ok, err := alone.Cordon(t.Context()); ok || err != nil {
		t.Errorf("cordon without a cluster: %v, %v", ok, err)
	}

	if err := alone.Uncordon(t.Context()); err != nil {
		t.Errorf("uncordon without a cluster: %v", err)
	}
}
