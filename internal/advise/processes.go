package advise

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// maxPIDs is how many processes of a device are remembered. With more of them, a restart shows in
// memory alone.
const maxPIDs = 16

// processes are the processes that were last seen on a device.
type processes struct {
	count int
	pids  [maxPIDs]uint32
}

// replace remembers the processes of a device, a GPU instance if one is given, and reports whether they
// have replaced all that were there before, or all of those survive. If we see no process, they may be
// hidden: then nothing changes. If they could not be read, some may come and go meanwhile.
func (p *processes) replace(
	read gpu.Opt[[]gpu.Process], instance gpu.Opt[gpu.InstanceID],
) (replaced, survive bool) {
	list, ok := read.Get()
	if !ok {
		*p = processes{}
		return false, false
	}

	var now processes

	survivors := 0

	for i := range list {
		if instance.Present() && list[i].Instance != instance {
			continue
		}

		if slices.Contains(p.pids[:min(p.count, maxPIDs)], list[i].PID) {
			survivors++
		}

		if now.count < maxPIDs {
			now.pids[now.count] = list[i].PID
		}

		now.count++
	}

	if now.count == 0 {
		return false, false
	}

	// With more processes than we remember, one that we forgot may have survived.
	replaced = survivors == 0 && p.count > 0 && max(p.count, now.count) <= maxPIDs
	survive = survivors > 0 && survivors == p.count
	*p = now

	return replaced, survive
}
