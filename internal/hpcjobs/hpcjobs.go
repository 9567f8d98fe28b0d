// Package hpcjobs reads which batch jobs hold which GPU, from a folder that a scheduler's prolog and epilog keep: a file for
// each GPU, named by its index ("0"), or for a GPU instance, by the index and the driver's id of the instance ("0.7"), with a
// job in each line. It is the form that NVIDIA's dcgm-exporter reads.
package hpcjobs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// maxFile bounds what is read of one file. A job id has some ten characters.
const maxFile = 64 << 10

// Folder is where the files are.
type Folder struct{ path string }

// New returns the folder of a path, which need not exist yet.
func New(path string) *Folder { return &Folder{path: path} }

// Jobs reads all files. Files with other names are not read. An error means that the jobs are not known:
// gpu.ErrNotFound where the folder is not there.
func (f *Folder) Jobs() (gpu.Jobs, error) {
	entries, err := os.ReadDir(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("job mapping: folder %s: %w", f.path, gpu.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("job mapping: %w", err)
	}
	jobs := gpu.Jobs{}
	for _, entry := range entries {
		device, ok := deviceOf(entry.Name())
		if !ok {
			continue
		}
		list, err := readJobs(filepath.Join(f.path, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("job mapping: %w", err)
		}
		if len(list) > 0 {
			jobs[device] = list
		}
	}
	return jobs, nil
}

// deviceOf reads a file's name: "0", or "0.7".
func deviceOf(name string) (gpu.JobDevice, bool) {
	index, instance, isInstance := strings.Cut(name, ".")
	n, ok := gpu.ParseDecimal(index)
	device := gpu.JobDevice{Index: int(n)}
	if isInstance {
		id, idOK := gpu.ParseDecimal(instance)
		device.Instance, ok = gpu.Some(gpu.InstanceID(id)), ok && idOK
	}
	return device, ok
}

// readJobs reads a file's lines in their order, each once. One that is gone by now has no jobs; what is no regular file is
// not read: a pipe would keep the reader waiting.
func readJobs(path string) ([]string, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes: expected a job id in each line", path, maxFile)
	}
	var jobs []string
	for line := range strings.Lines(strings.ToValidUTF8(string(text), "\uFFFD")) {
		if job := strings.TrimSpace(line); job != "" && !slices.Contains(jobs, job) {
			jobs = append(jobs, job)
		}
	}
	return jobs, nil
}
