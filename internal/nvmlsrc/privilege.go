package nvmlsrc

import (
	"sync"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// privilege says once per process what is missing for lack of privilege, and again only after it was there in between.
type privilege struct {
	logger log.Logger
	mu     sync.Mutex
	said   map[gpu.Reading]bool
}

// The rights that narrow the picture where they lack. A process with CAP_SYS_ADMIN has them all.
const (
	needsConfig = "root, or the MIG config capability: read access to the device node that " +
		"/proc/driver/nvidia/capabilities/mig/config names (containers: NVIDIA_MIG_CONFIG_DEVICES=all with CAP_SYS_ADMIN)"
	needsMonitor = "root, or the MIG monitor capability: read access to the device node that " +
		"/proc/driver/nvidia/capabilities/mig/monitor names (containers: NVIDIA_MIG_MONITOR_DEVICES=all with CAP_SYS_ADMIN)"
)

// hiddenDevices stands for MIG devices that give no handle, which is worse than what else is denied of MIG.
const hiddenDevices gpu.Reading = "mig_devices"

// lacks logs what a reading that was denied leaves out.
func (p *privilege) lacks(reading gpu.Reading) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.said[reading] {
		return
	}
	if p.said == nil {
		p.said = map[gpu.Reading]bool{}
	}
	p.said[reading] = true
	missing, needs := string(reading), "root"
	switch reading {
	case gpu.ReadingMIG:
		missing, needs = "GPU instances without a compute instance, placements and what could still be created", needsConfig
	case hiddenDevices:
		missing, needs = "MIG devices, with all that is read of them", needsMonitor
	case gpu.ReadingMemory:
		missing, needs = "memory of the whole board of MIG GPUs", needsMonitor
	case gpu.ReadingProcesses:
		missing, needs = "processes of MIG GPUs", needsMonitor
	}
	level.Warn(p.logger).Log("msg", "No permission; readings are left out", "missing", missing, "needs", needs)
}

// regained is called when something is answered that was denied before.
func (p *privilege) regained(reading gpu.Reading) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.said[reading] {
		return
	}
	delete(p.said, reading)
	level.Info(p.logger).Log("msg", "Permission is there again; readings are no longer left out", "reading", reading)
}
