package kubelettest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Addresses and names of the private node. Its network is its own, so that ports are free.
const (
	nodeName    = "gpu-node"
	nodeAddress = "192.0.2.10" // of TEST-NET-1
	// serviceAddress is that of the service kubernetes, to which kube-proxy would lead: the node
	// has it itself.
	serviceAddress = "10.96.0.1"
)

// pidMax is the greatest limit of process ids on 64 bits; those that the simulated driver reports
// are below it.
const pidMax = "4194304"

// preparePrivateHost makes the mount, network and host name namespaces of this process a host of
// their own: nothing that is done below leaves them, but for cgroups.
func preparePrivateHost(workspace string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}

	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}

	// Since Linux 6.14 every PID namespace has a limit of its own.
	if kernelAtLeast(6, 14) {
		if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte(pidMax), 0o644); err != nil {
			return fmt.Errorf("greatest process id: %w", err)
		}
	}

	for _, dir := range []string{"/var/lib", "/var/log", "/usr/libexec"} {
		if err := coverWithOverlay(workspace, dir); err != nil {
			return err
		}
	}

	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}

	if err := coverSysctls(workspace); err != nil {
		return err
	}

	if err := coverFile("/etc/hosts", filepath.Join(workspace, "hosts")); err != nil {
		return err
	}

	if err := syscall.Sethostname([]byte(nodeName)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}

	return setUpNetwork()
}

// coverWithOverlay lets processes of this namespace write below a folder of the host, into the
// workspace.
func coverWithOverlay(workspace, dir string) error {
	upper := filepath.Join(workspace, "upper", dir)

	work := filepath.Join(workspace, "work", dir)
	for _, made := range []string{upper, work} {
		if err := os.MkdirAll(made, 0o755); err != nil {
			return err
		}
	}

	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
	if err := syscall.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("overlay over %s: %w", dir, err)
	}

	return nil
}

// coverSysctls puts plain files over the sysctls that the kubelet sets and that no namespace has of
// its own. The kubelet writes into the files.
func coverSysctls(workspace string) error {
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		err := coverFile(filepath.Join("/proc/sys", name),
			filepath.Join(workspace, "sysctl-"+strings.ReplaceAll(name, "/", ".")))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}

	return nil
}

// coverFile puts a copy over a file, which processes of this namespace write to instead.
func coverFile(path, replacement string) error {
	value, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(replacement, value, 0o644)
	}

	if err == nil {
		err = syscall.Mount(replacement, path, "", syscall.MS_BIND, "")
	}

	if err != nil {
		return fmt.Errorf("cover %s: %w", path, err)
	}

	return nil
}

// setUpNetwork gives the namespace an address and a default route, by which the kubelet finds the
// node's.
func setUpNetwork() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "node0", "type", "bridge"},
		{"addr", "add", nodeAddress + "/24", "dev", "node0"},
		{"link", "set", "node0", "up"},
		{"addr", "add", serviceAddress + "/32", "dev", "lo"},
		{"route", "add", "default", "dev", "node0"},
	} {
		if out, err := exec.Command("busybox", append([]string{"ip"}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}

	return nil
}
