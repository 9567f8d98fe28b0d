package mig

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ruleNode is a node of four: an A100, an A30 that is busy, one with MIG off and one that has none.
func ruleNode(t *testing.T) []GPULayout {
	t.Helper()
	a100 := newNaiveGPU(model(t, "A100-40GB"))
	a30 := newNaiveGPU(model(t, "A30-24GB"))
	gpus := []GPULayout{a100.nodeGPU(0, nil), a30.nodeGPU(1, nil), a100.nodeGPU(2, nil), a100.nodeGPU(3, nil)}
	gpus[0].Name, gpus[1].Name, gpus[1].PCIDevice = "NVIDIA A100-SXM4-40GB", "NVIDIA A30", 0x20B710DE
	gpus[1].Instances = []Instance{{
		ID: 3, Placed: Placed{ProfileID: 5, Profile: "2g.12gb", Placement: gpu.Placement{Start: 0, Size: 2}},
		ComputeInstances: []ComputeInstance{
			{ID: 0, UUID: "MIG-a", Slices: 1, Placement: gpu.Some(gpu.Placement{Start: 0, Size: 1})},
			{ID: 1, UUID: "MIG-b", Slices: 1, Placement: gpu.Some(gpu.Placement{Start: 1, Size: 1}), Busy: true},
		},
	}}
	gpus[2].MIG, gpus[2].Pending = gpu.Some(false), gpu.Some(false)
	gpus[3].MIG, gpus[3].Pending, gpus[3].Profiles = gpu.None[bool](), gpu.None[bool](), nil

	return gpus
}

func planOf(t *testing.T, gpus []GPULayout, rules ...Rule) NodePlan {
	t.Helper()

	plan, err := PlanNode(t.Context(), gpus, Spec{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}

	return plan
}

func TestTheLastRuleThatSelectsAGPUCounts(t *testing.T) {
	gpus := ruleNode(t)
	plan := planOf(t, gpus,
		Rule{GPUs: []string{"all"}, Enabled: true, Want: []Want{{Profile: "7g.40gb", Count: 1}}},
		Rule{GPUs: []string{"2"}},
		Rule{GPUs: []string{"all"}, PCIDevices: []uint32{0x20B710DE}, Enabled: true,
			Want: []Want{{Profile: "2g.12gb", Count: 2, ComputeInstances: []int{1}}}},
	)

	var touched []int
	for _, p := range plan.GPUs {
		touched = append(touched, p.GPU)
	}

	if !slices.Equal(touched, []int{0, 1, 2}) { // 3 has no MIG
		t.Fatalf("%+v", plan)
	}

	if a := plan.GPUs[0].After; len(a) != 1 || a[0].Profile != "7g.40gb" {
		t.Errorf("%+v", a)
	}

	if plan.GPUs[2].After != nil {
		t.Errorf("MIG is off: %+v", plan.GPUs[2])
	}

	var got []string
	for _, s := range plan.Steps {
		got = append(got, fmt.Sprint(s.Op, " ", s.GPU, " ", s.Profile, "@", s.Placement, " ", s.Compute.Or(gpu.Placement{}),
			" ", s.UUID))
	}

	want := []string{
		"create-gi GPU-0 7g.40gb@0:8 0:0 ", "create-ci GPU-0 7g.40gb@0:8 0:7 ",
		"destroy-ci GPU-1 2g.12gb@0:2 0:1 MIG-a", "create-gi GPU-1 2g.12gb@2:2 0:0 ", "create-ci GPU-1 2g.12gb@2:2 0:1 ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestStepsGoByIndex, whatever the order of the list.
func TestStepsGoByIndex(t *testing.T) {
	g := newNaiveGPU(model(t, "A30-24GB"))
	gpus := []GPULayout{g.nodeGPU(7, nil), g.nodeGPU(2, nil)}

	plan := planOf(t, gpus, Rule{GPUs: []string{"all"}, Enabled: true, Want: []Want{{Profile: "4g.24gb", Count: 1}}})
	if len(plan.Steps) != 4 {
		t.Fatalf("plan.Steps: %+v, want 4 of them", plan.Steps)
	}

	cmptest.Equal(t, "plan.Steps[0].GPU", plan.Steps[0].GPU, "GPU-2")
	cmptest.Equal(t, "plan.Steps[2].GPU", plan.Steps[2].GPU, "GPU-7")
	cmptest.Equal(t, "plan.GPUs[0].GPU", plan.GPUs[0].GPU, 0)
}

func TestGPUsAreNamedByIndexUUIDAndBusID(t *testing.T) {
	g := GPULayout{Facts: gpu.Facts{Index: 3, UUID: "GPU-fb8bbc70-d551-45f9-43d4-9734f9cddb2c",
		PCIBusID: "00000000:0A:00.0"}}
	for _, s := range []string{"3", string(g.UUID), strings.ToUpper(string(g.UUID)), "00000000:0A:00.0", "0000:0a:00.0",
		"0000:0A:00.0"} {
		if !Names(s, &g.Facts) {
			t.Errorf("%q does not name it", s)
		}
	}

	for _, s := range []string{
		"", "03", "2", "all", "GPU-fb8bbc70", "0001:0a:00.0", "0a:00.0", "000:0a:00.0", "0000:0a:00.1", "0000:0a:00:0",
		"0000:0a:0g.0", "0000.0a:00.0",
	} {
		if Names(s, &g.Facts) {
			t.Errorf("%q names it", s)
		}
	}

	g.PCIBusID = ""
	if Names("", &g.Facts) {
		t.Error("nothing names a GPU of no bus id")
	}
}

func TestRulesSayWhatIsWrong(t *testing.T) {
	gpus := ruleNode(t)
	all := func(w ...Want) Rule { return Rule{GPUs: []string{"0"}, Enabled: true, Want: w} }

	a30 := func(w ...Want) Rule { return Rule{GPUs: []string{"1"}, Enabled: true, Want: w} }
	for _, tt := range []struct {
		rule Rule
		kind error
		says string
	}{
		{all(Want{Profile: "1g.6gb", Count: 1}), &ProfileError{},
			`profile "1g.6gb": GPU 0 (NVIDIA A100-SXM4-40GB) offers 1g.5gb (19), 1g.5gb+me (20), 1g.10gb (15), 2g.10gb (14), 3g.20gb (9), 4g.20gb (5), 7g.40gb (0)`},
		{all(Want{Profile: "1g.5gb", Count: -1}), &SpecError{}, `-1 of profile "1g.5gb": expected 0 to 64`},
		{all(Want{Profile: "1g.5gb", Count: 65}), &SpecError{}, `65 of profile "1g.5gb": expected 0 to 64`},
		{all(Want{Profile: "3g.20gb", Count: 1, ComputeInstances: []int{2, 2}}), &SpecError{},
			"profile 3g.20gb: compute instances of 4 slices together: it has 3"},
		{all(Want{Profile: "7g.40gb", Count: 1, ComputeInstances: []int{5}}), &SpecError{},
			"profile 7g.40gb: a compute instance of 5 slices: expected one of 1 2 3 4 7"},
		{all(Want{Profile: "4g.20gb", Count: 2}), &InfeasibleError{},
			"GPU 0: 2 x 4g.20gb do not fit on an empty NVIDIA A100-SXM4-40GB: at most 1 x 4g.20gb fits"},
		{all(Want{Profile: "1g.5gb+me", Count: 2}), &InfeasibleError{}, "at most 1 x 1g.5gb+me fits"},
		{all(Want{Profile: "3g.20gb", Count: 9}), &InfeasibleError{}, "at most 2 x 3g.20gb fit"},
		{all(Want{Profile: "3g.20gb", Count: 1}, Want{Profile: "4g.20gb", Count: 1}, Want{Profile: "1g.5gb", Count: 1}),
			&InfeasibleError{}, "NVIDIA A100-SXM4-40GB: no 1g.5gb fits beside 1 x 4g.20gb, 1 x 3g.20gb"},
		{all(Want{Profile: "3g.20gb", Count: 1}, Want{Profile: "1g.5gb", Count: 6}), &InfeasibleError{},
			"at most 4 x 1g.5gb fit beside 1 x 3g.20gb"},
		{all(Want{Profile: "1g.10gb", Count: 3}, Want{Profile: "1g.5gb", Count: 3}, Want{Profile: "1g.5gb+me", Count: 1}),
			&InfeasibleError{}, "they need 10 memory slices, and it has 8"},
		{all(Want{Profile: "4g.20gb", Count: 1}, Want{Profile: "2g.10gb", Count: 2}, Want{Profile: "1g.5gb", Count: 1}),
			&InfeasibleError{}, "memory slices, and it has 8"},
		{a30(Want{Profile: "4g.24gb", Count: 1}), &InfeasibleError{},
			"GPU 1: 1 x 4g.24gb fit only without 2g.12gb@0:2, busy"},
		{a30(), &InfeasibleError{}, "GPU 1: no instances fit only without 2g.12gb@0:2, busy"},
		{a30(Want{Profile: "2g.12gb", Count: 1}), &InfeasibleError{},
			"GPU 1: 1 x 2g.12gb fit only without compute instance 1 of 2g.12gb@0:2, busy"},
		{Rule{GPUs: []string{"2"}, Enabled: true}, &ModeError{},
			"GPU 2 (GPU-2) has MIG off, and the layout is for GPUs with MIG on: change the mode first"},
		{Rule{GPUs: []string{"3"}, Enabled: true}, &ModeError{}, "GPU 3 (GPU-3) has no MIG mode"},
		{Rule{GPUs: []string{"all"}}, &ModeError{}, "GPUs 0, 1 have MIG on, and the layout is for GPUs with MIG off"},
		{Rule{GPUs: []string{"2"}, Want: []Want{{Profile: "1g.5gb", Count: 1}}}, &SpecError{}, "while MIG is to be off"},
		{Rule{GPUs: []string{"9"}, Enabled: true}, &SelectorError{},
			`no GPU of this node is "9": it has GPUs 0 to 3`},
		{Rule{GPUs: []string{"all"}, PCIDevices: []uint32{0x233010DE}}, &SelectorError{},
			"the layout is for no GPU of this node: it has GPUs 0 to 3"},
		{Rule{}, &SelectorError{}, "the layout is for no GPU"},
	} {
		plan, err := PlanNode(t.Context(), gpus, Spec{Rules: []Rule{tt.rule}})

		target := reflect.New(reflect.TypeOf(tt.kind))
		if err == nil {
			t.Fatalf("no error, want %q", tt.says)
		}

		cmptest.Equal(t, fmt.Sprintf("whether %v is a %T", err, tt.kind), errors.As(err, target.Interface()), true)

		if !strings.Contains(err.Error(), tt.says) {
			t.Errorf("err.Error(): %q, want it to contain %q", err.Error(), tt.says)
		}

		if plan.Steps != nil {
			t.Errorf("plan.Steps is %v, want nil", plan.Steps)
		}

		if plan.GPUs != nil {
			t.Errorf("plan.GPUs is %v, want nil", plan.GPUs)
		}
	}
}

// TestOneGPUThatCannotFailsTheWholePlan and says which it is.
func TestOneGPUThatCannotFailsTheWholePlan(t *testing.T) {
	gpus := ruleNode(t)
	plan, err := PlanNode(t.Context(), gpus, Spec{Rules: []Rule{
		{GPUs: []string{"0"}, Enabled: true, Want: []Want{{Profile: "1g.5gb", Count: 1}}},
		{GPUs: []string{"1"}, Enabled: true, Want: []Want{{Profile: "4g.24gb", Count: 1}}},
	}})

	var infeasible *InfeasibleError
	if !errors.As(err, &infeasible) {
		t.Fatalf("%v, want an InfeasibleError", err)
	}

	cmptest.Equal(t, "infeasible.GPU", infeasible.GPU, 1)
	cmptest.Equal(t, "infeasible.FitsEmpty", infeasible.FitsEmpty, true)

	if plan.Steps != nil {
		t.Errorf("plan.Steps is %v, want nil", plan.Steps)
	}

	cmptest.Equal(t, "infeasible.Blocking", infeasible.Blocking, []Blocking{{GPU: 1, Instance: 0}})
}

func TestAModeThatIsPendingIsTold(t *testing.T) {
	for _, tt := range []struct {
		current, pending, wanted bool
		says                     string
	}{
		{true, false, true, "has MIG on until the next reset, and the layout is for GPUs where it stays on"},
		{false, true, true, "has MIG off, and on is pending until the next reset: the layout can be planned after that"},
		{false, true, false, "has MIG off until the next reset, and the layout is for GPUs where it stays off"},
		{true, false, false, "has MIG on, and off is pending until the next reset"},
	} {
		gpus := ruleNode(t)[:1]
		gpus[0].MIG, gpus[0].Pending = gpu.Some(tt.current), gpu.Some(tt.pending)
		_, err := PlanNode(t.Context(), gpus, Spec{Rules: []Rule{{GPUs: []string{"0"}, Enabled: tt.wanted}}})

		var mode *ModeError
		if !errors.As(err, &mode) || !strings.Contains(mode.Error(), tt.says) {
			t.Errorf("%v, want %q", err, tt.says)
		}
	}
}

// TestSplitsFindTheirInstances: of two instances of one profile each gets the split that destroys
// the least.
func TestSplitsFindTheirInstances(t *testing.T) {
	g := newNaiveGPU(model(t, "A100-40GB"))
	const of3g = 4 // the profile's position
	split := naiveExisting{naiveInstance: naiveInstance{of3g, 0},
		computeInstances: []naiveCompute{{start: 0, size: 1, busy: true}, {start: 1, size: 2}}}
	whole := naiveExisting{naiveInstance: naiveInstance{of3g, 1}, computeInstances: []naiveCompute{{size: 3, busy: true}}}

	want := func(sizes ...[]int) Rule {
		r := Rule{GPUs: []string{"0"}, Enabled: true}
		for _, s := range sizes {
			r.Want = append(r.Want, Want{Profile: "3g.20gb", Count: 1, ComputeInstances: s})
		}

		return r
	}
	for _, tt := range []struct {
		existing []naiveExisting
		rule     Rule
		steps    string
	}{
		{[]naiveExisting{split, whole}, want([]int{1, 2}, nil), ""},
		{[]naiveExisting{split, whole}, want(nil, []int{2, 1}), ""},
		{[]naiveExisting{split, whole}, want(nil, []int{1, 1, 1}),
			"destroy-ci 3g.20gb@0:4 1:2, create-ci 3g.20gb@0:4 1:1, create-ci 3g.20gb@0:4 2:1"},
		{[]naiveExisting{whole}, want([]int{1, 2}, nil),
			"create-gi 3g.20gb@0:4, create-ci 3g.20gb@0:4 0:2, create-ci 3g.20gb@0:4 2:1"},
		{[]naiveExisting{split}, want(nil, []int{1, 2}), "create-gi 3g.20gb@4:4, create-ci 3g.20gb@4:4 0:3"},
	} {
		plan := planOf(t, []GPULayout{g.nodeGPU(0, tt.existing)}, tt.rule)
		var steps []string

		for _, s := range plan.Steps {
			text := fmt.Sprintf("%s %s@%s", s.Op, s.Profile, s.Placement)
			if c, ok := s.Compute.Get(); ok {
				text += " " + c.String()
			}

			steps = append(steps, text)
		}

		if got := strings.Join(steps, ", "); got != tt.steps {
			t.Errorf("%+v: %s, want %s", tt.rule.Want, got, tt.steps)
		}
	}

	_, err := PlanNode(t.Context(), []GPULayout{g.nodeGPU(0, []naiveExisting{split, whole})},
		Spec{Rules: []Rule{want([]int{2}, nil)}})

	const says = "GPU 0: 2 x 3g.20gb fit only without compute instance 0 of 3g.20gb@0:4, busy"
	if fmt.Sprint(err) != says {
		t.Errorf("%v, want %s", err, says)
	}
}

// TestNewComputeInstancesStandAligned: where any driver would let them.
func TestNewComputeInstancesStandAligned(t *testing.T) {
	for _, tt := range []struct {
		sizes []int
		want  string
	}{
		{[]int{3, 3, 1}, "[0:3 3:1 4:3]"},
		{[]int{2, 3, 2}, "[0:2 2:2 4:3]"},
		{[]int{1, 2, 4}, "[0:4 4:2 6:1]"},
		{[]int{7}, "[0:7]"},
		{[]int{2, 2, 2, 1}, "[0:2 2:2 4:2 6:1]"},
	} {
		a, ok := arrange(7, tt.sizes, nil)

		var places []gpu.Placement
		for _, c := range a.computeInstances {
			places = append(places, c.Placement.Or(gpu.Placement{Start: unknownStart}))
		}

		if got := fmt.Sprint(places); !ok || got != tt.want {
			t.Errorf("%v: %s, want %s", tt.sizes, got, tt.want)
		}
	}
}

// TestPlansOfSeveralGPUsAreAsGoodAsBruteForce: the best of each, and the same again.
func TestPlansOfSeveralGPUsAreAsGoodAsBruteForce(t *testing.T) {
	g := newNaiveGPU(model(t, "A30-24GB"))
	rng := rand.New(rand.NewPCG(17, 4))
	feasible := 0

	for range 300 {
		var gpus []GPULayout
		var layouts [][]naiveExisting
		var want naiveCost
		var rules []Rule
		possible := true

		for i := range 3 {
			existing := g.randomExisting(rng, g.reachable[rng.IntN(len(g.reachable))], true)

			var wants []naiveWant
			for _, x := range g.reachable[rng.IntN(len(g.reachable))] {
				wants = append(wants, naiveWant{x.profile, randomSizes(rng, g.profiles[x.profile].ComputeSlices)})
			}

			best, ok := g.naiveBest(existing, wants, true)
			possible = possible && ok
			want = naiveCost{want[0] + best[0], want[1] + best[1], want[2] + best[2], want[3] + best[3]}
			layouts, gpus = append(layouts, existing), append(gpus, g.nodeGPU(i, existing))
			rules = append(rules, Rule{GPUs: []string{fmt.Sprint(i)}, Enabled: true, Want: g.asWants(rng, wants)})
		}

		plan, err := PlanNode(t.Context(), gpus, Spec{Rules: rules})
		if (err == nil) != possible {
			t.Fatalf("%+v on %+v: %v, brute force %v", rules, layouts, err, possible)
		}

		if err != nil {
			continue
		}

		feasible++
		var got naiveCost

		for i := range gpus {
			c := replay(t, g, gpus[i], layouts[i], plan, &plan.GPUs[i])
			got = naiveCost{got[0] + c[0], got[1] + c[1], got[2] + c[2], got[3] + c[3]}
		}

		if again := planOf(t, gpus, rules...); got != want || !reflect.DeepEqual(again, plan) {
			t.Fatalf("%+v on %+v: %v, brute force %v; again %+v", rules, layouts, got, want, again)
		}
	}

	if feasible < 20 {
		t.Errorf("only %d can be met", feasible)
	}
}

func BenchmarkRules(b *testing.B) {
	gpus := sixteen(b)
	for i := range gpus {
		for k := range gpus[i].Instances {
			gpus[i].Instances[k].Busy, gpus[i].Instances[k].ComputeInstances = false, nil
		}
	}

	spec := Spec{Rules: []Rule{{GPUs: []string{"all"}, Enabled: true,
		Want: []Want{{Profile: "1g.10gb", Count: 3}, {Profile: "2g.20gb", Count: 1}, {Profile: "1g.20gb", Count: 1}}}}}
	b.ReportAllocs()

	for b.Loop() {
		if _, err := PlanNode(b.Context(), gpus, spec); err != nil {
			b.Fatal(err)
		}
	}
}
