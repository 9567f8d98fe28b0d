// Package hpcjobs reads which batch jobs hold which GPU, from a folder that a scheduler's prolog
// and epilog maintain: a file for each GPU, named by its index ("0"), or for a GPU instance, by the
// index and the driver's id of the instance ("0.7"), with a job in each line. This is the format of
// NVIDIA's dcgm-exporter.
package hpcjobs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Limits of what is read, so that the folder cannot make series without end. A job id has some ten
// characters.
const (
	maxFile = 64 << 10 // bytes of one file
	maxJob  = 128      // bytes of one job id
	maxJobs = 64       // jobs of one device
)

// Folder is the folder of job files. It is not safe for concurrent use.
type Folder struct {
	path   string
	logger log.Logger
	logged map[string]string // the logged reason of each file that is left out
}

// New returns the folder of a path, which need not exist yet.
func New(path string, logger log.Logger) *Folder {
	return &Folder{path: path, logger: logger, logged: map[string]string{}}
}

// Jobs reads the files of devices; other files in the folder are ignored. A file that cannot be
// used is logged once for each reason; then the error wraps gpu.ErrUnavailable, and the jobs of the
// other devices are returned. If the whole folder cannot be read, the jobs are nil; the error wraps
// gpu.ErrNotFound if it does not exist.
func (f *Folder) Jobs(devices []gpu.JobDevice) (gpu.Jobs, error) {
	_, err := os.Stat(f.path + "/.") // the right to search the folder, too
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("job mapping: folder %s: %w", f.path, gpu.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("job mapping: %w", err)
	}

	jobs := gpu.Jobs{}
	faulty := map[string]string{}

	for _, device := range devices {
		name := fileName(device)

		list, err := readJobs(filepath.Join(f.path, name))
		if err != nil {
			faulty[name] = err.Error()
			continue
		}

		jobs[device] = list
	}

	f.logFaulty(faulty)

	if len(faulty) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(faulty)))
		more := ""

		if len(faulty) > 1 {
			more = fmt.Sprintf(" (files that cannot be used: %d)", len(faulty))
		}

		return jobs, fmt.Errorf(
			"job mapping: %w: %s: %s%s",
			gpu.ErrUnavailable,
			filepath.Join(f.path, first),
			faulty[first],
			more,
		)
	}

	return jobs, nil
}

// logFaulty logs why files are left out, each once until the reason changes.
func (f *Folder) logFaulty(faulty map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(faulty)) {
		if f.logged[name] != faulty[name] {
			level.Warn(f.logger).Log(
				"msg", "ignoring a job file; the devices of other files keep their jobs",
				"file", filepath.Join(f.path, name),
				"err", faulty[name],
			)
		}
	}

	for _, name := range slices.Sorted(maps.Keys(f.logged)) {
		if _, still := faulty[name]; !still {
			level.Info(f.logger).Log(
				"msg", "job file is no longer ignored",
				"file", filepath.Join(f.path, name),
			)
		}
	}

	f.logged = faulty
}

// fileName returns the name of a device's file: "0", or "0.7".
func fileName(device gpu.JobDevice) string {
	if id, ok := device.Instance.Get(); ok {
		return fmt.Sprintf("%d.%d", device.Index, id)
	}

	return strconv.Itoa(device.Index)
}

// readJobs reads a file's lines in their order, without repetitions. A device without a file has no
// jobs, nor has one whose file is a link to none. Only regular files are read: a pipe would block.
func readJobs(path string) ([]string, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	if !info.Mode().IsRegular() {
		return nil, errors.New("expected a regular file")
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
		return nil, fmt.Errorf("more than %d bytes: expected a job id in each line", maxFile)
	}

	return parseJobs(string(text))
}

// parseJobs parses the job ids of a file. They become label values.
func parseJobs(text string) ([]string, error) {
	var jobs []string

	number := 0
	for line := range strings.Lines(strings.ToValidUTF8(text, "\uFFFD")) {
		number++

		job := strings.Trim(line, " \t\r\n")
		switch {
		case job == "" || slices.Contains(jobs, job):
			continue
		case len(job) > maxJob:
			return nil, fmt.Errorf(
				"line %d has %d bytes: expected a job id of at most %d",
				number,
				len(job),
				maxJob,
			)
		case strings.ContainsFunc(job, func(r rune) bool { return !unicode.IsPrint(r) }):
			return nil, fmt.Errorf(
				"line %d is %q: expected a job id without control characters",
				number,
				job,
			)
		case len(jobs) == maxJobs:
			return nil, fmt.Errorf(
				"more than %d jobs: expected those that hold one device",
				maxJobs,
			)
		}

		jobs = append(jobs, job)
	}

	return jobs, nil
}
