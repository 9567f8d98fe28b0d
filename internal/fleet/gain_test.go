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
				StretchP95: &advise.Stretch{}, StartWith: &advise.PredictedServer{}}
			if profile == "" {
				g.Action = advise.ActionFree
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

// TestGainsOfFinalSlices: what is provisional, or whose use of media engines is unknown, frees
// nothing yet, neither for itself nor for others. If it would gain nothing even once all are final,
// it is refused at once.
func TestGainsOfFinalSlices(t *testing.T) {
	m, ok := mig.FindModel("H100-80GB")
	if !ok {
		t.Fatal("no model H100-80GB")
	}

	gpu := func(profile string, change func(*GPU)) GPU {
		g := GPU{Model: m.Name, Action: advise.ActionSlice, Profile: profile, model: m}
		change(&g)

		return g
	}
	final := func(*GPU) {}
	provisional := func(g *GPU) { g.Provisional = true }
	owned := func(g *GPU) { g.Owner = "ml/Deployment/a" }
	ownedProvisional := func(g *GPU) { g.Owner, g.Provisional = "ml/Deployment/a", true }
	ownedWithoutGain := func(g *GPU) {
		g.Owner, g.Action, g.Reason, g.fits = "ml/Deployment/a", advise.ActionKeep, advise.ReasonNoGain, "3g.40gb"
	}
	unreadWithoutGain := func(g *GPU) {
		ownedWithoutGain(g)
		g.fitsNotChecked = true
	}
	advised := func(g *GPU) { g.Owner, g.Advised = "ml/Deployment/a", true }
	unchecked := func(g *GPU) { g.NotChecked = true }
	free := func(g *GPU) { g.Action, g.Profile = advise.ActionFree, "" }

	for about, c := range map[string]struct {
		gpus []GPU
		want []string
	}{
		"all are final": {[]GPU{gpu("3g.40gb", final), gpu("3g.40gb", final)},
			[]string{"slice frees 0.50 of a GPU, packed with others", "slice frees 0.50 of a GPU, packed with others"}},
		"one is not": {[]GPU{gpu("3g.40gb", final), gpu("3g.40gb", provisional), gpu("", free)},
			[]string{"keep no-gain", "slice ", "free "}},
		"nor this": {[]GPU{gpu("3g.40gb", final), gpu("3g.40gb", unchecked)},
			[]string{"slice frees no whole GPU, room for 4g.40gb", "slice "}},
		"three replicas, of which two fit together": {
			[]GPU{gpu("3g.40gb", owned), gpu("3g.40gb", owned), gpu("3g.40gb", owned), gpu("", free)},
			[]string{"slice frees 0.50 of a GPU, packed with others", "slice frees 0.50 of a GPU, packed with others",
				"slice frees no whole GPU, and moves with the other replicas of its owner", "free "}},
		"the third is not final": {
			[]GPU{gpu("3g.40gb", ownedProvisional), gpu("3g.40gb", ownedProvisional), gpu("3g.40gb", ownedProvisional), gpu("", free)},
			[]string{"slice ", "slice ", "slice ", "free "}},
		"one that an advisor keeps for no gain": {
			[]GPU{gpu("3g.40gb", owned), gpu("3g.40gb", owned), gpu("", ownedWithoutGain), gpu("", free)},
			[]string{"slice frees 0.50 of a GPU, packed with others", "slice frees 0.50 of a GPU, packed with others",
				"slice frees no whole GPU, and moves with the other replicas of its owner", "free "}},
		"one beside its advisor's candidate": {
			[]GPU{gpu("4g.40gb", advised), gpu("", ownedWithoutGain), gpu("", free)},
			[]string{"slice ", "slice frees no whole GPU, and moves with the other replicas of its owner", "free "}},
		"one whose media engines are not read": {
			[]GPU{gpu("3g.40gb", owned), gpu("3g.40gb", owned), gpu("", unreadWithoutGain), gpu("", free)},
			[]string{"slice frees 0.50 of a GPU, packed with others", "slice frees 0.50 of a GPU, packed with others", "slice ", "free "}},
		"none gains": {
			[]GPU{gpu("4g.40gb", owned), gpu("", ownedWithoutGain), gpu("", free)},
			[]string{"keep no-gain", "keep no-gain", "free "}},
		"one that will gain nothing": {[]GPU{gpu("7g.80gb", provisional), gpu("", free)}, []string{"keep no-gain", "free "}},
	} {
		weighGains(c.gpus)

		var got []string

		for i := range c.gpus {
			g := &c.gpus[i]
			says := string(g.Action) + " " + string(g.Reason)

			if g.Gain != nil {
				says += g.Gain.String()
			}

			got = append(got, says)
		}

		cmptest.Equal(t, about, got, c.want)
	}
}

// TestSumsOfFinalSlices: FREED, hours and cost are of the slices that are final, counted by hand. Four
// 1g.20gb fit on a GPU, or seven 1g.10gb, or three and two.
func TestSumsOfFinalSlices(t *testing.T) {
	m, ok := mig.FindModel("H100-80GB")
	if !ok {
		t.Fatal("no model H100-80GB")
	}

	var list []GPU
	add := func(count int, namespace, profile string, hours float64, change func(*GPU)) {
		for range count {
			g := GPU{Model: "H100 80GB HBM3", Namespace: namespace, Action: advise.ActionSlice, Profile: profile,
				HeldHoursPerWeek: hours, model: m}
			change(&g)
			list = append(list, g)
		}
	}
	add(15, "serving", "1g.20gb", 168, func(*GPU) {})
	add(7, "serving", "1g.10gb", 168, func(*GPU) {})
	add(8, "research", "1g.10gb", 112, func(g *GPU) { g.Idle = true })
	add(5, "research", "1g.10gb", 168, func(g *GPU) { g.Provisional = true })
	add(3, "serving", "1g.20gb", 168, func(g *GPU) { g.NotChecked = true })
	add(1, "serving", "", 168, func(g *GPU) { g.Provisional, g.NotChecked = true, true })

	a := &analysis{options: Options{Prices: []Price{{"H100", 2}}}}
	groups := a.group(list, func(g *GPU) string { return g.Namespace })
	total := a.group(list, func(*GPU) string { return "" })[0]

	for about, c := range map[string]struct {
		got, want Group
	}{
		"serving": {groups[0], Group{GPUs: 26, Slices: 26, Final: 22, FreedGPUs: 17, FreedByAll: 19, GPUHoursPerWeek: 17 * 168,
			Provisional: 1, NotChecked: 4}},
		"research": {groups[1], Group{GPUs: 13, Slices: 13, Final: 8, FreedGPUs: 6, FreedByAll: 11, GPUHoursPerWeek: 6 * 112,
			Provisional: 5, Idle: 8}},
		"all": {total, Group{GPUs: 39, Slices: 39, Final: 30, FreedGPUs: 24, FreedByAll: 30, GPUHoursPerWeek: 3673.6,
			Provisional: 6, NotChecked: 4, Idle: 8}},
	} {
		cost := *c.got.CostPerWeek
		c.got.Model, c.got.Namespace, c.got.CostPerWeek, c.got.Reasons = "", "", nil, nil
		cmptest.Equal(t, about, c.got, c.want)
		cmptest.Equal(t, about+": cost", cost, 2*c.want.GPUHoursPerWeek)
	}
}
