package kernellog

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// repeatGap is how long after its first line an incident may print further ones.
	repeatGap = time.Second
	// maxRepeats bounds the incidents that are remembered.
	maxRepeats = 1024
)

// repeats recognises the further lines of an application's incident: for one XID 13 the driver
// prints several, such as "Graphics SM Warp Exception", "Graphics SM Global Exception" and
// "Graphics Exception: ESR" within a second (a log in https://github.com/leptonai/gpud,
// components/accelerator/nvidia/error/xid/README.md). A program does not outlive such an XID, so
// further lines of its process are about the same incident. The zero repeats is empty.
type repeats map[line]time.Time // when the first line of each was received

// isRepeat records a line of an XID, and reports whether it is a further one of an incident.
func (r *repeats) isRepeat(l *line, now time.Time) bool {
	if gpu.XIDByNumber(l.xid).Scope != gpu.XIDOfApplication {
		return false
	}

	for known, first := range *r {
		if age := now.Sub(first); age < 0 || age >= repeatGap { // negative: the clock was set back
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
