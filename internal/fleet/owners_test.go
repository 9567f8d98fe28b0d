package fleet

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// replica returns the answer for a replica of an owner on a node: an action and a profile or a
// reason.
func replica(node string, action advise.Action, word string, change ...func(*GPU)) GPU {
	g := GPU{Cluster: "a", Node: node, Model: "H100 80GB HBM3", Owner: "vision/Deployment/resnet", Action: action,
		Explanation: "as " + node + " has it", model: modelNamed("H100-80GB")}
	if g.Reason = advise.Reason(word); action == advise.ActionSlice {
		g.Reason = ""
		g.Profile = word
		g.Decided = &advise.Decided{}
		g.StretchP95 = &advise.Stretch{}
		g.StartWith = &advise.PredictedServer{}
		g.Explanation = "start it there with --gpu-memory-utilization=0.90"
	}

	for _, c := range change {
		c(&g)
	}

	return g
}

// TestTheWeakestReplicaDecides: one template moves all replicas of an owner, on whatever nodes they
// are.
func TestTheWeakestReplicaDecides(t *testing.T) {
	const slice, keep, unknown = advise.ActionSlice, advise.ActionKeep, advise.ActionUnknown
	provisional := func(g *GPU) { g.Provisional = true }
	unchecked := func(g *GPU) { g.NotChecked = true }
	fits := func(profile string) func(*GPU) { return func(g *GPU) { g.fits = profile } }
	another := func(g *GPU) { g.Owner = "vision/Deployment/other" }
	elsewhere := func(g *GPU) { g.Cluster = "b" }
	left := func(g *GPU) { g.hasLeft = true }
	advised := func(g *GPU) { g.Advised = true }
	doubtful := func(g *GPU) { g.fitsIsDoubtful = true }
	ownerless := func(namespace, pod string) func(*GPU) {
		return func(g *GPU) { g.Owner, g.pod = "", podKey{namespace: namespace, pod: pod} }
	}

	a100 := func(g *GPU) { g.Model, g.model = "A100-SXM4-80GB", modelNamed("A100-80GB") }

	for about, c := range map[string]struct {
		gpus  []GPU
		want  string // of all replicas
		names string // in the explanation of the first
	}{
		"alike":             {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", slice, "1g.10gb")}, "slice  1g.10gb; slice  1g.10gb", ""},
		"a larger one":      {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", slice, "2g.20gb")}, "slice  2g.20gb replica; slice  2g.20gb", "node n2 needs 2g.20gb"},
		"rejected":          {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "busy")}, "keep busy  replica; keep busy ", "node n2 stays whole: as n2 has it"},
		"a start unseen":    {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "start-unseen")}, "keep start-unseen  replica; keep start-unseen ", "node n2"},
		"unknown":           {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", unknown, "no-activity")}, "keep no-activity  replica; unknown no-activity ", "node n2"},
		"to share":          {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", advise.ActionShare, "stretch")}, "keep stretch  replica; share stretch ", "node n2"},
		"a new replica":     {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "little-evidence")}, "slice  1g.10gb provisional; keep little-evidence ", ""},
		"no gain there":     {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "no-gain", fits("1g.10gb"))}, "slice  1g.10gb; keep no-gain ", ""},
		"no gain, larger":   {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "no-gain", fits("2g.20gb"))}, "slice  2g.20gb replica; keep no-gain ", "node n2 needs 2g.20gb"},
		"no gain, unknown":  {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "no-gain")}, "slice  1g.10gb provisional; keep no-gain ", ""},
		"gone":              {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "gone")}, "slice  1g.10gb provisional; keep gone ", ""},
		"no gain, doubtful": {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "no-gain", fits("1g.10gb"), doubtful)}, "slice  1g.10gb provisional; keep no-gain ", ""},

		"left, and is rejected":               {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "busy", left)}, "keep busy  replica; keep busy ", "the one that was on node n2 stays whole"},
		"left, and its advisor refused":       {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "latency", left, advised)}, "keep latency  replica; keep latency ", "the one that was on node n2 stays whole"},
		"left, and it opted out":              {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "opted-out", left, advised)}, "slice  1g.10gb; keep opted-out ", ""},
		"left, and its advisor did not know":  {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "start-unseen", left, advised)}, "slice  1g.10gb; keep start-unseen ", ""},
		"all left, and another model is gone": {[]GPU{replica("n1", slice, "1g.10gb", left), replica("n2", keep, "gone", left, a100, fits("1g.5gb"))}, "slice  1g.10gb; keep gone ", ""},
		"was in MIG mode":                     {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "mig-mode")}, "slice  1g.10gb provisional; keep mig-mode ", ""},
		"left, and was not there long":        {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "little-evidence", left)}, "slice  1g.10gb; keep little-evidence ", ""},
		"left, and had not shown its start":   {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "start-unseen", left)}, "slice  1g.10gb; keep start-unseen ", ""},
		"left, for another model":             {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", slice, "1g.5gb", left, a100)}, "slice  1g.10gb; slice  1g.5gb", ""},
		"left, with more":                     {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", slice, "2g.20gb", left, provisional)}, "slice  2g.20gb replica; slice  2g.20gb provisional", "node n2 needs 2g.20gb"},

		"may be one, and stays":        {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "busy", ownerless("vision", "resnet-7d9-b"))}, "slice  1g.10gb provisional; keep busy ", "resnet-7d9-b on node n2 may be another replica"},
		"may be one, and is larger":    {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", slice, "2g.20gb", ownerless("vision", "resnet-7d9-b"))}, "slice  1g.10gb provisional; slice  2g.20gb", ""},
		"may be one of one that stays": {[]GPU{replica("n1", keep, "busy"), replica("n2", slice, "1g.10gb", ownerless("vision", "resnet-7d9-b"))}, "keep busy ; slice  1g.10gb provisional", ""},
		"may be one, and is alike":     {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", slice, "1g.10gb", ownerless("vision", "resnet-7d9-b"))}, "slice  1g.10gb; slice  1g.10gb", ""},
		"is of another name":           {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "busy", ownerless("vision", "resnet2-7d9-b"))}, "slice  1g.10gb; keep busy ", ""},
		"is of another namespace":      {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "busy", ownerless("chat", "resnet-7d9-b"))}, "slice  1g.10gb; keep busy ", ""},
		"may have been one":            {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "busy", ownerless("vision", "resnet-7d9-b"), left)}, "slice  1g.10gb; keep busy ", ""},
		"provisional":                  {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", slice, "1g.10gb", provisional)}, "slice  1g.10gb provisional; slice  1g.10gb provisional", ""},
		"unchecked":                    {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", slice, "1g.10gb", unchecked)}, "slice  1g.10gb unchecked; slice  1g.10gb unchecked", ""},
		"another owner":                {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "busy", another)}, "slice  1g.10gb; keep busy ", ""},
		"another cluster":              {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", keep, "busy", elsewhere)}, "slice  1g.10gb; keep busy ", ""},
		"another model": {[]GPU{replica("n1", slice, "3g.40gb"), replica("n2", slice, "2g.20gb", a100)},
			"keep replicas-differ  replica; keep replicas-differ  replica", "no one profile"},
		"engines that a larger one may lack": {[]GPU{replica("n1", slice, "1g.10gb+me"), replica("n2", slice, "1g.20gb")},
			"keep replicas-differ  replica; keep replicas-differ  replica", "no one profile"},
		"an advisor's profile is not in the history": {[]GPU{replica("n1", slice, "1g.10gb"), replica("n2", slice, "", provisional)},
			"slice  1g.10gb provisional; slice   provisional", ""},
	} {
		alignReplicas(c.gpus)
		var got []string

		for i := range c.gpus {
			g := &c.gpus[i]

			text := fmt.Sprintf("%s %s %s", g.Action, g.Reason, g.Profile)
			for _, mark := range []struct {
				set  bool
				name string
			}{{g.ByReplica, "replica"}, {g.Provisional, "provisional"}, {g.NotChecked, "unchecked"}} {
				if mark.set {
					text += " " + mark.name
				}
			}

			if g.ByReplica && (g.Decided != nil || g.StretchP95 != nil || g.StartWith != nil ||
				strings.Contains(g.Explanation, "start it there")) {
				t.Errorf("%s: the figures are of another profile: %+v", about, g)
			}

			got = append(got, text)
		}

		cmptest.Equal(t, about, strings.Join(got, "; "), c.want)
		cmptest.HasTexts(t, c.gpus[0].Explanation, c.names)
	}
}

// TestLongNames: Kubernetes cuts an owner's name off where it makes a pod's from it.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("a", 70)

	for pod, want := range map[string]bool{
		"resnet-7d9-b": true, "resnet-0": true, "resnet": false, "resnet2-0": false,
	} {
		cmptest.Equal(t, pod, mayBeOf(pod, "vision/Deployment/resnet"), want)
	}

	cmptest.Equal(t, "cut off", mayBeOf(long[:58]+"x2b4z", "vision/Deployment/"+long), true)
}

// TestOwners: the owner is that of the pod that held the GPU last, also if it has left.
func TestOwners(t *testing.T) {
	o := weekly()
	all := heldByHolder{}
	d := narrow(o)
	h := d.history
	steps := len(h.held)
	hold := func(pod, workload string, from, to int) {
		for at := from; at < to; at++ {
			all.add(h, model.Metric{"namespace": "ml", "pod": model.LabelValue(pod), "workload": model.LabelValue(workload)})(at, 1)
		}
	}
	hold("a-0", "StatefulSet/a", 0, 100)
	all.findStarts()

	answer := judgeOne(analysisOf(o), d)
	cmptest.Equal(t, "owner of a pod that has left", answer.Owner, "ml/StatefulSet/a")
	cmptest.Equal(t, "it has left", answer.hasLeft, true)

	hold("b-0", "Deployment/b", 100, steps)
	all.findStarts()

	answer = judgeOne(analysisOf(o), d)
	cmptest.Equal(t, "owner", answer.Owner, "ml/Deployment/b")
	cmptest.Equal(t, "it is there", answer.hasLeft, false)
}

// TestOwnerBeforeANamelessStep: what has no name for a moment, or no reading of activity, still has an owner.
func TestOwnerBeforeANamelessStep(t *testing.T) {
	for about, change := range map[string]func(h *history, last int){
		"nameless at the end": func(h *history, last int) { h.nameless[last] = namelessUnknown },
		"never read":          func(h *history, _ int) { h.busy = unknownMeans(len(h.busy)) },
	} {
		d := narrow(weekly())
		all := heldByHolder{}
		last := len(d.history.held) - 1

		for at := range last {
			all.add(d.history, model.Metric{"namespace": "ml", "pod": "a-0", "workload": "StatefulSet/a"})(at, 1)
		}

		change(d.history, last)
		all.finish(map[string]*history{d.uuid: d.history})
		all.findStarts()
		answer := judgeOne(analysisOf(weekly()), d)
		cmptest.Equal(t, about, answer.Owner, "ml/StatefulSet/a")
		cmptest.Equal(t, about+": it has left", answer.hasLeft, false)
	}
}

// TestOwnerOfALostGPU: of a GPU that the history lost we know whose it was. The pods may run on.
func TestOwnerOfALostGPU(t *testing.T) {
	o := weekly()
	d := narrow(o)
	all := heldByHolder{}

	for at := range d.history.held {
		if at >= len(d.history.held)-2*stepsPerHour {
			d.history.busy[at] = float32(math.NaN())
			continue
		}

		all.add(d.history, model.Metric{"namespace": "ml", "pod": "a-0", "workload": "StatefulSet/a"})(at, 1)
	}

	all.finish(map[string]*history{d.uuid: d.history})
	all.findStarts()
	answer := judgeOne(analysisOf(o), d)
	cmptest.Equal(t, "answer", answer.Reason, ReasonGone)
	cmptest.Equal(t, "owner", answer.Owner, "ml/StatefulSet/a")
}

// TestGoneReplica: what a replica needed on a GPU that is gone by now counts for the others of its owner, since
// one template moves all, however long ago the GPU went. Of one that may run on, no more is known.
func TestGoneReplica(t *testing.T) {
	const a = "Deployment/a"

	for about, c := range map[string]struct {
		gib     float64
		until   int // when it left, in steps
		goneFor int // hours
		want    string
	}{
		"small, hours ago":    {6, weekOfSteps - 60, 5, provisional},
		"small, days ago":     {6, 5 * dayOfSteps, 48, finalSlice},
		"larger, days ago":    {30, 5 * dayOfSteps, 48, "slice  3g.40gb"},
		"whole, hours ago":    {55, weekOfSteps - 60, 5, "keep memory "},
		"whole, days ago":     {55, 5 * dayOfSteps, 48, "keep memory "},
		"drained long before": {55, 3 * dayOfSteps, 48, "keep memory "},
		"others were there":   {6, 5 * dayOfSteps, 48, finalSlice},
	} {
		o := weekly()
		stays := stayed(o, []stay{{"a-1", a, 6, weekOfSteps}}, nil)
		gone := stayed(o, []stay{{"a-2", a, 6, c.until}}, func(h *history) {
			for at := range h.memory {
				h.memory[at] = c.gib * (1 << 30)
			}
		})

		if about == "others were there" {
			gone = stayed(o, []stay{{"b-1", "Deployment/b", 6, 3 * dayOfSteps}, {"a-2", a, 3 * dayOfSteps, c.until}}, func(h *history) {
				h.multi = true
				h.memory[20] = 55 << 30
			})
		}

		lose(gone.history, 7*24-c.goneFor, 7*24)
		judgeTogether(analysisOf(o), stays, gone)

		gpus := []GPU{stays.answer, gone.answer}
		cmptest.Equal(t, about+": the other", gpus[1].Reason, ReasonGone)
		alignReplicas(gpus)

		got := fmt.Sprintf("%s %s %s", gpus[0].Action, gpus[0].Reason, gpus[0].Profile)
		if gpus[0].Provisional {
			got += " provisional"
		}

		cmptest.Equal(t, about+": "+gpus[0].Explanation, got, c.want)
	}
}

// TestJobsInHistories: labels and owners that show a job keep a GPU whole, unless the advisor of
// its node knows better.
func TestJobsInHistories(t *testing.T) {
	o := weekly()
	for about, c := range map[string]struct {
		labels model.Metric
		want   string
		names  string
	}{
		"a Deployment": {model.Metric{"workload": "Deployment/resnet"}, "slice  1g.10gb", ""},
		"a label": {model.Metric{"workload": "Job/train-0", "label_jobset_sigs_k8s_io_jobset_name": "train"}, "keep multi-gpu ",
			"label jobset.sigs.k8s.io/jobset-name=train"},
		"an index":                   {model.Metric{"label_batch_kubernetes_io_job_completion_index": "0"}, "keep multi-gpu ", "job-completion-index=0"},
		"an owner":                   {model.Metric{"workload": "PyTorchJob/bert"}, "keep multi-gpu ", "owner PyTorchJob/bert"},
		"a label that shows nothing": {model.Metric{"workload": "Job/train-0", "label_app": "train"}, "slice  1g.10gb", ""},
	} {
		d := narrow(o)
		all := heldByHolder{}

		labels := model.Metric{"namespace": "ml", "pod": "p"}
		for name, value := range c.labels {
			labels[name] = value
		}

		for at := range d.history.held {
			all.add(d.history, labels)(at, 1)
		}

		all.finish(map[string]*history{d.uuid: d.history})
		answer := judgeOne(analysisOf(o), d)
		cmptest.Equal(t, about, fmt.Sprintf("%s %s %s", answer.Action, answer.Reason, answer.Profile), c.want)
		cmptest.HasTexts(t, answer.Explanation, c.names)

		d.history.advice = advice{at: o.End, profile: "1g.10gb"}
		long := o
		long.Window = 2 * advisorWindow
		answer.followAdvice(d.history.advice, &long)
		cmptest.Equal(t, about+": with an advisor", answer.Action, advise.ActionSlice)
	}
}

// TestNotesOnOwnersAndJobs: what the history does not say of slices is counted.
func TestNotesOnOwnersAndJobs(t *testing.T) {
	s := analysisOf(weekly())

	s.client = &Client{}
	for about, c := range map[string]struct {
		gpu        GPU
		has, lacks string
	}{
		"owner unknown":     {GPU{Action: advise.ActionSlice}, "Of 1 of the slices the owners are not in the history", "another replica"},
		"owner known":       {GPU{Action: advise.ActionSlice, Owner: "ml/Deployment/a"}, "", "owners are not"},
		"may be of a job":   {GPU{Action: advise.ActionSlice, Owner: "ml/Job/a"}, "Of 1 of the slices it is unknown whether", ""},
		"advisor decided":   {GPU{Action: advise.ActionSlice, Owner: "ml/Job/a", Advised: true}, "", "it is unknown whether"},
		"stays":             {GPU{Action: advise.ActionKeep}, "", "owners are not"},
		"a replica decided": {GPU{Action: advise.ActionKeep, ByReplica: true}, "1 of the GPUs have the answer of another replica", ""},
	} {
		text := strings.Join(s.notes(&Report{GPUs: []GPU{c.gpu}}), "\n")
		if !strings.Contains(text, c.has) || c.lacks != "" && strings.Contains(text, c.lacks) {
			t.Errorf("%s: want %q and not %q in:\n%s", about, c.has, c.lacks, text)
		}
	}
}
