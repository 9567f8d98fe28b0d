package kubelet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// maxFileName is the length in bytes of the longest file name. The kubelet cuts the names of its links
// to it.
const maxFileName = 255

// tree keeps the files that lead from a process to its container: Server.ProcDir and Server.LogDir.
type tree struct {
	node    NodeView
	procDir string
	logDir  string

	mu    sync.Mutex
	procs map[uint32]string // the text of the cgroup files, by process id
	links map[string]string // the targets of the links, by name
}

func newTree(node NodeView, dir string) (*tree, error) {
	t := &tree{
		node:    node,
		procDir: filepath.Join(dir, "proc"),
		logDir:  filepath.Join(dir, "containers"),
		procs:   map[uint32]string{},
		links:   map[string]string{},
	}
	for _, d := range []string{t.procDir, t.logDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}

	return t, nil
}

func (t *tree) sync() error { return t.syncTo(t.node.Running()) }

// syncTo writes missing files and removes the files of containers that are gone. If the names of a
// container do not make a valid file name, only its files are missing.
func (t *tree) syncTo(containers []sim.Container) error {
	procs := map[uint32]string{}
	links := map[string]string{}

	for i := range containers {
		c := &containers[i]
		if c.ID == "" {
			continue // not started
		}

		links[linkName(c)] = filepath.Join(
			"/var/log/pods",
			c.Namespace+"_"+c.Pod+"_"+c.PodUID,
			c.Name,
			"0.log",
		)
		for _, pid := range c.PIDs {
			procs[pid] = cgroupOf(c)
		}
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	return errors.Join(t.syncLinks(links), t.syncProcs(procs))
}

func (t *tree) syncLinks(want map[string]string) error {
	var failed []error

	for name := range t.links {
		if _, ok := want[name]; !ok {
			failed = append(failed, ignoreMissing(os.Remove(filepath.Join(t.logDir, name))))
			delete(t.links, name)
		}
	}

	for name, target := range want {
		if t.links[name] == target {
			continue
		}

		path := filepath.Join(t.logDir, name)
		if err := errors.Join(ignoreMissing(os.Remove(path)), os.Symlink(target, path)); err != nil {
			failed = append(failed, err)
			continue
		}

		t.links[name] = target
	}

	return errors.Join(failed...)
}

func (t *tree) syncProcs(want map[uint32]string) error {
	var failed []error

	for pid := range t.procs {
		if _, ok := want[pid]; !ok {
			failed = append(failed, os.RemoveAll(t.processDir(pid)))
			delete(t.procs, pid)
		}
	}

	for pid, cgroup := range want {
		if t.procs[pid] == cgroup {
			continue
		}

		dir := t.processDir(pid)

		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o644)
		}

		if err != nil {
			failed = append(failed, err)
			continue
		}

		t.procs[pid] = cgroup
	}

	return errors.Join(failed...)
}

func (t *tree) processDir(pid uint32) string {
	return filepath.Join(t.procDir, strconv.FormatUint(uint64(pid), 10))
}

// remove removes the files that the tree has created, and the directories if they are empty then.
func (t *tree) remove() error {
	err := t.syncTo(nil)
	return errors.Join(err, ignoreMissing(os.Remove(t.procDir)), ignoreMissing(os.Remove(t.logDir)))
}

// ignoreMissing returns the error of os.Remove, but nil if there was nothing to remove.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	return err
}

// linkName returns the name of the kubelet's link to a container's log, cut as the kubelet cuts it
// (pkg/kubelet/kuberuntime/legacy.go, legacyLogSymlink).
func linkName(c *sim.Container) string {
	const suffix = ".log"
	name := fmt.Sprintf("%s_%s_%s-%s", c.Pod, c.Namespace, c.Name, c.ID)

	return name[:min(len(name), maxFileName-len(suffix))] + suffix
}

// cgroupOf returns the text of /proc/<pid>/cgroup for a process in the container, as on a node with
// cgroup v2, the systemd driver and containerd.
func cgroupOf(c *sim.Container) string {
	uid := strings.ReplaceAll(c.PodUID, "-", "_")

	return fmt.Sprintf(
		"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod%s.slice/cri-containerd-%s.scope\n",
		uid,
		c.ID,
	)
}
