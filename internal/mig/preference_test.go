package mig

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Where plans put what is wanted on an empty GPU, by profile id as in `nvidia-smi mig -cgi`. Where
// all layouts leave room for the same largest profile it is where the driver puts it.
func TestPlacementsOnAnEmptyGPU(t *testing.T) {
	for _, tt := range []struct {
		model  string
		wanted string
		want   string
	}{
		{"A100-40GB", "19", "1g.5gb@6"},
		{"A100-40GB", "20", "1g.5gb+me@6"},
		{"A100-40GB", "14", "2g.10gb@4"},
		{"A100-40GB", "9", "3g.20gb@4"},
		{"A100-40GB", "5", "4g.20gb@0"},
		{"A100-40GB", "15", "1g.10gb@6"}, // not known: the one that leaves room for 4g.20gb and two 1g.5gb
		{"A100-40GB", "19 19", "1g.5gb@4 1g.5gb@6"},
		{"A100-40GB", "19 19 19", "1g.5gb@4 1g.5gb@5 1g.5gb@6"},
		// leaves 3g.20gb@4, 6 4 5 0 would leave 2g.10gb@2
		{"A100-40GB", "19 19 19 19", "1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3"},
		{"A100-40GB", "19 19 19 19 19", "1g.5gb@0 1g.5gb@1 1g.5gb@4 1g.5gb@5 1g.5gb@6"},
		{"A100-40GB", "19 19 19 19 19 19 19", "1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6"},
		{"A100-40GB", "14 19", "2g.10gb@4 1g.5gb@6"},
		{"A100-40GB", "19 14 5", "4g.20gb@0 2g.10gb@4 1g.5gb@6"},
		// the largest first; the driver, in this order: 0 2 1
		{"A100-40GB", "9 19 14 19", "2g.10gb@0 1g.5gb@2 1g.5gb@3 3g.20gb@4"},
		{"A100-40GB", "19 19 14 9", "2g.10gb@0 1g.5gb@2 1g.5gb@3 3g.20gb@4"}, // in this order the driver fails
		{"A100-40GB", "14 14", "2g.10gb@0 2g.10gb@2"},                        // leaves 3g.20gb@4; the driver's 4, 0 would not
		{"A100-80GB", "14 14 14 20", "2g.20gb@0 2g.20gb@2 2g.20gb@4 1g.10gb+me@6"},
		{"H100-80GB", "9 9", "3g.40gb@0 3g.40gb@4"},
		{"H100-80GB", "9 5", "4g.40gb@0 3g.40gb@4"},
		{"H100-94GB", "19", "1g.12gb@6"},
		{"H200-141GB", "14", "2g.35gb@4"},
		{"A30-24GB", "14", "1g.6gb@0"}, // not known
		{"A30-24GB", "5", "2g.12gb@0"},
		{"RTX PRO 6000", "14", "1g.24gb@0"},
		{"RTX PRO 6000", "5 14", "2g.48gb@0 1g.24gb@6"},
	} {
		m := model(t, tt.model)

		var want []Want
		for _, id := range strings.Fields(tt.wanted) {
			want = append(want, Want{Profile: id, Count: 1})
		}

		plan, err := PlanNode(t.Context(), []GPULayout{unexplored(m).nodeGPU(0, nil)},
			Spec{Rules: []Rule{{GPUs: []string{"0"}, Enabled: true, Want: want}}})
		if err != nil {
			t.Errorf("%s %s: %v", tt.model, tt.wanted, err)
			continue
		}

		if got := after(plan); got != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.model, tt.wanted, got, tt.want)
		}
	}
}

func after(plan NodePlan) string {
	var list []string
	for _, a := range plan.GPUs[0].After {
		list = append(list, fmt.Sprintf("%s@%d", a.Profile, a.Placement.Start))
	}

	return strings.Join(list, " ")
}

// What exists wins over the preferred place, and a demand prefers as a rule does.
func TestPreferenceComesLast(t *testing.T) {
	g := newNaiveGPU(model(t, "A100-40GB"))

	at2 := g.nodeGPU(0, []naiveExisting{{naiveInstance: naiveInstance{0, 2}}})
	for _, tt := range []struct {
		spec Spec
		want string
	}{
		{Spec{Rules: []Rule{{GPUs: []string{"0"}, Enabled: true,
			Want: []Want{{Profile: "19", Count: 1, ComputeInstances: []int{}}}}}}, "1g.5gb@2"},
		// leaves 3g@4
		{Spec{Rules: []Rule{{GPUs: []string{"0"}, Enabled: true,
			Want: []Want{{Profile: "19", Count: 2, ComputeInstances: []int{}}}}}}, "1g.5gb@0 1g.5gb@2"},
		// leaves 2g@0
		{Spec{Demand: []Need{{MemoryBytes: 4 << 30, Count: 4}}}, "1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6"},
	} {
		plan, err := PlanNode(t.Context(), []GPULayout{at2}, tt.spec)
		if err != nil || after(plan) != tt.want {
			t.Errorf("%+v: %s, %v, want %s", tt.spec, after(plan), err, tt.want)
		}
	}

	empty := []GPULayout{g.nodeGPU(0, nil)}

	plan, err := PlanNode(t.Context(), empty, Spec{Demand: []Need{{MemoryBytes: 4 << 30, Count: 2}}})
	if err != nil || after(plan) != "1g.5gb@4 1g.5gb@6" {
		t.Errorf("%s, %v", after(plan), err)
	}
}

// A driver lists placements in whatever order, and may list others than those that the order is
// known of.
func TestPreferredPlacements(t *testing.T) {
	s := shape{axis: 8, compute: 7}
	p := gpu.Profile{ComputeSlices: 2, MemorySlices: 2,
		Placements: []gpu.Placement{{Start: 6, Size: 2}, {Start: 0, Size: 2}, {Start: 2, Size: 2}, {Start: 4, Size: 2}}}

	before := slices.Clone(p.Placements)
	if got := fmt.Sprint(preferred(p, s)); got != "[4:2 0:2 2:2 6:2]" || !slices.Equal(p.Placements, before) {
		t.Errorf("%s; the profile has %v", got, p.Placements)
	}

	if got := fmt.Sprint(preferred(p, shape{axis: 12, compute: 4})); got != "[6:2 0:2 2:2 4:2]" {
		t.Errorf("on another axis %s", got)
	}
}
