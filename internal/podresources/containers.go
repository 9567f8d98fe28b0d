package podresources

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// DefaultLogDir is where the kubelet keeps a symbolic link to the log of every container.
const DefaultLogDir = "/var/log/containers"

const (
	// maxCgroupBytes bounds how much we read of a process's cgroup file.
	maxCgroupBytes = 64 << 10
	// maxUnknown bounds how many ids we remember that belong to no container of the kubelet.
	maxUnknown = 4096
	// retryUnknown is after how long we look up an unknown id again: the kubelet creates the link
	// shortly after the container has started.
	retryUnknown = 2 * time.Second
	// maxFileName is the longest file name, to which the kubelet truncates the names of its links.
	maxFileName = 255
	// minTruncatedID is how many digits of a container's id a truncated name must have for us to
	// use it.
	minTruncatedID = 12
	// enoughAbsent is how many processes must be missing in ProcDir before we say that it is the
	// /proc of another PID namespace: single ones may have just ended.
	enoughAbsent = 10
)

// ContainersOptions configures Containers.
type ContainersOptions struct {
	// ProcDir is the host's /proc.
	ProcDir string
	// LogDir has the kubelet's links to the logs of containers, DefaultLogDir on most nodes.
	LogDir string
	// Now is the clock for retryUnknown.
	Now    func() time.Time
	Logger log.Logger
}

// Containers finds the container that a process runs in: the process's cgroup has the container's
// id, and the kubelet links the id to namespace, pod and container in a directory of logs. Neither
// the API server nor the container runtime is involved.
//
// It needs the host's PID namespace (hostPID in a pod), since the driver reports the process ids of
// the host, and the host's process and log directories.
type Containers struct {
	opts ContainersOptions

	mu              sync.Mutex
	byID            map[string]gpu.Container // as of the last read of LogDir
	byTruncatedID   map[string]gpu.Container // containers whose link has only the beginning of the id
	unknown         map[string]time.Time     // when an id was last not found
	logDirFailed    bool                     // the last read of LogDir failed
	absentProcesses int                      // processes missing in ProcDir, until one is found
	procDirWorks    bool                     // a process was found in ProcDir
}

// NewContainers returns Containers that have read nothing yet.
func NewContainers(opts ContainersOptions) *Containers {
	return &Containers{opts: opts, unknown: map[string]time.Time{}}
}

// ContainerOf returns the container that a process of the host's PID namespace runs in; false if it
// has ended or is in no container of the kubelet. We read the cgroup every time, so that a reused
// process id never gets the container of an earlier process.
func (c *Containers) ContainerOf(pid uint32) (gpu.Container, bool) {
	cgroup, err := c.readCgroup(strconv.FormatUint(uint64(pid), 10))
	c.mu.Lock()
	defer c.mu.Unlock()

	if err != nil {
		c.recordAbsent(err)
		return gpu.Container{}, false // the process has ended
	}

	c.procDirWorks = true

	ids := containerIDs(cgroup)

	found, ok := c.findContainer(ids)
	if ok || !c.shouldReadLogDir(ids) {
		return found, ok
	}

	c.readLogDir()

	return c.findContainer(ids)
}

// readCgroup returns the cgroups of a process by its name in ProcDir.
func (c *Containers) readCgroup(pid string) (string, error) {
	f, err := os.Open(filepath.Join(c.opts.ProcDir, pid, "cgroup"))
	if err != nil {
		return "", fmt.Errorf("cgroup of process %s: %w", pid, err)
	}
	defer f.Close()

	content, err := io.ReadAll(io.LimitReader(f, maxCgroupBytes))
	if err != nil {
		return "", fmt.Errorf("cgroup of process %s: %w", pid, err)
	}

	return string(content), nil
}

// recordAbsent logs once that ProcDir has none of the processes that the driver reports.
func (c *Containers) recordAbsent(err error) {
	if c.procDirWorks || c.absentProcesses >= enoughAbsent {
		return
	}

	c.absentProcesses++
	if c.absentProcesses == enoughAbsent {
		level.Warn(c.opts.Logger).Log(
			"msg", "cannot find the processes on the GPUs; memory of containers that share a GPU is "+
				"not known: is this the host's PID namespace (hostPID)?",
			"proc", c.opts.ProcDir,
			"err", err,
		)
	}
}

// findContainer returns the first known container of the ids.
func (c *Containers) findContainer(ids []string) (gpu.Container, bool) {
	for _, id := range ids {
		if found, ok := c.byID[id]; ok {
			return found, true
		}

		for prefix, found := range c.byTruncatedID {
			if strings.HasPrefix(id, prefix) {
				return found, true
			}
		}
	}

	return gpu.Container{}, false
}

// shouldReadLogDir reports whether we should read LogDir for these unknown ids: we have not looked
// up one of them for retryUnknown. It records that we look them up now. Without this we would read
// the directory for every process that is in no container of the kubelet.
func (c *Containers) shouldReadLogDir(ids []string) bool {
	now := c.opts.Now()

	isDue := func(id string) bool {
		last, ok := c.unknown[id]
		return !ok || now.Sub(last) >= retryUnknown
	}
	if !slices.ContainsFunc(ids, isDue) {
		return false
	}

	if len(c.unknown)+len(ids) > maxUnknown {
		clear(c.unknown)
	}

	for _, id := range ids {
		c.unknown[id] = now
	}

	return true
}

// readLogDir replaces the known containers by those of LogDir, so that we never keep more than the
// directory has.
func (c *Containers) readLogDir() {
	entries, err := os.ReadDir(c.opts.LogDir)
	if err != nil {
		if !c.logDirFailed {
			level.Warn(c.opts.Logger).Log(
				"msg", "cannot read the kubelet's links to container logs; "+
					"memory of containers that share a GPU is not known",
				"err", err,
			)
		}

		c.logDirFailed = true

		return
	}

	c.logDirFailed = false

	c.byID = make(map[string]gpu.Container, len(entries))
	c.byTruncatedID = map[string]gpu.Container{}

	for _, entry := range entries {
		id, container, ok := parseLogName(entry.Name())
		switch {
		case !ok:
		case len(id) == containerIDLen:
			c.byID[id] = container
		default:
			c.byTruncatedID[id] = container
		}
	}
}

// parseLogName parses the name of a link, "<pod>_<namespace>_<container>-<id>.log"; none of the
// names contains an underscore. The kubelet truncates a name that would be too long for a file, and
// with it the id (pkg/kubelet/kuberuntime/legacy.go, legacyLogSymlink).
func parseLogName(name string) (string, gpu.Container, bool) {
	base, ok := strings.CutSuffix(name, ".log")

	parts := strings.Split(base, "_")
	if !ok || len(parts) != 3 {
		return "", gpu.Container{}, false
	}

	dash := strings.LastIndexByte(parts[2], '-')
	if dash < 0 {
		return "", gpu.Container{}, false
	}

	id := parts[2][dash+1:]
	complete := len(id) == containerIDLen

	truncated := len(name) == maxFileName && len(id) >= minTruncatedID && len(id) < containerIDLen
	if !isHex(id) || !complete && !truncated {
		return "", gpu.Container{}, false
	}

	return id, gpu.Container{Namespace: parts[1], Pod: parts[0], Name: parts[2][:dash]}, true
}
