package podresources

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// DefaultLogDir is where the kubelet keeps a symbolic link for every container, to its log.
const DefaultLogDir = "/var/log/containers"

const (
	// maxCgroupBytes bounds what is read of one process' cgroup file.
	maxCgroupBytes = 64 << 10
	// maxUnknown bounds the ids that are remembered to belong to no container of the kubelet's.
	maxUnknown = 4096
	// retryUnknown is the time after which an unknown id is looked for again: the kubelet makes the link a moment after
	// the container has started.
	retryUnknown = 2 * time.Second
	// maxFileName is the longest file name, at which the kubelet cuts the names of its links.
	maxFileName = 255
	// minTruncatedID is how much of a container's id must be left of such a name.
	minTruncatedID = 12
	// enoughAbsent is how many processes must not be in ProcDir, and none be, before it is taken for another PID
	// namespace's: single ones have just ended.
	enoughAbsent = 10
)

// ContainersOptions configures Containers.
type ContainersOptions struct {
	// ProcDir is the host's /proc.
	ProcDir string
	// LogDir has the kubelet's links to the logs of containers, DefaultLogDir on most nodes.
	LogDir string
	// Now is the clock by which unknown ids are looked for again.
	Now    func() time.Time
	Logger log.Logger
}

// Containers finds the container that a process runs in: the process' cgroup has the container's id, and the kubelet
// links the id to namespace, pod and container in a directory of logs. Neither the API server nor the container runtime
// is asked.
//
// It needs the host's PID namespace (hostPID in a pod), since the driver names processes by their ids there, and the
// host's process and log directories.
type Containers struct {
	opts ContainersOptions

	mu              sync.Mutex
	byID            map[string]gpu.Container // what LogDir had when it was last read
	truncated       map[string]gpu.Container // by the part of the id that is left
	unknown         map[string]time.Time     // when an id was last looked for in vain
	logDirFailed    bool                     // LogDir could not be read the last time
	absentProcesses int                      // processes that were not in ProcDir, until one is
	procDirWorks    bool                     // a process was in ProcDir
}

// NewContainers reads nothing yet.
func NewContainers(opts ContainersOptions) *Containers {
	return &Containers{opts: opts, unknown: map[string]time.Time{}}
}

// ContainerOf names the container that a process of the host's PID namespace runs in now; false for one that is gone or
// that belongs to no container of the kubelet's. The cgroup is read anew each time, so that a process id that was used
// again never gets its predecessor's container.
func (c *Containers) ContainerOf(pid uint32) (gpu.Container, bool) {
	cgroup, err := c.readCgroup(pid)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.recordAbsent(err)
		return gpu.Container{}, false // the process has ended
	}
	c.procDirWorks = true
	ids := containerIDs(cgroup)
	for _, id := range ids {
		if found, ok := c.findContainer(id); ok {
			return found, true
		}
	}
	if !c.shouldReadLogDir(ids) {
		return gpu.Container{}, false
	}
	c.readLogDir()
	for _, id := range ids {
		if found, ok := c.findContainer(id); ok {
			return found, true
		}
	}
	return gpu.Container{}, false
}

func (c *Containers) readCgroup(pid uint32) (string, error) {
	f, err := os.Open(filepath.Join(c.opts.ProcDir, strconv.FormatUint(uint64(pid), 10), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxCgroupBytes))
	if err != nil {
		return "", fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	return string(content), nil
}

// recordAbsent says once that ProcDir knows none of the processes that the driver names.
func (c *Containers) recordAbsent(err error) {
	if c.procDirWorks || c.absentProcesses >= enoughAbsent {
		return
	}
	c.absentProcesses++
	if c.absentProcesses == enoughAbsent {
		level.Warn(c.opts.Logger).Log("msg", "cannot find the processes on the GPUs; memory of containers that share a GPU is not known: is this the host's PID namespace (hostPID)?",
			"proc", c.opts.ProcDir, "err", err)
	}
}

func (c *Containers) findContainer(id string) (gpu.Container, bool) {
	if found, ok := c.byID[id]; ok {
		return found, true
	}
	for part, found := range c.truncated {
		if strings.HasPrefix(id, part) {
			return found, true
		}
	}
	return gpu.Container{}, false
}

// shouldReadLogDir reports whether one of the ids, none of which is known, was not looked for lately, and notes that they are
// now: processes in containers that are not the kubelet's must not have the directory read for each.
func (c *Containers) shouldReadLogDir(ids []string) bool {
	now := c.opts.Now()
	worth := false
	for _, id := range ids {
		if last, ok := c.unknown[id]; !ok || now.Sub(last) >= retryUnknown {
			worth = true
		}
	}
	if !worth {
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

// readLogDir reads LogDir. It keeps nothing of containers that are gone, which bounds the cache by the directory.
func (c *Containers) readLogDir() {
	entries, err := os.ReadDir(c.opts.LogDir)
	if err != nil {
		if !c.logDirFailed {
			level.Warn(c.opts.Logger).Log("msg", "cannot read the kubelet's links to container logs; memory of containers that share a GPU is not known", "err", err)
		}
		c.logDirFailed = true
		return
	}
	c.logDirFailed = false
	c.byID, c.truncated = make(map[string]gpu.Container, len(entries)), map[string]gpu.Container{}
	for _, entry := range entries {
		id, container, ok := parseLogName(entry.Name())
		switch {
		case !ok:
		case len(id) == containerIDLen:
			c.byID[id] = container
		default:
			c.truncated[id] = container
		}
	}
}

// parseLogName reads the name of a link, "<pod>_<namespace>_<container>-<id>.log"; none of the names may hold an
// underscore. The kubelet cuts a name that would be longer than a file name can be, and with it the id
// (pkg/kubelet/kuberuntime/legacy.go, legacyLogSymlink).
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
	whole := len(id) == containerIDLen
	cut := len(name) == maxFileName && len(id) >= minTruncatedID && len(id) < containerIDLen
	if !isHex(id) || !whole && !cut {
		return "", gpu.Container{}, false
	}
	return id, gpu.Container{Namespace: parts[1], Pod: parts[0], Name: parts[2][:dash]}, true
}
