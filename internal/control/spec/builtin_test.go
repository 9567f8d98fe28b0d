package spec

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestBuiltInLayouts: names and counts are those of mig-parted's default configuration.
func TestBuiltInLayouts(t *testing.T) {
	layouts := BuiltIn()

	for name, want := range map[string]string{
		"all-1g.5gb":         "[] map[1g.5gb:7]",
		"all-1g.5gb.me":      "[] map[1g.5gb+me:1]",
		"all-1g.6gb":         "[] map[1g.6gb:4]",
		"all-2g.48gb.me.all": "[] map[2g.48gb+me.all:1]",
		"all-1g.24gb-me":     "[0x2BB510DE] map[1g.24gb-me:4]",
		"all-7g.180gb":       "[] map[7g.180gb:1]",
		"all-3g.93gb":        "[] map[3g.93gb:2]",
		"all-3g.95gb":        "[] map[3g.95gb:2]",
		"all-4g.95gb":        "[] map[4g.95gb:1]",
		"all-7g.189gb":       "[] map[7g.189gb:1]",
		"all-1g.35gb":        "[0x233510DE 0x233B10DE] map[1g.35gb:4] [0x31C210DE] map[1g.35gb:7]",
	} {
		var rules []string
		for _, r := range layouts[name] {
			rules = append(rules, fmt.Sprint([]string(r.DeviceFilter), r.MIGDevices))
		}

		cmptest.Equal(t, name, strings.Join(rules, " "), want)
	}

	balanced := map[string]string{}

	for _, r := range layouts["all-balanced"] {
		for _, id := range r.DeviceFilter {
			balanced[id] = fmt.Sprint(r.MIGDevices)
		}
	}

	for id, want := range map[string]string{
		"0x20B710DE": "map[1g.6gb:2 2g.12gb:1]",
		"0x20B010DE": "map[1g.5gb:2 2g.10gb:1 3g.20gb:1]",
		"0x233010DE": "map[1g.10gb:2 2g.20gb:1 3g.40gb:1]",
		"0x2BB510DE": "map[1g.24gb:2 2g.48gb:1]",
		"0x31C210DE": "map[1g.35gb:2 2g.70gb:1 3g.139gb:1]",
	} {
		cmptest.Equal(t, "all-balanced on "+id, balanced[id], want)
	}
}

// TestBuiltInLayoutsCanBePlanned: on every model whose placements are known, each layout is
// planned, or says that it is for other GPUs.
func TestBuiltInLayoutsCanBePlanned(t *testing.T) {
	for name, layout := range BuiltIn() {
		rules, err := Rules(layout)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}

		for _, m := range mig.Models() {
			if !m.PlacementsKnown() {
				continue
			}

			_, err := mig.PlanNode(t.Context(), nodeOf(m), mig.Spec{Rules: rules})
			if full := new(mig.InfeasibleError); errors.As(err, &full) || err != nil && !explains(name, m, err) {
				t.Errorf("%s on %s: %v", name, m.Name, err)
			}
		}
	}
}
