package handles

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// capability is what an open file gives access to: the whole GPU or an instance.
type capability struct {
	whole    bool
	instance gpu.InstanceID
	compute  gpu.Opt[gpu.ComputeID]
}

// gpuFiles are the device and capability files of one GPU.
type gpuFiles struct {
	minor int
	caps  map[int]capability // by the minor number of the capability's device file
}

// filesOf returns the files of a GPU. The driver reports the minor numbers of all possible
// capabilities in /proc/driver/nvidia-caps/mig-minors. If that file is missing, we read the minor
// numbers of existing ones in /proc/driver/nvidia/capabilities, which containers do not see.
func (f *Finder) filesOf(g mig.GPULayout) (gpuFiles, error) {
	minor, ok := g.Minor.Get()
	if !ok {
		return gpuFiles{}, fmt.Errorf("its minor number is not known: %w", gpu.ErrNotFound)
	}

	out := gpuFiles{minor: minor}
	if len(g.Instances) == 0 {
		return out, nil
	}

	caps, err := f.readMinors(minor)
	if errors.Is(err, fs.ErrNotExist) {
		caps, err = f.readCapabilities(minor)
	}

	if err != nil {
		return gpuFiles{}, fmt.Errorf("capability files: %w", withSentinel(err))
	}

	out.caps = caps
	for i := range g.Instances {
		if id := g.Instances[i].ID; !out.includeInstance(id) {
			return gpuFiles{}, fmt.Errorf(
				"capability files: GPU instance %d has none: %w",
				id,
				gpu.ErrNotFound,
			)
		}
	}

	return out, nil
}

// includeInstance reports whether there is a capability file of a GPU instance.
func (f gpuFiles) includeInstance(id gpu.InstanceID) bool {
	for _, c := range f.caps {
		if c.instance == id && !c.compute.Present() {
			return true
		}
	}

	return false
}

// readMinors reads lines such as "gpu0/gi1/access 12" and "gpu0/gi1/ci0/access 13". Other lines
// ("config 1", "monitor 2") belong to no instance.
func (f *Finder) readMinors(gpuMinor int) (map[int]capability, error) {
	file, err := os.Open(filepath.Join(f.proc, "driver", "nvidia-caps", "mig-minors"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	out := map[int]capability{}

	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, number, ok := strings.Cut(lines.Text(), " ")
		minor, isNumber := parseNumber(strings.TrimSpace(number), "")

		ofGPU, what, known := parseCapability(strings.Split(name, "/"))
		if ok && isNumber && known && ofGPU == gpuMinor {
			out[minor] = what
		}
	}

	return out, lines.Err()
}

// readCapabilities reads the files gpu<minor>/mig/gi<id>/access and .../ci<id>/access, each with a
// line "DeviceFileMinor: 12".
func (f *Finder) readCapabilities(gpuMinor int) (map[int]capability, error) {
	root := filepath.Join(
		f.proc,
		"driver",
		"nvidia",
		"capabilities",
		fmt.Sprintf("gpu%d", gpuMinor),
		"mig",
	)
	out := map[int]capability{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() != "access" {
			return err
		}

		fromGPU, err := filepath.Rel(filepath.Dir(filepath.Dir(root)), file) // gpu0/mig/gi1/access
		if err != nil {
			return err
		}

		_, what, ok := parseCapability(withoutMIG(strings.Split(fromGPU, "/")))
		if !ok {
			return nil
		}

		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}

		for line := range strings.Lines(string(content)) {
			if minor, ok := parseNumber(strings.TrimSpace(line), "DeviceFileMinor: "); ok {
				out[minor] = what
			}
		}

		return nil
	})

	return out, err
}

// withoutMIG removes the folder "mig" from gpu0/mig/gi1/access.
func withoutMIG(parts []string) []string {
	if len(parts) > 1 && parts[1] == "mig" {
		return append([]string{parts[0]}, parts[2:]...)
	}

	return parts
}

// parseCapability reads gpu0/gi1/access and gpu0/gi1/ci0/access.
func parseCapability(parts []string) (gpuMinor int, what capability, ok bool) {
	if len(parts) != 3 && len(parts) != 4 || parts[len(parts)-1] != "access" {
		return 0, capability{}, false
	}

	gpuMinor, ok = parseNumber(parts[0], "gpu")
	gi, giOK := parseNumber(parts[1], "gi")
	what.instance = gpu.InstanceID(gi)

	if len(parts) == 4 {
		ci, ciOK := parseNumber(parts[2], "ci")
		what.compute = gpu.Some(gpu.ComputeID(ci))
		ok = ok && ciOK
	}

	return gpuMinor, what, ok && giOK
}

// capabilityOf returns what an open file gives access to, by its name: to open the file itself could
// block if its file system does not answer. We ignore its folder, which differs between containers.
// With drivers before 450.51, processes open the capability files in /proc instead of device files.
func (f gpuFiles) capabilityOf(target string) (capability, bool) {
	target = strings.TrimSuffix(target, " (deleted)")

	base := path.Base(target)
	if minor, ok := parseNumber(base, "nvidia-cap"); ok {
		c, ok := f.caps[minor]
		return c, ok
	}

	if minor, ok := parseNumber(base, "nvidia"); ok {
		return capability{whole: true}, minor == f.minor
	}

	if _, fromGPU, ok := strings.Cut(target, "/driver/nvidia/capabilities/"); ok {
		ofGPU, what, ok := parseCapability(withoutMIG(strings.Split(fromGPU, "/")))
		return what, ok && ofGPU == f.minor
	}

	return capability{}, false
}
