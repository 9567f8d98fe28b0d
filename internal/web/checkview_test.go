package web

import (
	"fmt"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestCheckTile: the page has what check-node finds amiss, escaped, and how much of it there is.
func TestCheckTile(t *testing.T) {
	tileOf := func(snap *gpu.Snapshot, found *[]Finding) string {
		return showPage(t, Options{State: true, Findings: func() *[]Finding { return found }}, snap)
	}

	cmptest.LacksTexts(t, tileOf(nodeFixture(), nil), "check-node")
	cmptest.HasTexts(t, pageText(tileOf(nodeFixture(), &[]Finding{})), "check-node nothing missing Find")

	// There may be no GPU, for a reason that check-node has.
	page := tileOf(&gpu.Snapshot{Time: fixtureTime}, &[]Finding{
		{Missing: true, Name: "driver", Found: "<b>none</b>", Remedy: "install it"}, {Name: "dcgm", Found: "not asked yet"}})
	cmptest.HasTexts(t, pageText(page), "check-node 1 missing 1 unknown missing driver : &lt;b&gt;none&lt;/b&gt; → install it "+
		"unknown dcgm : not asked yet All checks")
	cmptest.LacksTexts(t, page, "<b>none")

	many := make([]Finding, maxFindings+3)
	for i := range many {
		many[i].Name = fmt.Sprint("check ", i)
	}

	cmptest.HasTexts(t, pageText(tileOf(nodeFixture(), &many)), "check-node 23 unknown", "check 19", "and 3 more")
	cmptest.LacksTexts(t, pageText(tileOf(nodeFixture(), &many)), "check 20")
}
