package fleet

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// TestGains: slices are packed by cluster and model. One that needs a GPU for itself makes room, or
// gains nothing if a GPU of its model stands free in its cluster.
func TestGains(t *testing.T) {
	m, ok := mig.FindModel("H100-80GB")
	if !ok {
		t.Fatal("no model H100-80GB")
	}

	gpus := func(cluster string, profiles ...string) (list []GPU) {
		for _, profile := range profiles {
			g := GPU{Cluster: cluster, Model: m.Name, Action: advise.ActionSlice, Profile: profile, model: m,
				Provisional: true, StretchP95: &advise.Stretch{}, StartWith: &advise.PredictedServer{}}
			if profile == "" {
				g.Action = advise.ActionFree
				g.Provisional = false
				g.StretchP95 = nil
				g.StartWith = nil
			}

			list = append(list, g)
		}

		return list
	}

	all := append(gpus("a", "4g.40gb", "1g.10gb", "4g.40gb", "1g.10gb"), gpus("b", "4g.40gb", "3g.40gb", "4g.40gb", "")...)
	weighGains(all)
	var got []string

	for i := range all {
		g := &all[i]
		if g.Gain != nil {
			got = append(got, g.Gain.String())
		} else {
			got = append(got, string(g.Action)+" "+string(g.Reason)+g.Profile)
		}
	}

	const third, half, room = "frees 0.67 of a GPU, packed with others", "frees 0.50 of a GPU, packed with others",
		"frees no whole GPU, room for 3g.40gb"
	cmptest.Equal(t, "gains", got, []string{third, third, room, third, half, half, "keep no-gain", "free "})

	g := &all[6]
	cmptest.HasTexts(t, g.Explanation, "4g.40gb would do", "gain nothing")
	left := g.Provisional || g.StretchP95 != nil || g.StartWith != nil || g.Gain != nil
	cmptest.Equal(t, "what is left of the slice", left, false)
}
