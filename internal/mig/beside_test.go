package mig

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestPlaceBeside: an earlier instance gives way to a later one that fits in one place alone, and
// no two overlap.
func TestPlaceBeside(t *testing.T) {
	model, _ := FindModel("H100-80GB")

	for _, c := range []struct {
		about string
		at    gpu.Placement // of a 1g.10gb that stands
		names []string
		want  []gpu.Placement
	}{
		{"nothing", gpu.Placement{Start: 0, Size: 1}, nil, []gpu.Placement{}},
		{"one after the other", gpu.Placement{Start: 0, Size: 1}, []string{"1g.10gb", "1g.10gb"},
			[]gpu.Placement{{Start: 1, Size: 1}, {Start: 2, Size: 1}}},
		{"the first gives way", gpu.Placement{Start: 4, Size: 1}, []string{"1g.20gb", "4g.40gb"},
			[]gpu.Placement{{Start: 6, Size: 2}, {Start: 0, Size: 4}}},
		{"too many", gpu.Placement{Start: 4, Size: 1}, []string{"3g.40gb", "3g.40gb"}, nil},
		{"no such profile", gpu.Placement{Start: 4, Size: 1}, []string{"5g.50gb"}, nil},
	} {
		stands := []Placed{{ProfileID: 19, Profile: "1g.10gb", Placement: c.at}}
		var got []gpu.Placement

		if placed := PlaceBeside(model.Profiles, stands, c.names); placed != nil {
			got = []gpu.Placement{}

			for i, p := range placed {
				cmptest.Equal(t, c.about+": profile", p.Profile, c.names[i])
				got = append(got, p.Placement)
			}
		}

		cmptest.Equal(t, c.about, got, c.want)
	}
}
