package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// capSysAdmin is the bit of CAP_SYS_ADMIN, and hostUsers the target of /proc/<pid>/ns/user in the host's user
// namespace: the kernel's PROC_USER_INIT_INO.
const (
	capSysAdmin = 21
	hostUsers   = "user:[4026531837]"
)

// isAdmin reports whether this process has what the NVIDIA driver takes for an administrator's rights: CAP_SYS_ADMIN in
// the host's user namespace (open-gpu-kernel-modules, kernel-open/common/inc/nv-linux.h, NV_IS_SUSER). What cannot be
// read counts as missing.
func isAdmin(procDir string) bool {
	if users, err := os.Readlink(filepath.Join(procDir, "self/ns/user")); err != nil || users != hostUsers {
		return false
	}
	status, err := os.ReadFile(filepath.Join(procDir, "self/status"))
	if err != nil {
		return false
	}

	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			effective, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err == nil && effective&(1<<capSysAdmin) != 0
		}
	}
	return false
}
