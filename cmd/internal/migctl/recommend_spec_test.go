package migctl

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// simulated returns the layouts of a simulated node, as the planner gets them.
func simulated(t *testing.T, gpus string) []mig.GPULayout {
	t.Helper()

	scenario, err := sim.Parse("test.yaml", []byte("version: 1\nnode: {kubernetes: false}\ngpus:\n"+gpus))
	if err != nil {
		t.Fatal(err)
	}

	node, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	source := nvmlsource.New(simnvml.New(node), nvmlsource.Options{Now: node.Now, Logger: log.NewNopLogger()})
	t.Cleanup(func() { source.Close(context.Background()); node.Close() })

	if _, err := source.Discover(); err != nil {
		t.Fatal(err)
	}

	layouts, errs, err := source.Actuator().Layouts(t.Context())
	if err != nil || len(errs) > 0 {
		t.Fatal(err, errs)
	}

	return layouts
}

// asSeen gives a GPU the identity and the instances of a simulated one. Instances are held, except
// for one of a profile.
func asSeen(g gpu.GPU, l *mig.GPULayout, freeProfile string) gpu.GPU {
	g.UUID = l.UUID
	g.Index = l.Index
	g.Profiles = l.Profiles

	g.MIG.Enabled = l.MIG
	for i := range l.Instances {
		was := &l.Instances[i]
		holder := podOf("ml", fmt.Sprint("slice-", i), fmt.Sprint("Deployment/slice-", i))

		is := slice(was.Profile, was.Placement, load{busy: 0.9, sm: 0.8, gib: 1}, holder)
		if was.Profile == freeProfile {
			is.Holders, is.Allocated = nil, gpu.Some(false)
		}

		is.ID = was.ID

		is.ComputeInstances = nil
		for k := range was.ComputeInstances {
			c := &was.ComputeInstances[k]

			name := was.Profile
			if n, err := mig.ParseName(was.Profile); err == nil && c.Slices < n.Slices {
				name = fmt.Sprintf("%dc.%s", c.Slices, was.Profile)
			}

			is.ComputeInstances = append(is.ComputeInstances,
				gpu.ComputeInstance{ID: c.ID, UUID: c.UUID, Profile: name, Placement: c.Placement, Device: gpu.Device{Up: true}})
		}

		g.Instances = append(g.Instances, is)
	}

	return g
}

// planOf returns the planner's steps for a spec that migctl has printed, or for one of its layouts.
// All existing instances are busy.
func planOf(t *testing.T, text, layout string, layouts []mig.GPULayout) []mig.Step {
	t.Helper()

	document, err := spec.DecodeLayout([]byte(text), layout)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}

	wanted, err := spec.Resolve(document, func() map[string][]api.LayoutRule { return nil })
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}

	busy := slices.Clone(layouts)
	for i := range busy {
		busy[i].MIG, busy[i].Pending = gpu.Some(true), gpu.Some(true) // migctl mode on has been there

		busy[i].Instances = slices.Clone(busy[i].Instances)
		for k := range busy[i].Instances {
			busy[i].Instances[k].Busy = true
		}
	}

	plan, err := mig.PlanNode(t.Context(), busy, wanted)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}

	return plan.Steps
}

// newSlices counts the GPU instances that steps create, by GPU and profile; anything that is
// destroyed fails the test.
func newSlices(t *testing.T, steps []mig.Step) map[string]int {
	t.Helper()
	counts := map[string]int{}

	for _, s := range steps {
		switch s.Op {
		case mig.CreateInstance:
			counts[fmt.Sprintf("%s %s", s.GPU, s.Profile)]++
		case mig.DestroyInstance, mig.DestroyCompute:
			t.Errorf("destroys %s at %s", s.Profile, s.Placement)
		}
	}

	return counts
}

// packed counts the new slices of a report in the same way.
func packed(report *advise.Report) map[string]int {
	counts := map[string]int{}

	for _, g := range report.Packing.GPUs {
		for _, s := range g.Slices {
			if !s.Exists {
				counts[fmt.Sprintf("%s %s", g.GPU, s.Profile)]++
			}
		}
	}

	return counts
}

const simulatedGPUs = `  - {model: H100-80GB, count: 5}
  - {model: H100-80GB, mig: true, layout: [{gi: "2g.20gb@0", ci: ["1c", "1c"]}, "1g.20gb@2", "1g.10gb@6"]}
`

// TestSpecIsPlannedAndDestroysNothing: what -o spec prints is planned on the simulated node as it
// was packed, all GPUs at once and one after the other. Existing instances are busy, split ones
// included.
func TestSpecIsPlannedAndDestroysNothing(t *testing.T) {
	layouts := simulated(t, simulatedGPUs)
	var gpus []gpu.GPU

	for i, l := range []load{small, middle, tiny, middle} {
		holder := podOf("ml", fmt.Sprint("pod-", i), fmt.Sprint("Deployment/d-", i))
		gpus = append(gpus, asSeen(wholeH100(t, i, l, holder), &layouts[i], ""))
	}

	gpus = append(gpus, asSeen(wholeH100(t, 4, load{}), &layouts[4], ""))
	gpus = append(gpus, asSeen(wholeH100(t, 5, load{}), &layouts[5], "1g.20gb"))

	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, gpus...))
	if report.Packing == nil || len(report.Packing.GPUs) < 2 {
		t.Fatalf("packing %+v", report.Packing)
	}

	_, address := serve(t, recommended(report, s))
	all := runner{}.run(t, address, "recommend", "-o", "spec")
	cmptest.Equal(t, "exit code and errors", outcome{code: all.code, err: all.err}, outcome{})
	golden(t, "recommend-spec.yaml", strings.ReplaceAll(all.out, string(layouts[5].UUID), "UUID"))
	cmptest.Equal(t, "created", newSlices(t, planOf(t, all.out, "", layouts)), packed(report))
	each := map[string]int{}

	for _, g := range report.Packing.GPUs {
		one := runner{}.run(t, address, "recommend", "-o", "spec", string(g.GPU))
		alone := newSlices(t, planOf(t, one.out, "", layouts))
		steps := planOf(t, all.out, fmt.Sprintf(layoutOfGPU, g.Index), layouts)
		cmptest.Equal(t, fmt.Sprintf("GPU %d, from the file of all", g.Index), newSlices(t, steps), alone)

		for what, n := range alone {
			each[what] += n
		}
	}

	cmptest.Equal(t, "created one after the other", each, packed(report))

	got := runner{in: all.out}.run(t, address, "plan", "-f", "-")
	if got.code == exitUsage {
		t.Errorf("migctl plan refuses the spec: %s", got.err)
	}
}

// TestSplitsThatOnlyOneGPUCanKeep: mig-parted's form cannot say how several instances of a profile
// are split; counts can.
func TestSplitsThatOnlyOneGPUCanKeep(t *testing.T) {
	layouts := simulated(t, `  - model: H100-80GB
    mig: true
    layout: [{gi: "2g.20gb@0", ci: ["1c", "1c"]}, {gi: "2g.20gb@2", ci: ["2c"]}, {gi: "2g.20gb@4", ci: ["1c"]}]
  - {model: H100-80GB}
`)
	gpus := []gpu.GPU{
		asSeen(wholeH100(t, 0, load{}), &layouts[0], ""),
		asSeen(wholeH100(t, 1, tiny, podOf("ml", "a-0", "Deployment/a")), &layouts[1], ""),
	}
	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, gpus...))
	_, address := serve(t, recommended(report, s))
	all := runner{}.run(t, address, "recommend", "-o", "spec")
	cmptest.Equal(t, "exit code", all.code, exitUsage)
	cmptest.HasTexts(t, flat(all.err), "migctl recommend -o spec 0 writes one")
	one := runner{}.run(t, address, "recommend", "-o", "spec", "0")
	cmptest.Equal(t, "created", newSlices(t, planOf(t, one.out, "", layouts)), packed(report))
}

// TestSingleStrategyFreesSlices: no GPU of such a node stays whole, so that there is nothing to price. With
// a GPU that could not be read there is no procedure.
func TestSingleStrategyFreesSlices(t *testing.T) {
	layouts := simulated(t, "  - {model: H100-80GB, count: 4}\n")
	var gpus []gpu.GPU

	for i := range layouts {
		var holders []gpu.Holder
		if i < 3 {
			holders = append(holders, podOf("ml", fmt.Sprint("pod-", i), fmt.Sprint("Deployment/", i)))
		}

		gpus = append(gpus, asSeen(wholeH100(t, i, small, holders...), &layouts[i], ""))
	}

	o := advise.DefaultOptions()
	o.SingleStrategy = true
	report, s := established(observed(o, 25*time.Hour, gpus...))
	_, address := serve(t, recommended(report, s))
	text := runner{}.run(t, address, "recommend").out
	counts := newSlices(t, planOf(t, runner{}.run(t, address, "recommend", "-o", "spec").out, "", layouts))
	cmptest.LacksTexts(t, text, "Freed:", "becomes free")
	cmptest.HasTexts(t, flat(text), "The other GPUs of the node become 12 free slices of it. No GPU of the node stays whole.",
		"A pod that asks for nvidia.com/gpu on this node gets one of these slices then.")

	created := 0
	for _, count := range counts {
		created += count
	}

	cmptest.Equal(t, "free slices of the layouts", created-3, report.Packing.FreeSlices)

	priced := flat(runner{}.run(t, address, "recommend", "--price=H100=2.50").out)
	cmptest.HasTexts(t, priced, "no whole GPU becomes free, so there is none to count")
	cmptest.LacksTexts(t, priced, "an hour,")

	lost := *report
	lost.NotJudged = []advise.NotJudged{{GPU: "GPU-4", Index: 4, Why: whyLost}}
	_, lostAddress := serve(t, recommended(&lost, s))
	cmptest.HasTexts(t, flat(runner{}.run(t, lostAddress, "recommend").out),
		"No procedure: under --mig-strategy=single", "without GPU 4, which was not read")
}

// TestSingleStrategyPartitionsAllGPUs: every GPU of the node has slices, of one profile, and pods
// keep their request.
func TestSingleStrategyPartitionsAllGPUs(t *testing.T) {
	layouts := simulated(t, "  - {model: H100-80GB, count: 4}\n")
	var gpus []gpu.GPU

	for i, owner := range []string{"Deployment/a", "DaemonSet/b", "Pod/pod-2"} {
		g := wholeH100(t, i, []load{small, tiny, tiny}[i], podOf("ml", fmt.Sprint("pod-", i), owner))
		gpus = append(gpus, asSeen(g, &layouts[i], ""))
	}

	gpus = append(gpus, asSeen(wholeH100(t, 3, load{}), &layouts[3], ""))
	o := advise.DefaultOptions()
	o.SingleStrategy = true
	report, s := established(observed(o, 25*time.Hour, gpus...))
	_, address := serve(t, recommended(report, s))
	counts := newSlices(t, planOf(t, runner{}.run(t, address, "recommend", "-o", "spec").out, "", layouts))
	partitioned := map[string]bool{}

	for what := range counts {
		id, profile, _ := strings.Cut(what, " ")
		partitioned[id] = true
		cmptest.Equal(t, "profile", profile, "1g.20gb")
	}

	cmptest.Equal(t, "GPUs with slices", len(partitioned), len(layouts))
	text := runner{}.run(t, address, "recommend").out
	golden(t, "recommend-single.txt", text)
	cmptest.LacksTexts(t, text, "kubectl --namespace=ml patch")
	cmptest.HasTexts(t, text, "kubectl --namespace=ml delete pod/pod-0", "kubectl --namespace=ml delete pod/pod-1")
	cmptest.LacksTexts(t, text, "delete pod/pod-2")
	cmptest.HasTexts(t, flat(text), "GPU 2, pod ml/pod-2: Wait until it ends.")

	// one GPU alone would take the resource of the whole node away
	whole := runner{}.run(t, address, "recommend", "-o", "spec")
	cmptest.HasTexts(t, whole.out, "# All GPUs at once: migctl apply -f FILE.", "layout: recommended")
	cmptest.LacksTexts(t, whole.out, "gpu-0")
	alone := runner{}.run(t, address, "recommend", "-o", "spec", "0")
	cmptest.Equal(t, "exit code and spec", outcome{code: alone.code, out: alone.out}, outcome{code: exitFailed})
	cmptest.HasTexts(t, flat(alone.err), "under --mig-strategy=single all GPUs of a node have one MIG mode and one profile")
	cmptest.Equal(t, "all GPUs by name", runner{}.run(t, address, "recommend", "-o", "spec", "all").out, whole.out)

	for _, args := range [][]string{{"recommend", "0"}, {"recommend", "--explain", "0"}} {
		one := runner{}.run(t, address, args...)
		cmptest.HasTexts(t, flat(one.out), "No GPU can be partitioned alone", "migctl recommend without a GPU")
		fits(t, one.out)
	}

	cmptest.LacksTexts(t, runner{}.run(t, address, "recommend", "3").out, "partitioned alone") // it is free

	for _, reserve := range []func(r *advise.Recommendation){
		func(r *advise.Recommendation) { r.Provisional = true }, func(r *advise.Recommendation) { r.NotChecked = true },
	} {
		doubtful := *report
		doubtful.Devices = slices.Clone(report.Devices)
		reserve(&doubtful.Devices[1])
		_, address := serve(t, recommended(&doubtful, s))
		refused := runner{}.run(t, address, "recommend")
		cmptest.Equal(t, "exit code", refused.code, exitOK)
		cmptest.HasTexts(t, flat(refused.out), "No procedure: under --mig-strategy=single", "for GPU 1, ")
		cmptest.LacksTexts(t, refused.out, "kubectl", "migctl apply")
		fits(t, refused.out)
		written := runner{}.run(t, address, "recommend", "-o", "spec")
		cmptest.Equal(t, "exit code and spec", outcome{code: written.code, out: written.out}, outcome{code: exitFailed})
		cmptest.HasTexts(t, flat(written.err), "there is no spec to write: under --mig-strategy=single", "for GPU 1, ")
	}
}

// randomNode returns up to eight GPUs: busy ones, free ones and partitioned ones.
func randomNode(t *testing.T, random *rand.Rand) []gpu.GPU {
	kinds := []string{
		"Deployment", "Deployment", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "Pod", "RayJob",
	}
	var gpus []gpu.GPU

	for i := range 2 + random.IntN(7) {
		owner := fmt.Sprintf("%s/w-%d", kinds[random.IntN(len(kinds))], random.IntN(2))
		switch random.IntN(10) {
		case 0:
			gpus = append(gpus, wholeH100(t, i, load{}))
		case 1:
			busy := slice("3g.40gb", at(0, 4), load{busy: 1, sm: 1}, podOf("ml", fmt.Sprint("s-", i), "Deployment/s"))
			gpus = append(gpus, slicedH100(t, i, busy, slice("1g.10gb", at(6, 1), load{})))
		default:
			l := []load{tiny, small, middle}[random.IntN(3)]
			gpus = append(gpus, wholeH100(t, i, l, podOf("ml", fmt.Sprint("w-", i), owner)))
		}
	}

	return gpus
}

// TestProcedureWorksOnRandomNodes executes the printed commands on a model of a cluster: no GPU is
// partitioned before its pod has left it, no node is cordoned while a pod is to get a slice, and in
// the end every pod that moves has one.
func TestProcedureWorksOnRandomNodes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	moved := 0
	waited := 0
	followed := 0
	later := 0

	for n := range 25 {
		report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, randomNode(t, random)...))
		if report.Packing == nil || len(report.Packing.GPUs) == 0 {
			continue
		}

		_, address := serve(t, recommended(report, s))
		out := runner{}.run(t, address, "recommend").out

		c := newCluster(report)
		for _, argv := range executed(t, out) {
			if err := c.execute(argv); err != nil {
				t.Fatalf("node %d: %q: %v\n%s", n, argv, err, out)
			}
		}

		if len(c.holds)+len(c.pending) > 0 {
			t.Errorf("node %d: GPUs %v are held still, pods %v have no slice\n%s", n, c.holds, c.pending, out)
		}

		moved += report.Packing.InUse
		waited += strings.Count(out, " leaves, and waits for")
		followed += strings.Count(out, " has moved to")
		later += strings.Count(out, "which comes later")
	}

	if moved < 50 || waited < 10 || followed < 1 || later > 1 { // one packing has a circle
		t.Errorf("%d workloads moved, %d had to wait, %d of them for a later GPU, %d GPUs were left by a workload before; "+
			"want 50, 10, not more than 1, and 1", moved, waited, later, followed)
	}
}
