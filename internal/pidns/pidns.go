// Package pidns reports whether a process is in the host's PID namespace.
package pidns

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// initial is the target of /proc/<pid>/ns/pid in the initial PID namespace: the kernel gives its
// inode a fixed number, PROC_PID_INIT_INO (include/uapi/linux/nsfs.h, 0xEFFFFFFC).
const initial = "pid:[4026531836]"

// CheckInitial returns nil if a process is in the initial PID namespace, the host's, which has all
// processes of the machine. The process is named by its folder in a /proc, such as /proc/self. An
// error wraps gpu.ErrPIDNamespace: it is in another one, or that cannot be found out, and the error
// is the file system's as well.
func CheckInitial(process string) error {
	link := filepath.Join(process, "ns", "pid")

	target, err := os.Readlink(link)
	if err != nil {
		return fmt.Errorf("PID namespace: %w: %w", err, gpu.ErrPIDNamespace)
	}

	if target != initial {
		return fmt.Errorf("%s is %s: %w", link, target, gpu.ErrPIDNamespace)
	}

	return nil
}
