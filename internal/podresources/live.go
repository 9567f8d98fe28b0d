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
	byUID      map[uidContainer]bool // those of which we know the pod's UID
	pods       map[gpu.PodName]bool  // the pods of all of them
}

// uidContainer names a container by the UID of its pod.
type uidContainer struct{ podUID, name string }

func newLiveContainers() *liveContainers {
	return &liveContainers{containers: map[gpu.Container]bool{}, byUID: map[uidContainer]bool{},
		pods: map[gpu.PodName]bool{}}
}

// add adds a container. podUID is empty if we do not know it.
func (l *liveContainers) add(c gpu.Container, podUID string) {
	l.containers[c] = true
	l.pods[gpu.PodName{Namespace: c.Namespace, Name: c.Pod}] = true

	if podUID != "" {
		l.byUID[uidContainer{podUID, c.Name}] = true
	}
}

// has reports whether a container has a process. If podUID is empty, any pod of the name will do.
func (l *liveContainers) has(c gpu.Container, podUID string) bool {
	if podUID == "" {
		return l.containers[c]
	}

	return l.byUID[uidContainer{podUID, c.Name}]
}

// readLive returns the containers of the kubelet that have a process. It reads the cgroup of every
// process, which is too much for every poll. A container that is missing may hold a device all the
// same: ProcDir may be that of another PID namespace, and a container that crashes or waits for its
// image has no process.
func (c *Containers) readLive() *liveContainers {
	live := newLiveContainers()
	if _, err := os.Stat(c.opts.LogDir); err != nil {
		return live // without LogDir we may be in a pod that sees only its own processes
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

	cgroups := map[string]bool{}

	for _, name := range names {
		if _, err := strconv.ParseUint(name, 10, 32); err != nil {
			continue // not a process
		}

		if cgroup, err := c.readCgroup(name); err == nil {
			cgroups[cgroup] = true
		}
	}

	return slices.Collect(maps.Keys(cgroups))
}

// podUIDOf returns the UID of the innermost pod that the text of a /proc/<pid>/cgroup names; empty
// if it names none. See containerIDs for the forms of the paths.
func podUIDOf(cgroup string) string {
	elements := strings.FieldsFunc(
		cgroup,
		func(r rune) bool { return r == '/' || r == ':' || r == '\n' },
	)
	for _, element := range slices.Backward(elements) {
		element = strings.TrimSuffix(element, ".slice")

		start := strings.LastIndex(element, "pod")
		if start < 0 {
			continue
		}

		// The systemd driver writes underscores for dashes.
		if uid := strings.ReplaceAll(element[start+len("pod"):], "_", "-"); isPodUID(uid) {
			return uid
		}
	}

	return ""
}

// isPodUID reports whether s is the UID of a pod of the API server, or of a static one, which is a
// hash.
func isPodUID(s string) bool {
	const hashLen, uuidLen = 32, 36
	if len(s) == uuidLen && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' {
		s = strings.ReplaceAll(s, "-", "")
	}

	return len(s) == hashLen && isHex(s)
}
