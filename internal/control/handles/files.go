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

// capability is what a file gives access to: the whole GPU, or an instance.
type capability struct {
	whole    bool
	instance gpu.InstanceID
	compute  gpu.Opt[gpu.ComputeID]
}

// files are those of one GPU.
type files struct {
	minor int
	caps  map[int]capability // by the minor number of the capability's device file
}

// filesOf asks the driver which files are those of a GPU. Which minor number a capability has is told for all that can
// be in /proc/driver/nvidia-caps/mig-minors, and for those that are in /proc/driver/nvidia/capabilities; the second is
// hidden in containers.
func (f *Finder) filesOf(g mig.GPULayout) (files, error) {
	minor, ok := g.Minor.Get()
	if !ok {
		return files{}, fmt.Errorf("its minor number is not known: %w", gpu.ErrNotFound)
	}
	out := files{minor: minor}
	if len(g.Instances) == 0 {
		return out, nil
	}
	caps, err := f.minors(minor)
	if errors.Is(err, fs.ErrNotExist) {
		caps, err = f.capabilities(minor)
	}
	if err != nil {
		return files{}, fmt.Errorf("capability files: %w", known(err))
	}
	out.caps = caps
	for i := range g.Instances {
		if id := g.Instances[i].ID; !out.has(id) {
			return files{}, fmt.Errorf("capability files: GPU instance %d has none: %w", id, gpu.ErrNotFound)
		}
	}
	return out, nil
}

func (f files) has(id gpu.InstanceID) bool {
	for _, c := range f.caps {
		if c.instance == id && !c.compute.Present() {
			return true
		}
	}
	return false
}

// minors reads lines such as "gpu0/gi1/access 12" and "gpu0/gi1/ci0/access 13". Others ("config 1", "monitor 2") are of
// no instance.
func (f *Finder) minors(gpuMinor int) (map[int]capability, error) {
	file, err := os.Open(filepath.Join(f.proc, "driver", "nvidia-caps", "mig-minors"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	out := map[int]capability{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, number, ok := strings.Cut(lines.Text(), " ")
		minor, isNumber := numbered(strings.TrimSpace(number), "")
		of, what, known := parseCapability(strings.Split(name, "/"))
		if ok && isNumber && known && of == gpuMinor {
			out[minor] = what
		}
	}
	return out, lines.Err()
}

// capabilities reads the files gpu<minor>/mig/gi<id>/access and .../ci<id>/access, each with a line
// "DeviceFileMinor: 12".
func (f *Finder) capabilities(gpuMinor int) (map[int]capability, error) {
	root := filepath.Join(f.proc, "driver", "nvidia", "capabilities", fmt.Sprintf("gpu%d", gpuMinor), "mig")
	out := map[int]capability{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() != "access" {
			return err
		}
		below, err := filepath.Rel(filepath.Dir(filepath.Dir(root)), file)
		if err != nil {
			return err
		}
		_, what, ok := parseCapability(withoutMIG(strings.Split(below, "/")))
		if !ok {
			return nil
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(content)) {
			if minor, ok := numbered(strings.TrimSpace(line), "DeviceFileMinor: "); ok {
				out[minor] = what
			}
		}
		return nil
	})
	return out, err
}

// withoutMIG takes the folder "mig" out of gpu0/mig/gi1/access.
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
	gpuMinor, ok = numbered(parts[0], "gpu")
	gi, giOK := numbered(parts[1], "gi")
	what.instance = gpu.InstanceID(gi)
	if len(parts) == 4 {
		ci, ciOK := numbered(parts[2], "ci")
		what.compute = gpu.Some(gpu.ComputeID(ci))
		ok = ok && ciOK
	}
	return gpuMinor, what, ok && giOK
}

// find tells what an open file gives access to, by its name: to ask the file itself could block, where it is on a file
// system that does not answer. The folder does not count, which differs between containers. Drivers before 450.51 had
// their capabilities' own files in /proc opened, not device files.
func (f files) find(target string) (capability, bool) {
	target = strings.TrimSuffix(target, " (deleted)")
	base := path.Base(target)
	if minor, ok := numbered(base, "nvidia-cap"); ok {
		c, ok := f.caps[minor]
		return c, ok
	}
	if minor, ok := numbered(base, "nvidia"); ok {
		return capability{whole: true}, minor == f.minor
	}
	if _, below, ok := strings.Cut(target, "/driver/nvidia/capabilities/"); ok {
		of, what, ok := parseCapability(withoutMIG(strings.Split(below, "/")))
		return what, ok && of == f.minor
	}
	return capability{}, false
}
