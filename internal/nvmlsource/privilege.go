package nvmlsource

import (
	"sync"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// privilege logs which readings are missing for lack of privilege: each once, and again only if it
// was read meanwhile.
type privilege struct {
	logger log.Logger
	mu     sync.Mutex
	logged map[gpu.Reading]bool // readings that are denied, which was logged
}

// What a process needs for readings that are denied. Root on the host may open both device nodes.
// In a container CAP_SYS_ADMIN alone is not enough for what needs the MIG monitor capability,
// except for events.
const (
	needsConfig = "root, or the MIG config capability: read access to the device node that " +
		"/proc/driver/nvidia/capabilities/mig/config names (containers: " +
		"NVIDIA_MIG_CONFIG_DEVICES=all with CAP_SYS_ADMIN)"
	needsMonitor = "root, or the MIG monitor capability: read access to the device node that " +
		"/proc/driver/nvidia/capabilities/mig/monitor names (containers: " +
		"NVIDIA_MIG_MONITOR_DEVICES=all with CAP_SYS_ADMIN)"
)

// hiddenDevices stands for MIG devices whose handles are denied, which is worse than other denials
// under MIG.
const hiddenDevices gpu.Reading = "mig_devices"

// lacksAny reports whether a reading is denied.
func (p *privilege) lacksAny() bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	for reading, denied := range p.logged {
		if denied && reading != hiddenProcesses {
			return true
		}
	}

	return false
}

// markMissing logs what is missing because a reading was denied.
func (p *privilege) markMissing(reading gpu.Reading) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.logged[reading] {
		return
	}

	if p.logged == nil {
		p.logged = map[gpu.Reading]bool{}
	}

	p.logged[reading] = true

	missing := string(reading)
	needs := "root"

	switch reading {
	case gpu.ReadingMIG:
		missing = "GPU instances without a compute instance, placements and what could still be created"
		needs = needsConfig
	case hiddenDevices:
		missing = "MIG devices, with all that is read of them"
		needs = needsMonitor
	case gpu.ReadingMemory:
		missing = "memory of MIG GPUs as a whole"
		needs = needsMonitor
	case gpu.ReadingProcesses:
		missing = "processes of MIG GPUs"
		needs = needsMonitor
	case gpu.ReadingEvents:
		missing = "XIDs of MIG GPUs and reports of changes of their layouts"
		needs = needsMonitor
	}

	level.Warn(p.logger).Log(
		"msg", "no permission; readings are left out",
		"missing", missing,
		"needs", needs,
	)
}

// hiddenProcesses stands for processes of other PID namespaces, which no right in the driver makes
// visible.
const hiddenProcesses gpu.Reading = "hidden_processes"

// markHidden logs that the processes of all GPUs are unknown.
func (p *privilege) markHidden(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.logged[hiddenProcesses] {
		return
	}

	if p.logged == nil {
		p.logged = map[gpu.Reading]bool{}
	}

	p.logged[hiddenProcesses] = true
	level.Info(p.logger).Log(
		"msg", "processes are not known; all else is read",
		"err", err,
		"needs", "the host's PID namespace (a pod: hostPID; a container: --pid=host)",
	)
}

// markRegained records that a reading that was denied has been answered.
func (p *privilege) markRegained(reading gpu.Reading) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if !p.logged[reading] {
		return
	}

	delete(p.logged, reading)
	level.Info(p.logger).Log(
		"msg", "permission is granted again; readings are no longer left out",
		"reading", reading,
	)
}
