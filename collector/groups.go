package collector

import (
	"fmt"
	"maps"
	"slices"
)

// collectFunc writes one group's metrics of a Snapshot.
type collectFunc func(*sink, *view)

// group is a set of families that are switched on and off together.
type group struct {
	name, help string
	// build declares the group's families and returns what collects them.
	build func(*catalog) collectFunc
}

// groupExporter is served under all names.
const groupExporter = "exporter"

// groups lists the collectors in the order in which they run.
func groups() []group {
	return []group{
		{"info", "what every GPU, GPU instance and compute instance is", newInfo},
		{"up", "whether every GPU and instance answers, read errors, age of the readings", newUp},
		{"memory", "framebuffer memory", newMemory},
		{"utilization", "the driver's own utilization of GPUs without MIG", newUtilization},
		{"power", "board power and energy, and the estimated part of every GPU instance", newPower},
		{"temperature", "temperatures", newTemperature},
		{"clocks", "clocks and the reasons that hold them down", newClocks},
		{"pcie", "PCIe traffic and link", newPCIe},
		{"nvlink", "NVLink traffic and errors", newNVLink},
		{"ecc", "memory errors, remapped rows, the recovery that the driver asks for", newECC},
		{"xid", "XID errors", newXID},
		{"processes", "number of processes", newProcesses},
		{"mig", "MIG mode and changes of the layout", newMIG},
		{"capacity", "slices in use, free and stranded; instances that could still be created", newCapacity},
		{"pods", "who holds which device", newPods},
		{"distribution", "native histograms of memory used", newDistribution},
		{groupExporter, "the exporter's sources, Snapshot and driver version", newExporter},
	}
}

// GroupInfo describes one collector for the flags --collector.NAME. All are on by default.
type GroupInfo struct {
	Name, Help string
}

// Groups lists the collectors.
func Groups() []GroupInfo {
	var list []GroupInfo
	for _, g := range groups() {
		list = append(list, GroupInfo{Name: g.name, Help: g.help})
	}
	return list
}

// groupNames lists the collectors' names.
func groupNames() []string {
	var names []string
	for _, g := range groups() {
		names = append(names, g.name)
	}
	return names
}

// Families lists every family that a Collector can serve, by group.
func Families() []FamilyInfo {
	cat := &catalog{}
	statusFamilies(cat)
	for _, g := range groups() {
		cat.group = g.name
		g.build(cat)
	}
	return cat.families
}

// checkNames reports a name that is no collector's.
func checkNames(disabled map[string]bool) error {
	known := groupNames()
	for _, name := range slices.Sorted(maps.Keys(disabled)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("collector %q: unknown, expected one of %v", name, known)
		}
	}
	return nil
}
