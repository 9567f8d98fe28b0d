package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The capabilities that readings need, by their numbers in capability.h of Linux.
const (
	capDACReadSearch = 2
	capSysPtrace     = 19
	capSysAdmin      = 21
	capSyslog        = 34
)

// hostUsers is the target of /proc/<pid>/ns/user in the host's user namespace: the kernel's
// PROC_USER_INIT_INO.
const hostUsers = "user:[4026531837]"

// capabilities is a set of capabilities, with a bit for each by its number.
type capabilities uint64

func (c capabilities) has(number int) bool { return c&(1<<number) != 0 }

// readCapabilities reads the effective capabilities that this process has on the machine; absent if
// they cannot be read. In another user namespace than the host's it has none, although the kernel
// shows some.
func readCapabilities(procDir string) gpu.Opt[capabilities] {
	users, err := os.Readlink(filepath.Join(procDir, "self/ns/user"))
	if err != nil {
		return gpu.None[capabilities]()
	}

	if users != hostUsers {
		return gpu.Some(capabilities(0))
	}

	status, err := os.ReadFile(filepath.Join(procDir, "self/status"))
	if err != nil {
		return gpu.None[capabilities]()
	}

	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			if err == nil {
				return gpu.Some(capabilities(set))
			}
		}
	}

	return gpu.None[capabilities]()
}

// isAdmin reports whether the NVIDIA driver takes this process for an administrator: it has
// CAP_SYS_ADMIN in the host's user namespace (open-gpu-kernel-modules,
// kernel-open/common/inc/nv-linux.h, NV_IS_SUSER). If we cannot read that, we take it to have no such
// right.
func isAdmin(procDir string) bool { return readCapabilities(procDir).Or(0).has(capSysAdmin) }
