package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// judgeKernelLog judges whether the kernel's log can be read, and says which XIDs it has.
func (j *nodeJudge) judgeKernelLog() {
	c := nodeCheck{Name: "kernel-log", State: checkOff, Asked: j.cfg.Driver.KernelLog,
		Found: "not asked (--xid.kernel-log): XIDs that the driver only prints are not seen"}

	state := j.source(gpu.SourceKernelLog)
	switch {
	case !j.cfg.Driver.KernelLog:
	case state == nil:
		c.State = checkUnknown
		c.Found = "the node was not read"
	case state.Up:
		c.State = checkOK
		c.Found = "it is read; " + describeXIDs(j.last)
	default:
		c.State = checkMissing
		c.Found = state.Err.Error()
		c.Remedy = j.remedyOfLog(state.Err)
	}

	j.add(c)
}

// remedyOfLog says what to change if the kernel's log cannot be read.
func (j *nodeJudge) remedyOfLog(err error) string {
	restricted := j.host.logRestricted.Or(true)
	mayRead := j.host.has(capSyslog).Or(false)

	switch {
	case errors.Is(err, gpu.ErrNotFound):
		return "put the host's /dev/kmsg into the container (docs/image.md)"
	case errors.Is(err, gpu.ErrNoPermission) && restricted && !mayRead:
		return "grant CAP_SYSLOG, which kernel.dmesg_restrict=1 asks for; in a container " +
			"/dev/kmsg as a device, too (docs/image.md)"
	case errors.Is(err, gpu.ErrNoPermission):
		return "let the container open the device /dev/kmsg, which a mount of it alone does not (docs/image.md)"
	}

	return ""
}

// describeXIDs lists the XIDs of each GPU in the log, which begins with the boot. The driver does not
// list a GPU that has fallen off the bus: its XIDs are in UnlistedXIDs.
func describeXIDs(s *gpu.Snapshot) string {
	var list []string

	for i := range s.GPUs {
		var xids []string
		for _, x := range s.GPUs[i].Totals.XIDErrors {
			xids = append(xids, fmt.Sprint(x.XID))
		}

		if len(xids) > 0 {
			list = append(
				list,
				fmt.Sprintf("gpu %d had XID %s", s.GPUs[i].Index, strings.Join(xids, ", ")),
			)
		}
	}

	for i, x := range s.UnlistedXIDs {
		if i > 0 && s.UnlistedXIDs[i-1].PCI == x.PCI {
			list[len(list)-1] += fmt.Sprintf(", %d", x.XID)
			continue
		}

		list = append(list, fmt.Sprintf("%s, at which no GPU answers, had XID %d", x.PCI, x.XID))
	}

	if len(list) == 0 {
		return "it has no XID of a GPU"
	}

	return strings.Join(list, "; ")
}
