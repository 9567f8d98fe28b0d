package owners

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// nvidia is NVIDIA's PCI vendor id, as sysfs writes it.
const nvidia = "0x10de"

// maxFile is how many bytes of a file we read.
const maxFile = 4 << 20

// LocalFinder finds owners by files of the node: Slurm, and the host driver of virtual GPUs.
type LocalFinder struct {
	// ProcDir and SysDir are the host's /proc and /sys.
	ProcDir, SysDir string
	// GresFiles are the paths at which Slurm's gres.conf may be: see DefaultGresFiles.
	GresFiles []string
}

// DefaultGresFiles returns the paths of gres.conf in Slurm's packages, and of slurmd without
// configuration files.
func DefaultGresFiles() []string {
	return []string{
		"/etc/slurm/gres.conf",
		"/etc/slurm-llnl/gres.conf",
		"/run/slurm/conf/gres.conf",
	}
}

// Owners implements Finder. If a file cannot be read, the error wraps gpu.ErrNoPermission or
// gpu.ErrUnavailable.
func (l *LocalFinder) Owners(ctx context.Context) (map[gpu.UUID][]string, error) {
	out := map[gpu.UUID][]string{}

	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("owners of GPUs: %w: %w", err, gpu.ErrTimeout)
	}

	errs := []error{l.addVirtual(out)}
	for _, file := range l.GresFiles {
		content, err := readFile(file)
		switch gresLine := gresOfGPUs(content); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, fmt.Errorf("owners of GPUs: Slurm: %w", withSentinel(err)))
		case gresLine != "":
			out[""] = append(out[""], fmt.Sprintf("Slurm (%s: %s)", file, gresLine))
		}
	}

	return out, errors.Join(errs...)
}

// gresOfGPUs returns the first line of a gres.conf that makes GPUs a resource of Slurm: by device
// file, or by AutoDetect. Names of parameters and values of AutoDetect are case insensitive. We also
// count lines that may be for other nodes: we don't evaluate Slurm's expressions for nodes.
// https://slurm.schedmd.com/gres.conf.html
func gresOfGPUs(content string) string {
	content = strings.ReplaceAll(content, "\\\n", " ")
	for line := range strings.Lines(content) {
		line, _, _ = strings.Cut(line, "#")
		for word := range strings.FieldsSeq(line) {
			key, value, _ := strings.Cut(strings.ToLower(word), "=")

			switch {
			case key == "autodetect" && (value == "nvml" || value == "nvidia"),
				(key == "file" || key == "multiplefiles") && strings.Contains(value, "/dev/nvidia"):
				return strings.TrimSpace(line)
			}
		}
	}

	return ""
}

// addVirtual adds the GPUs that NVIDIA's vGPU driver divides among virtual machines: GPUs with
// SR-IOV functions, and older ones with types of mediated devices. With the bare-metal driver a GPU
// has neither.
// https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/index.html
func (l *LocalFinder) addVirtual(out map[gpu.UUID][]string) error {
	bus := filepath.Join(l.SysDir, "bus", "pci", "devices")

	devices, err := os.ReadDir(bus)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no PCI bus
	}

	if err != nil {
		return fmt.Errorf("owners of GPUs: PCI devices: %w", withSentinel(err))
	}

	for _, d := range devices {
		// 0x03 is PCI's base class of GPUs.
		dir := filepath.Join(bus, d.Name())
		if attribute(dir, "vendor") != nvidia ||
			!strings.HasPrefix(attribute(dir, "class"), "0x03") {
			continue
		}

		var owner string

		types, _ := os.ReadDir(filepath.Join(dir, "mdev_supported_types"))
		switch functions := attribute(dir, "sriov_numvfs"); {
		case functions != "" && functions != "0":
			owner = fmt.Sprintf("vGPU (%s has %s virtual functions)", d.Name(), functions)
		case len(types) > 0 && !exists(filepath.Join(dir, "physfn")): // it is no virtual function
			owner = fmt.Sprintf("vGPU (%s has %d types of mediated devices)", d.Name(), len(types))
		default:
			continue
		}

		id := l.uuidOf(d.Name())
		out[id] = append(out[id], owner)
	}

	return nil
}

// uuidOf returns the UUID that the driver reports for the GPU at a PCI address. It returns "" if
// there is none, so that the owner counts for all GPUs.
func (l *LocalFinder) uuidOf(address string) gpu.UUID {
	content, err := readFile(
		filepath.Join(l.ProcDir, "driver", "nvidia", "gpus", address, "information"),
	)
	if err != nil {
		return ""
	}

	for line := range strings.Lines(content) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) != "GPU UUID" {
			continue
		}

		if id, err := gpu.ParseUUID(strings.TrimSpace(value)); err == nil {
			return id
		}
	}

	return ""
}

// attribute returns the content of a sysfs file; it is empty if there is none.
func attribute(dir, name string) string {
	content, err := readFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}

	return strings.TrimSpace(content)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}

	content, err := io.ReadAll(io.LimitReader(f, maxFile))

	return string(content), errors.Join(err, f.Close())
}

// withSentinel adds the sentinel of package gpu for an error of the file system.
func withSentinel(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", err, gpu.ErrNoPermission)
	}

	return fmt.Errorf("%w: %w", err, gpu.ErrUnavailable)
}
