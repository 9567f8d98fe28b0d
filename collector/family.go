package collector

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Level is what a family has one series for.
type Level string

// The levels.
const (
	LevelNode     Level = "node"
	LevelGPU      Level = "GPU"
	LevelInstance Level = "GPU instance"
	LevelCompute  Level = "compute instance"
)

// FamilyInfo describes a family for the documentation.
type FamilyInfo struct {
	Name  string
	Type  string // "gauge", "counter" or "histogram"
	Unit  string // base unit; empty for numbers without one
	Level Level
	// Labels are those of the level and the family's own, without labels of pods.
	Labels []string
	Help   string
	MIG    string // meaning of the value under MIG; empty for families of the node
	Group  string // name of the collector; empty for families that cannot be switched off
}

// family is a declared family.
type family struct {
	desc    *prometheus.Desc
	counter bool
}

// catalog records the families that groups declare, and has what groups need besides the Snapshot.
// The zero catalog suffices to list the families.
type catalog struct {
	group    string
	families []FamilyInfo

	advice        func() []Advice
	profilerCalls func() uint64
	driverUse     func() []gpu.CallUse
	histograms    *histogramStore
	pods          podLabels
}

// splitOnly says in help texts which compute instances have a family: the only compute instance of a
// GPU instance would repeat the values of the GPU instance.
const splitOnly = "Only if the GPU instance is split; else its own says the same."

// listLevels returns the level, and its labels, of the names with a prefix; the first match counts.
func listLevels() []struct {
	prefix string
	level  Level
	labels []string
} {
	return []struct {
		prefix string
		level  Level
		labels []string
	}{
		{
			"nvidia_mig_gpu_instance_",
			LevelInstance,
			[]string{"gpu", "uuid", "gpu_instance", "mig_profile"},
		},
		{"nvidia_mig_compute_instance_", LevelCompute,
			[]string{"gpu", "uuid", "gpu_instance", "mig_profile", "compute_instance", "mig_uuid"}},
		{"nvidia_gpu_", LevelGPU, []string{"gpu", "uuid"}},
		{"", LevelNode, nil},
	}
}

// newFamily declares a family. Type, unit and level are in its name: a counter ends in _total.
func (c *catalog) newFamily(name, help, mig string, labels ...string) *family {
	counter := strings.HasSuffix(name, "_total")
	kind := "gauge"

	if counter {
		kind = "counter"
	}

	return &family{desc: c.newDesc(kind, name, help, mig, labels), counter: counter}
}

// newHistogram declares a native histogram.
func (c *catalog) newHistogram(name, help, mig string) *family {
	return &family{desc: c.newDesc("histogram", name, help, mig, nil)}
}

func (c *catalog) newDesc(kind, name, help, mig string, labels []string) *prometheus.Desc {
	info := FamilyInfo{
		Name:  name,
		Type:  kind,
		Unit:  unitOf(name),
		Help:  help,
		MIG:   mig,
		Group: c.group,
	}
	for _, l := range listLevels() {
		if strings.HasPrefix(name, l.prefix) {
			info.Level = l.level
			info.Labels = append(append(info.Labels, l.labels...), labels...)
			break
		}
	}

	c.families = append(c.families, info)

	if mig != "" {
		help += " " + mig
	}

	// Without label names: the metrics have their own (see series), and nothing compares them with
	// the Desc.
	return prometheus.NewDesc(name, help, nil, nil)
}

// unitOf returns the base unit in a name.
func unitOf(name string) string {
	name = strings.TrimSuffix(name, "_total")
	if strings.HasSuffix(name, "_activity_distribution") {
		return "ratio"
	}

	for _, unit := range []string{
		"bytes_per_second", "bytes", "seconds", "watts", "joules", "hertz", "celsius", "ratio",
	} {
		if strings.HasSuffix(name, "_"+unit) {
			return unit
		}
	}

	return ""
}
