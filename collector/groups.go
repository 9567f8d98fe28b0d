package collector

import (
	"fmt"
	"maps"
	"slices"
)

// collectFunc writes one group's metrics of a Snapshot.
type collectFunc func(*metricWriter, *view)

// group is a set of families that are switched on and off together; users know it as a collector.
type group struct {
	name, help string
	// build declares the group's families and returns the function that collects them.
	build func(*catalog) collectFunc
	optIn bool // off unless asked for
}

// ExporterGroup is the name of the collector for metrics about the exporter itself, which is served
// under all names.
const ExporterGroup = "exporter"

// The collectors whose readings cost driver calls of their own. The calls are made only if the
// collector is switched on.
const (
	GroupInstanceECC  = "instance_ecc"
	GroupInstancePCIe = "instance_pcie"
	GroupFabric       = "fabric"
)

// GroupProcessInfo is the collector that needs Snapshot.Processes.
const GroupProcessInfo = "process_info"

// groups returns the collectors in the order in which they run.
func groups() []group {
	return []group{
		{
			name:  "info",
			help:  "what every GPU, GPU instance and compute instance is",
			build: newInfo,
		},
		{
			name:  "up",
			help:  "whether every GPU and instance answers, read errors, age of the readings",
			build: newUp,
		},

		{name: "memory", help: "framebuffer memory: total and used", build: newMemory},
		{
			name:  "memory_details",
			help:  "framebuffer memory that is free, and that is reserved; off unless asked for",
			build: newMemoryDetails,
			optIn: true,
		},

		{
			name:  "utilization",
			help:  "the driver's own utilization of GPUs without MIG",
			build: newUtilization,
		},
		{
			name:  "activity",
			help:  "activity of SMs, tensor pipes and memory by the profiling counters",
			build: newActivity,
		},
		{
			name:  "pipes",
			help:  "activity of the FP64, FP32 and FP16 pipes; off unless asked for",
			build: newPipes,
			optIn: true,
		},
		{
			name: "link_rates",
			help: "PCIe and NVLink rates by the profiling counters; off unless asked for, rate() of the " +
				"byte counters gives them too",
			build: newLinkRates,
			optIn: true,
		},
		{
			name:  GroupInstancePCIe,
			help:  "PCIe rates of GPU instances by the profiling counters; off unless asked for",
			build: newInstancePCIe,
			optIn: true,
		},

		{
			name:  "power",
			help:  "power and energy of the GPU, and the estimated part of every GPU instance",
			build: newPower,
		},
		{name: "temperature", help: "temperatures and fans", build: newTemperature},
		{
			name:  "clocks",
			help:  "clocks, the reasons that hold them down, and the performance state",
			build: newClocks,
		},

		{name: "pcie", help: "PCIe traffic and link", build: newPCIe},
		{name: "nvlink", help: "NVLink traffic and errors", build: newNVLink},

		{
			name:  "ecc",
			help:  "memory errors, remapped rows, the recovery that the driver asks for",
			build: newECC,
		},
		{
			name:  GroupInstanceECC,
			help:  "memory errors by MIG device; off unless asked for",
			build: newInstanceECC,
			optIn: true,
		},
		{
			name:  GroupFabric,
			help:  "the GPU's registration in the NVLink fabric; off unless asked for",
			build: newFabric,
			optIn: true,
		},

		{name: "xid", help: "XID errors", build: newXID},
		{name: "processes", help: "number of processes on every GPU", build: newProcesses},
		{
			name:  "instance_processes",
			help:  "number of processes on every instance; off unless asked for",
			build: newInstanceProcesses,
			optIn: true,
		},
		{
			name:  "process",
			help:  "memory and SM use of single processes; off unless asked for",
			build: newProcess,
			optIn: true,
		},
		{
			name:  GroupProcessInfo,
			help:  "names of single processes, if --web.processes lists them; off unless asked for",
			build: newProcessInfo,
			optIn: true,
		},

		{
			name:  groupMedia,
			help:  "activity of encoders, decoders, JPEG and optical flow engines; off unless asked for",
			build: newMedia,
			optIn: true,
		},

		{name: "mig", help: "MIG mode and changes of the layout", build: newMIG},
		{
			name:  "capacity",
			help:  "slices in use, free and stranded; instances that could still be created",
			build: newCapacity,
		},
		{
			name:  "profile_max",
			help:  "instances of every profile that fit on the empty GPU; off unless asked for",
			build: newProfileMax,
			optIn: true,
		},

		{name: "pods", help: "which container holds which device", build: newPods},
		{
			name:  "containers",
			help:  "what containers and batch jobs use of the devices they hold",
			build: newContainers,
		},
		{name: "jobs", help: "which batch jobs hold which device", build: newJobs},

		{
			name:  "rightsizing",
			help:  "which whole GPUs should be slices, which slices smaller or larger",
			build: newRightsizing,
		},
		{
			name:  "distribution",
			help:  "native histograms of memory used, SM activity and DRAM activity",
			build: newDistributionGroup,
		},
		{
			name:  ExporterGroup,
			help:  "the exporter's sources, Snapshot and driver version",
			build: newExporter,
		},
	}
}

// GroupInfo describes one collector for --collectors.
type GroupInfo struct {
	Name, Help string
	OptIn      bool // off by default
}

// Groups returns the collectors.
func Groups() []GroupInfo {
	var list []GroupInfo
	for _, g := range groups() {
		list = append(list, GroupInfo{Name: g.name, Help: g.help, OptIn: g.optIn})
	}

	return list
}

// listGroupNames returns the collectors' names.
func listGroupNames() []string {
	var names []string
	for _, g := range groups() {
		names = append(names, g.name)
	}

	return names
}

// isDisabled reports whether a group is switched off, by disabled or else by default.
func (g *group) isDisabled(disabled map[string]bool) bool {
	if off, said := disabled[g.name]; said {
		return off
	}

	return g.optIn
}

// Families returns every family that a Collector can serve, by group.
func Families() []FamilyInfo {
	cat := &catalog{}
	statusFamilies(cat)

	for _, g := range groups() {
		cat.group = g.name
		g.build(cat)
	}

	return cat.families
}

// checkGroupNames returns an error for a name that is no collector's.
func checkGroupNames(disabled map[string]bool) error {
	known := listGroupNames()
	for _, name := range slices.Sorted(maps.Keys(disabled)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("collector %q: unknown, expected one of %v", name, known)
		}
	}

	return nil
}
