package kubelettest

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const cgroupMount = "/sys/fs/cgroup"

// cgroupName is the cgroup, below the root of every hierarchy, in which a run creates its own.
func cgroupName(workspace string) string { return filepath.Base(workspace) }

// cgroupHierarchies returns the mount points of all hierarchies, of cgroup v1 and v2.
func cgroupHierarchies() ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}

	var dirs []string

	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[2], "cgroup") {
			dirs = append(dirs, fields[1])
		}
	}

	return dirs, nil
}

// createCgroups creates the cgroup in every hierarchy. In that of cpuset a new one has no CPUs.
func createCgroups(name string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}

	for _, dir := range hierarchies {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}

		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			all, err := os.ReadFile(filepath.Join(dir, file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}

			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name, file), all, 0o644)
			}

			if err != nil {
				return err
			}
		}
	}

	return nil
}

// removeCgroups removes the cgroup and all below it from every hierarchy. The processes in it were
// killed with their namespace; the kernel needs a moment to forget them.
func removeCgroups(name string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}

	var errs []error

	for _, dir := range hierarchies {
		err := await(time.Minute, func() error { return removeCgroupTree(filepath.Join(dir, name)) })
		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

func removeCgroupTree(root string) error {
	var dirs []string

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil && entry.IsDir():
			dirs = append(dirs, path)
		}

		return err
	})
	if err != nil {
		return err
	}

	for _, dir := range slices.Backward(dirs) {
		if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}

	return nil
}

// await calls check until it returns nil, and returns its last error when the time is over.
func await(timeout time.Duration, check func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(timeout)

	for {
		err := check()
		if err == nil || time.Now().After(end) {
			return err
		}

		<-tick.C
	}
}

// host is what a run must leave as it found it.
type host struct {
	sysctls map[string]string
	lists   map[string][]string // mounts, network interfaces, entries of folders that Kubernetes writes
	cgroups map[string]bool
}

// volatileSysctl are the files below /proc/sys that change by themselves.
var volatileSysctl = []string{"fs/aio-nr", "fs/dentry-state", "fs/file-nr", "fs/inode-nr", "fs/inode-state",
	"fs/quota/", "kernel/ns_last_pid", "kernel/pty/nr", "kernel/random/", "net/netfilter/nf_conntrack_count"}

func readHost() (*host, error) {
	h := &host{sysctls: map[string]string{}, lists: map[string][]string{}}

	err := filepath.WalkDir("/proc/sys", func(path string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, "/proc/sys/")
		volatile := slices.ContainsFunc(volatileSysctl, func(v string) bool { return strings.HasPrefix(name, v) })

		if err != nil {
			return nil //nolint:nilerr // entries come and go with network interfaces
		}

		if entry.IsDir() || volatile {
			return nil
		}

		if text, err := os.ReadFile(path); err == nil { // some can only be written
			h.sysctls[name] = string(text)
		}

		return nil
	})
	if err != nil {
		return nil, err
	}

	if h.lists["mounts"], err = mountPoints(); err != nil {
		return nil, err
	}

	for _, dir := range []string{"/sys/class/net", "/etc/cni", "/etc/containerd", "/opt/cni", "/run", "/run/containerd",
		"/usr/libexec/kubernetes", "/var/lib", "/var/lib/cni", "/var/lib/kubelet", "/var/lib/containerd", "/var/log",
		"/var/log/pods", os.TempDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}

		h.lists[dir] = []string{}
		for _, entry := range entries {
			if dir != os.TempDir() || strings.HasPrefix(entry.Name(), "kubelettest-") {
				h.lists[dir] = append(h.lists[dir], entry.Name())
			}
		}
	}

	h.cgroups, err = cgroupDirs()

	return h, err
}

// mountPoints returns the mounts of this namespace, without their numbers.
func mountPoints() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}

	var mounts []string

	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 5 {
			mounts = append(mounts, strings.Join(fields[3:6], " "))
		}
	}

	slices.Sort(mounts)

	return mounts, nil
}

func cgroupDirs() (map[string]bool, error) {
	dirs := map[string]bool{}
	err := filepath.WalkDir(cgroupMount, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs[path] = true
		}

		return nil // others create and remove cgroups meanwhile
	})

	return dirs, err
}

// compare returns an error if the host is no longer as it was, or has processes of a run.
func (h *host) compare(after string) error {
	now, err := readHost()
	if err != nil {
		return err
	}

	var changes []string

	for name, value := range h.sysctls {
		if have := now.sysctls[name]; have != value {
			changes = append(changes, fmt.Sprintf("sysctl %s was %q, is %q", name, value, have))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(h.lists)) {
		if !slices.Equal(h.lists[name], now.lists[name]) {
			changes = append(changes, fmt.Sprintf("%s: was %q, is %q", name, h.lists[name], now.lists[name]))
		}
	}

	for dir := range now.cgroups {
		if !h.cgroups[dir] && !hasProcesses(dir) { // one with processes is another program's: ours have ended
			changes = append(changes, "new cgroup "+dir)
		}
	}

	processes, err := leftProcesses()
	if err != nil {
		return err
	}

	changes = append(changes, processes...)
	if len(changes) > 0 {
		slices.Sort(changes)
		return fmt.Errorf("after %s, the host is not as it was:\n%s", after, strings.Join(changes, "\n"))
	}

	return nil
}

// hasProcesses reports whether a cgroup has processes, or has ended meanwhile.
func hasProcesses(dir string) bool {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return err != nil || len(procs) > 0
}

// leftProcesses returns the processes of a run, which have its workspace in their environment,
// containers' too.
func leftProcesses() ([]string, error) {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}

	var left []string

	for _, file := range environments {
		pid := filepath.Base(filepath.Dir(file))

		environment, err := os.ReadFile(file)
		if err != nil || pid == strconv.Itoa(os.Getpid()) {
			continue
		}

		variables := bufio.NewScanner(strings.NewReader(strings.ReplaceAll(string(environment), "\x00", "\n")))
		for variables.Scan() {
			if value, ok := strings.CutPrefix(variables.Text(), workspaceVariable+"="); ok && value != "" {
				left = append(left, "process "+pid+" of the run "+value)
			}
		}
	}

	return left, nil
}
