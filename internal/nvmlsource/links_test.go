package nvmlsource_test

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// newTrainer is a node whose GPU of a model sends 18 MiB/s over NVLink, one for each link.
func newTrainer(t *testing.T, model string) *node {
	t.Helper()

	return newNode(t, "", `  - {model: `+model+`}
workloads: [{name: w, memory: 1GiB, sm: 60, nvlink: 18MiB}]
pods: [{name: p, resource: nvidia.com/gpu, workload: w}]`)
}

// TestNVLinkByLink: from NVLink 5 on the driver counts by link. The links are added up in a call of
// the slow tier.
func TestNVLinkByLink(t *testing.T) {
	n := newTrainer(t, "B200")
	id := n.discover()[0]

	before := n.read(id).Readings.NVLink
	if len(before.Errors) != 4 {
		t.Errorf("errors %+v, want four kinds", before.Errors)
	}

	n.spy.taken()
	n.advance(time.Second)
	cmptest.Equal(t, "between two slow tiers", n.read(id).Readings.NVLink, before)
	cmptest.Equal(t, "calls then", n.spy.taken()["GetFieldValues"], 1)

	n.advance(99 * time.Second)
	now := n.read(id).Readings.NVLink
	cmptest.Equal(t, "calls with the slow tier", n.spy.taken()["GetFieldValues"], 2)

	for name, bytes := range map[string][2]gpu.Opt[uint64]{
		"sent": {before.TransmitBytes, now.TransmitBytes}, "received": {before.ReceiveBytes, now.ReceiveBytes},
	} {
		if !bytes[0].Present() || bytes[1].Or(0)-bytes[0].Or(0) != 1800<<20 {
			t.Errorf("%s %v, then %v: want 1800 MiB more", name, bytes[0], bytes[1])
		}
	}
}

// TestNVLinkTotals: before NVLink 5 there are totals, and no call by link.
func TestNVLinkTotals(t *testing.T) {
	n := newTrainer(t, "H100-80GB")
	id := n.discover()[0]
	n.advance(100 * time.Second)
	n.spy.taken()
	links := n.read(id).Readings.NVLink
	cmptest.Equal(t, "calls", n.spy.taken()["GetFieldValues"], 1)
	cmptest.Equal(t, "first kind of errors", links.Errors[0].Kind, "crc_flit")

	if links.TransmitBytes.Or(0) == 0 {
		t.Error("nothing was sent")
	}
}

// TestNoLinksInMIGMode: instances have no NVLink, so their links are not asked, and nothing is
// known of them.
func TestNoLinksInMIGMode(t *testing.T) {
	n := newNode(t, "", `  - {model: B200, mig: true, layout: ["3g.90gb@0"]}`)
	id := n.discover()[0]
	n.spy.taken()
	cmptest.Equal(t, "NVLink", n.read(id).Readings.NVLink, gpu.NVLink{})
	cmptest.Equal(t, "calls", n.spy.taken()["GetFieldValues"], 1)
}

// TestLinksThatAreRefused: a driver that refuses the call for the links still answers all other
// fields.
func TestLinksThatAreRefused(t *testing.T) {
	n := newTrainer(t, "B200")
	id := n.discover()[0]
	before := n.read(id).Readings
	n.advance(20 * time.Second)
	n.spy.do("GetFieldValues", func() { // that of all fields has been made
		n.spy.do("GetFieldValues", func() { n.spy.set("GetFieldValues", nvml.ERROR_UNKNOWN) })
	})

	g := n.read(id)
	cmptest.Equal(t, "the links keep what they counted", g.Readings.NVLink, before.NVLink)

	if errorOf(g.Errors, gpu.ReadingNVLink) == nil || !g.Readings.PCIe.TransmitBytes.Present() {
		t.Errorf("errors %v, PCIe %+v: want an error of NVLink alone", g.Errors, g.Readings.PCIe)
	}
}
