package promtest

import (
	"testing"
	"time"
)

// TestDashboards runs every query of every dashboard on a fleet of simulated nodes.
func TestDashboards(t *testing.T) {
	e := runFleet(t, fleetNodes(t))
	boards := loadDashboards(t)
	end := fleetEnd()
	v := view{from: end.Add(-fleetRuns), to: end, step: fleetStep, set: map[string]string{}}
	for uid, d := range boards {
		for _, p := range d.all() {
			for _, node := range []string{"mixed", "underused", "full", "shared", "a30", "bare", "sick", "gone", "nobody"} {
				v.set["node"] = node
				for _, target := range p.Targets {
					began := time.Now()
					a, err := e.ask(target, v)
					if err != nil {
						t.Errorf("%s, %s: %v", uid, p.Title, err)
						continue
					}
					legends := map[string]bool{}
					for _, s := range a.series {
						legends[legend(target.LegendFormat, s)] = true
					}
					t.Logf("%-10s %-40s %-12s %3d series %3d legends %7d samples %v", node, p.Title, target.RefID, len(a.series), len(legends), a.samples, time.Since(began).Round(time.Millisecond))
					if node == "mixed" && p.Type == "table" && target.RefID == "Holder" || node == "sick" && target.RefID == "State" {
						for _, s := range a.series {
							t.Logf("%s %v", s.Metric, s.Floats)
						}
					}
				}
			}
		}
	}
}
