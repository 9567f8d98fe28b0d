package kernellog

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// repeatGap is how long after the first line of an incident the driver may print further ones.
	repeatGap = time.Second
	// maxRepeats bounds the incidents that we remember.
	maxRepeats = 1024
)

// repeats recognizes when the driver prints several lines about one incident of an application. For
// one XID 13 it prints, for example, "Graphics SM Warp Exception", "Graphics SM Global Exception"
// and "Graphics Exception: ESR" within a second (a log in https://github.com/leptonai/gpud,
// components/accelerator/nvidia/error/xid/README.md). A program does not outlive such an XID, so
// further lines about its process are about the same incident. The zero repeats is empty.
type repeats map[line]time.Time // when we received the first line of each incident

// isRepeat records a line of an XID, and reports whether it is a further line of a known incident.
func (r *repeats) isRepeat(l *line, now time.Time) bool {
	if gpu.XIDByNumber(l.xid).Scope != gpu.XIDOfApplication {
		return false
	}

	for known, receivedAt := range *r {
		if age := now.Sub(receivedAt); age < 0 || age >= repeatGap { // negative: the clock was set back
			delete(*r, known)
		}
	}

	if _, ok := (*r)[*l]; ok {
		return true
	}

	if *r == nil {
		*r = repeats{}
	}

	if len(*r) < maxRepeats {
		(*r)[*l] = now
	}

	return false
}
