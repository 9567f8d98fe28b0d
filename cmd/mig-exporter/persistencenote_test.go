package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestOpenWithoutPersistenceMode: the process that kept confidential GPUs open may end; that is
// said once, and again if it is true of another GPU. An unknown mode says nothing.
func TestOpenWithoutPersistenceMode(t *testing.T) {
	var out bytes.Buffer
	confidential := false
	n := &persistenceNote{confidential: func() bool { return confidential }, logger: log.NewLogfmtLogger(&out)}
	observe := func(modes ...gpu.Opt[bool]) int {
		s := &gpu.Snapshot{}
		for i, mode := range modes {
			s.GPUs = append(s.GPUs, gpu.GPU{Facts: gpu.Facts{Index: i}, Device: gpu.Device{Up: true}, Readings: gpu.Readings{SlowReadings: gpu.SlowReadings{PersistenceMode: mode}}})
		}

		n.observe(s)

		return strings.Count(out.String(), "\n")
	}
	on := gpu.Some(true)
	off := gpu.Some(false)
	unknown := gpu.None[bool]()

	cmptest.Equal(t, "without confidential computing", observe(off), 0)
	confidential = true
	cmptest.Equal(t, "with persistence mode, or unknown", observe(on, unknown), 0)
	cmptest.Equal(t, "without", observe(on, off), 1)
	cmptest.Equal(t, "still without", observe(on, off), 1)
	cmptest.HasTexts(t, out.String(), "gpus=1", "nvidia-persistenced")
	cmptest.Equal(t, "with it again", observe(on, on), 1)
	cmptest.Equal(t, "another one without", observe(off, on), 2)
}

// TestCheckNodeAsksForPersistence mode where GPUs are confidential, alone.
func TestCheckNodeAsksForPersistence(t *testing.T) {
	g := gpu.GPU{Device: gpu.Device{Up: true}, Readings: gpu.Readings{SlowReadings: gpu.SlowReadings{PersistenceMode: gpu.Some(false)}}}

	for _, confidential := range []bool{false, true} {
		j := nodeJudge{cfg: &Config{Profiling: ProfilingConfig{Source: profilingOff}}, confidential: confidential}
		j.judgePersistence("gpu 0", &g)
		cmptest.Equal(t, "fails", j.checks[0].fails(), confidential)
	}
}
