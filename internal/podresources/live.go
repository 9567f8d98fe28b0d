package podresources

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// liveContainers are the kubelet's containers that have a process.
type liveContainers struct {
	containers map[gpu.Container]bool
	byUID      map[uidContainer]bool
	pods       map[gpu.PodName]bool
}

// uidContainer is a container of the pod of a UID.
type uidContainer struct{ uid, name string }

func newLiveContainers() *liveContainers {
	return &liveContainers{containers: map[gpu.Container]bool{}, byUID: map[uidContainer]bool{},
		pods: map[gpu.PodName]bool{}}
}

// add adds a container. uid is its pod's, or empty if we do not know it.
func (l *liveContainers) add(c gpu.Container, uid string) {
	l.containers[c] = true
	l.pods[gpu.PodName{Namespace: c.Namespace, Name: c.Pod}] = true

	if uid != "" {
		l.byUID[uidContainer{uid, c.Name}] = true
	}
}

// has reports whether a container has a process. An empty uid matches every pod of the container's
// pod name.
func (l *liveContainers) has(c gpu.Container, uid string) bool {
	if uid == "" {
		return l.containers[c]
	}

	return l.byUID[uidContainer{uid, c.Name}]
}

// readLive returns the containers of the kubelet that have a process. It reads the cgroup of every
// process: do not call it in every poll. A container that is missing may hold a device all the
// same: ProcDir may be that of another PID namespace, and a container that crashes or waits for its
// image has no process.
func (c *Containers) readLive() *liveContainers {
	live := newLiveContainers()
	if _, err := os.Stat(c.opts.LogDir); err != nil {
		return live // we may be in a pod that sees its own processes alone
	}

	cgroups := c.readCgroups()

	c.mu.Lock()
	defer c.mu.Unlock()

	c.readLogDir()

	for _, cgroup := range cgroups {
		if found, ok := c.findContainer(containerIDs(cgroup)); ok {
			live.add(found, podUIDOf(cgroup))
		}
	}

	return live
}

// readCgroups returns the cgroups of all processes, each once: most processes share theirs.
func (c *Containers) readCgroups() []string {
	dir, err := os.Open(c.opts.ProcDir)
	if err != nil {
		return nil
	}
	defer dir.Close()

	names, err := dir.Readdirnames(-1)
	if err != nil {
		level.Debug(c.opts.Logger).Log("msg", "cannot list processes", "err", err)
	}

	seen := map[string]bool{}

	for _, name := range names {
		if _, err := strconv.ParseUint(name, 10, 32); err != nil {
			continue // not a process
		}

		if cgroup, err := c.readCgroup(name); err == nil {
			seen[cgroup] = true
		}
	}

	return slices.Collect(maps.Keys(seen))
}

// podUIDOf returns the UID of the innermost pod in a /proc/<pid>/cgroup; empty if it names none.
// See containerIDs for the forms of the paths.
func podUIDOf(cgroup string) string {
	elements := strings.FieldsFunc(
		cgroup,
		func(r rune) bool { return r == '/' || r == ':' || r == '\n' },
	)
	for _, element := range slices.Backward(elements) {
		element = strings.TrimSuffix(element, ".slice")

		at := strings.LastIndex(element, "pod")
		if at < 0 {
			continue
		}

		// With the systemd driver it has underscores.
		if uid := strings.ReplaceAll(element[at+len("pod"):], "_", "-"); isPodUID(uid) {
			return uid
		}
	}

	return ""
}

// isPodUID reports whether s is the UID of a pod of the API server, or of a static one, which is a
// hash.
func isPodUID(s string) bool {
	const hash, uuid = 32, 36
	if len(s) == uuid && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' {
		s = strings.ReplaceAll(s, "-", "")
	}

	return len(s) == hash && isHex(s)
}
