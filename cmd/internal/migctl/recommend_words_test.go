package migctl

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// bare returns GPUs that processes of no pod work on.
func bare(t *testing.T, loads ...load) []gpu.GPU {
	var gpus []gpu.GPU

	for i, l := range loads {
		g := wholeH100(t, i, l)
		g.Readings.Processes = gpu.Some([]gpu.Process{{PID: uint32(100 + i)}})
		gpus = append(gpus, g)
	}

	return gpus
}

// TestProcedureWithoutKubernetes: a node without a kubelet and pods gets no command of Kubernetes,
// and no word of its device plugin; what migctl does stays. In a container the exporter cannot see that
// there is no kubelet.
func TestProcedureWithoutKubernetes(t *testing.T) {
	idle := slice("1g.10gb", at(0, 1), asleep)
	idle.Processes = gpu.Some(1)
	unseen := gpu.SourceState{Name: gpu.SourceKubelet, Err: fmt.Errorf("%w: mount it", gpu.ErrNotConfigured)}
	moves := []string{
		"Let no new work start on this node until then.", "migctl apply -f mig-layouts.yaml", "CUDA_VISIBLE_DEVICES",
	}

	for about, c := range map[string]struct {
		gpus []gpu.GPU
		says []string
	}{
		"GPUs that must be emptied": {bare(t, tiny, small), moves},
		"a GPU that is ready":       {append(bare(t, tiny, small), slicedH100(t, 2)), moves},
		"an idle slice":             {[]gpu.GPU{slicedH100(t, 0, idle)}, []string{"The slice is free then: other work can have it"}},
	} {
		for _, sources := range [][]gpu.SourceState{nil, {unseen}} {
			report, s := established(observedFrom(advise.DefaultOptions(), 25*time.Hour, sources, func(int) {}, c.gpus...))
			_, address := serve(t, recommended(report, s))
			out := runner{}.run(t, address, "recommend").out
			cmptest.HasTexts(t, flat(out), c.says...)

			for _, word := range []string{"kubectl", "gpu-operator", "device plugin", "pod", "kubelet", "GKE", "replica"} {
				if strings.Contains(out, word) {
					t.Errorf("%s, sources %v: %q is in:\n%s", about, sources, word, out)
				}
			}

			fits(t, withoutCommands(out))
		}
	}
}

// TestPluginIsNamedByNoNamespace: the device plugin is restarted wherever it runs, and not at all
// where pods have their devices by claims.
func TestPluginIsNamedByNoNamespace(t *testing.T) {
	for resource, restarted := range map[string]bool{wholeResource: true, "claim/ml/gpu": false} {
		holder := podOf("ml", "a-0", "Deployment/a")
		holder.Resource = resource
		report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, wholeH100(t, 0, tiny, holder)))
		_, address := serve(t, recommended(report, s))
		out := runner{}.run(t, address, "recommend").out
		cmptest.LacksTexts(t, out, "gpu-operator")
		cmptest.Equal(t, resource, strings.Contains(out, "delete pod --all-namespaces"), restarted)
		cmptest.Equal(t, resource+": strategy", strings.Contains(flat(out), "The device plugin must run"), restarted)
	}
}

// TestReachOfAPatch: before a patch stands what it moves on other nodes, which were not asked, once
// for each owner, and where their answers are. What is changed one by one moves nothing there.
func TestReachOfAPatch(t *testing.T) {
	for owner, moves := range map[string]bool{
		"Deployment/a": true, "StatefulSet/a": true, "DaemonSet/a": true, "CronJob/a": true, "Job/a": false, "": false,
	} {
		var gpus []gpu.GPU
		for i, name := range []string{"a-0", "a-1", "a-2"} {
			gpus = append(gpus, wholeH100(t, i, tiny, podOf("ml", name, owner)))
		}

		report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, gpus...))
		_, address := serve(t, recommended(report, s))
		out := flat(runner{}.run(t, address, "recommend").out)
		reach := "This moves all replicas of " + owner + " in ml, on every node. The other nodes were not asked. " +
			"migctl fleet reads the answers of all nodes, of which the weakest decides."

		if !moves {
			cmptest.LacksTexts(t, out, "on every node", "migctl fleet reads")
			cmptest.HasTexts(t, out, "Procedure.")
			continue
		}

		before, after, ok := strings.Cut(out, reach)
		if !ok || strings.Contains(before, " patch ") || !strings.Contains(after, " patch ") || strings.Contains(after, "on every node") {
			t.Errorf("%s: want %q once, before the patch, in:\n%s", owner, reach, out)
		}
	}
}

// TestPricesOfANode: what becomes free on balance costs its price; a model without one is counted
// apart.
func TestPricesOfANode(t *testing.T) {
	var gpus []gpu.GPU
	for i, owner := range []string{"a", "b", "c"} {
		gpus = append(gpus, wholeH100(t, i, small, podOf("ml", owner+"-0", "Deployment/"+owner)))
	}

	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, append(gpus, wholeH100(t, 3, load{}))...))

	_, address := serve(t, recommended(report, s))
	for _, c := range []struct {
		prices []string
		says   string
	}{
		{[]string{"--price=H100=2.50"}, "On balance 2 GPUs become free: 5.00 an hour, 840.00 a week."},
		{[]string{"--price=H100=2.50", "--price=H100-80GB=3"}, "2 GPUs become free: 6.00 an hour, 1008.00 a week."},
		{[]string{"--price=A100=1"}, "2 GPUs become free without a --price."},
	} {
		out := runner{}.run(t, address, append([]string{"recommend"}, c.prices...)...).out
		cmptest.HasTexts(t, flat(out), c.says, "FREED: whole GPUs that the move sets free")
		fits(t, withoutCommands(out))
	}

	for _, args := range [][]string{
		{"--price=H100"}, {"--price=H100=1", "--price=h100=2"}, {"--price=H100=1", "-o", "json"}, {"--price=H100=1", "0"},
		{"--price=H100=1", "-o", "spec"}, {"--price=H100=1", "--explain=0"},
	} {
		got := runner{}.run(t, address, append([]string{"recommend"}, args...)...)
		cmptest.Equal(t, strings.Join(args, " "), got.code, exitUsage)
		cmptest.HasTexts(t, got.err, "--price")
	}
}

// TestUnmeasuredInWords: what is unknown has no figure, in the table, in the explanation and in its
// profiles.
func TestUnmeasuredInWords(t *testing.T) {
	blind := wholeH100(t, 0, tiny, podOf("ml", "a-0", "Deployment/a"))
	blind.Activity = gpu.Activity{GraphicsEngine: gpu.Some(0.3)}
	idle := wholeH100(t, 1, load{gib: 1}, podOf("ml", "b-0", "Deployment/b"))
	report, s := established(observed(advise.DefaultOptions(), 8*24*time.Hour, blind, idle))
	_, address := serve(t, recommended(report, s))

	out := runner{}.run(t, address, "recommend").out
	cmptest.HasTexts(t, flat(out), "0 ml/a unknown 0% no-activity", "1 ml/b 1g.10gb none unknown 0% memory 15%",
		"The move from GPU 1 frees no whole GPU, room for 4g.40gb.", "nothing rarer than 8 days is known", "--window=30d")
	fits(t, withoutCommands(out))

	explained := runner{}.run(t, address, "recommend", "--explain=0").out
	cmptest.HasTexts(t, flat(explained), "unknown (no-activity)", "An hour of busy time", "was not measured",
		"1g.10gb - - - unknown: SM activity was not measured")
	cmptest.LacksTexts(t, explained, "EXPECTED IN", "SMs IN USE")
	explained = runner{}.run(t, address, "recommend", "--explain=1").out
	cmptest.HasTexts(t, flat(explained), "kernels none ran", "kernels unknown: nothing ran", "decided by memory 15%",
		"nothing rarer than 8 days is known")
	cmptest.LacksTexts(t, explained, "throughput", "1.00 to")
}

// TestLegendHasEveryFigure: the table names the figure that decided, and the legend explains it.
func TestLegendHasEveryFigure(t *testing.T) {
	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour, wholeH100(t, 0, tiny, podOf("ml", "a-0", "Deployment/a"))))

	for _, figure := range []string{advise.FigureLatency, advise.FigureThroughput, advise.FigureStretch, advise.FigureBusy,
		advise.FigureMemory, advise.FigureMedia} {
		report.Devices[0].Predicted.Decided = advise.Decided{Figure: figure, Ratio: 0.71, Limit: 0.8}
		_, address := serve(t, recommended(report, s))

		table, legend, ok := strings.Cut(flat(runner{}.run(t, address, "recommend").out), "DECIDED BY: ")
		cmptest.HasTexts(t, table, figure+" ")

		legend, _, _ = strings.Cut(legend, "Procedure.")
		if !ok || !strings.Contains(legend, figure) {
			t.Errorf("the legend lacks %s: %s", figure, legend)
		}
	}
}

// TestIncompleteEvidenceInWords: a provisional answer says what its evidence lacks, as far as the
// report shows it.
func TestIncompleteEvidenceInWords(t *testing.T) {
	for about, c := range map[string]struct {
		known time.Duration
		hours float64        // of a sample of activity
		waits advise.Latency // of requests
		says  string
	}{
		"new":  {25 * time.Hour, 12, advise.Latency{}, "less than seven days"},
		"gaps": {8 * 24 * time.Hour, 0, advise.Latency{Low: 1}, "fewer than five of the last eight days were observed"},
		"a sample": {8 * 24 * time.Hour, 12, advise.Latency{Low: 1}, "fewer than five of the last eight days were observed, " +
			"or SM activity was read in 12.0 hours of busy time alone"},
		"else": {8 * 24 * time.Hour, 0, advise.Latency{}, "fewer than five of the last eight days were observed, or no hour " +
			"has shown how long requests wait"},
	} {
		report, s := observed(advise.DefaultOptions(), 25*time.Hour, wholeH100(t, 0, tiny, podOf("ml", "a-0", "Deployment/a")))
		r := &report.Devices[0]
		r.Provisional = true
		r.Evidence.Since = report.Time.Add(-c.known)
		r.Evidence.ActivityHours = c.hours
		r.Predicted.Latency = c.waits
		report.Packing = nil
		_, address := serve(t, recommended(report, s))

		summary := flat(runner{}.run(t, address, "recommend").out)
		cmptest.HasTexts(t, summary, "No workload is to move yet: 1 slice is recommended provisionally, by evidence that is not "+
			"complete yet ("+c.says+"), for GPU 0.")

		explained := flat(runner{}.run(t, address, "recommend", "--explain=0").out)
		cmptest.HasTexts(t, explained, "provisional: by evidence that is not complete yet ("+c.says+")")

		for _, out := range []string{summary, explained} {
			if about != "new" {
				cmptest.LacksTexts(t, out, "less than seven days")
			}
		}
	}

	report, s := observed(advise.DefaultOptions(), 8*24*time.Hour, wholeH100(t, 0, tiny, podOf("ml", "a-0", "Deployment/a")))
	report.Devices[0].Provisional = true
	report.SingleStrategy = true
	_, address := serve(t, recommended(report, s))
	cmptest.HasTexts(t, flat(runner{}.run(t, address, "recommend", "--explain=0").out),
		"or another GPU of the node lacks evidence, and all get slices at once")
}

// TestFleetTitles: numbers of one, of none, and windows of one.
func TestFleetTitles(t *testing.T) {
	cost := 0.

	for _, c := range []struct {
		hours float64
		group fleet.Group
		want  string
	}{
		{1, fleet.Group{GPUs: 1, CostPerWeek: &cost}, "1 GPU on 1 node, by the history of u in the hour before " +
			"2026-03-04 12:00 UTC: none could be a MIG slice."},
		{24, fleet.Group{GPUs: 2, Slices: 1, Final: 1, CostPerWeek: &cost}, "2 GPUs on 1 node, by the history of u in the day before " +
			"2026-03-04 12:00 UTC: 1 could be a MIG slice, which would free no whole GPU."},
		{168, fleet.Group{GPUs: 3, Slices: 2, Final: 2, FreedGPUs: 1, GPUHoursPerWeek: 168}, "3 GPUs on 1 node, by the history of u " +
			"in the 7 days before 2026-03-04 12:00 UTC: 2 could be MIG slices, which would free 1 GPU, held for 168 hours a week."},
		{168, fleet.Group{GPUs: 8, Slices: 4, Provisional: 4, CostPerWeek: &cost}, "8 GPUs on 1 node, by the history of u in the " +
			"7 days before 2026-03-04 12:00 UTC: 4 could be MIG slices, of them 4 provisional; none is final, so that no GPU " +
			"counts as freed yet."},
		{168, fleet.Group{GPUs: 8, Slices: 7, Provisional: 1, NotChecked: 2, Idle: 1, Final: 4, FreedGPUs: 3, GPUHoursPerWeek: 504},
			"8 GPUs on 1 node, by the history of u in the 7 days before 2026-03-04 12:00 UTC: 7 could be MIG slices, of them 1 " +
				"provisional, 2 with unknown use of media engines, 1 idle; 4 final ones would free 3 GPUs, held for 504 hours a week."},
		{168, fleet.Group{GPUs: 8, Slices: 4, NotChecked: 4, FreedByAll: 3}, "8 GPUs on 1 node, by the history of u in the 7 days " +
			"before 2026-03-04 12:00 UTC: 4 could be MIG slices, of them 4 with unknown use of media engines; none is final, " +
			"so that no GPU counts as freed yet; all 4 would free 3 GPUs if they become final."},
		{24, fleet.Group{GPUs: 3, Reasons: map[advise.Reason]int{advise.ReasonLittleEvidence: 1, advise.ReasonMemoryUnread: 1, "free": 1}},
			"3 GPUs on 1 node, by the history of u in the day before 2026-03-04 12:00 UTC: no GPU was found that could be a " +
				"MIG slice; whether 2 could is not known."},
		{24, fleet.Group{GPUs: 3, Slices: 1, Final: 1, Reasons: map[advise.Reason]int{advise.ReasonNoActivity: 1, "busy": 1}},
			"3 GPUs on 1 node, by the history of u in the day before 2026-03-04 12:00 UTC: 1 could be a MIG slice, which would " +
				"free no whole GPU; whether 1 more could is not known."},
		{24, fleet.Group{GPUs: 4, Reasons: map[advise.Reason]int{fleet.ReasonNoHistory: 1, fleet.ReasonModelUnknown: 1,
			fleet.ReasonGone: 1, fleet.ReasonMIGMode: 1}},
			"4 GPUs on 1 node, by the history of u in the day before 2026-03-04 12:00 UTC: no GPU was found that could be a " +
				"MIG slice; whether 3 could is not known; 1 was in MIG mode, and is not judged."},
	} {
		r := fleet.Report{Prometheus: "u", Time: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC), WindowHours: c.hours, Nodes: 1,
			Fleet: c.group}

		cmptest.Equal(t, "title", fleetTitle(&r), c.want)
	}
}

// TestBoundOfBusyTime: where all we know of the minutes is that hardly any passes the target, the
// table and the explanation say so.
func TestBoundOfBusyTime(t *testing.T) {
	report, s := established(observed(advise.DefaultOptions(), 8*24*time.Hour, wholeH100(t, 0, tiny, podOf("ml", "a-0", "Deployment/a"))))
	const says = "busy at most 80% of 80%"
	const legend = "busy at most, at least: of the minutes it is only known that hardly any is busier than the limit"

	for ratio, isBound := range map[float64]bool{0.8: true, 0.799: false} {
		report.Devices[0].Predicted.BusyP99 = ratio
		report.Devices[0].Predicted.Decided = advise.Decided{Figure: advise.FigureBusy, Ratio: ratio, Limit: 0.8}
		_, address := serve(t, recommended(report, s))

		table := flat(runner{}.run(t, address, "recommend").out)
		explained := flat(runner{}.run(t, address, "recommend", "--explain=0").out)

		for _, out := range []string{table, explained} {
			cmptest.Equal(t, out, strings.Contains(out, says), isBound)
		}

		cmptest.Equal(t, table, strings.Contains(table, legend), isBound)
		cmptest.Equal(t, explained, strings.Contains(explained, "busy at most 80% at p99"), isBound)
	}

	cmptest.Equal(t, "of more than the target", busyText(0.801), "at least 80%")
}

// whyLost is why a report has no answer for a GPU.
const whyLost = "it could not be read: GPU is lost"

// TestLostGPUIsExplained: a GPU that can't be read is named, with the reason, wherever you ask for it.
func TestLostGPUIsExplained(t *testing.T) {
	report, s := observed(advise.DefaultOptions(), time.Hour, wholeH100(t, 0, tiny, podOf("ml", "x-0", "Deployment/x")))
	report.NotJudged = []advise.NotJudged{{GPU: "GPU-1c", Index: 2, Model: "NVIDIA H100 80GB HBM3", Why: whyLost}}
	report.Notes = []string{report.NotJudged[0].String()}
	_, address := serve(t, recommended(report, s))

	for _, args := range [][]string{{"recommend", "--explain=2"}, {"recommend", "--explain=GPU-1c"}} {
		got := runner{}.run(t, address, args...)
		cmptest.Equal(t, "exit status", got.code, 0)
		cmptest.HasTexts(t, got.out, "GPU 2  H100 80GB HBM3  GPU-1c\n  not judged: it could not be read: GPU is lost\n")
		cmptest.LacksTexts(t, got.out, "GPU 0")
	}

	for _, args := range [][]string{{"recommend"}, {"recommend", "2"}, {"recommend", "-o", "json", "2"}} {
		got := runner{}.run(t, address, args...)
		cmptest.Equal(t, "exit status", got.code, 0)
		cmptest.HasTexts(t, flat(got.out), "GPU 2 is not judged: it could not be read: GPU is lost")
	}

	got := runner{}.run(t, address, "recommend", "--explain=3")
	cmptest.Equal(t, "exit status", got.code, 2)
}

// TestLatencyInWords: a queue that grows without bound is no figure, and without Kubernetes there is no
// annotation to set.
func TestLatencyInWords(t *testing.T) {
	unbounded := advise.Latency{Low: 1, Expected: 1.2, High: 1000}

	for want, got := range map[string]string{
		"1.00 times or more as long at p95 of the busiest hour, waiting included (expected 1.20)": describeLatency(
			unbounded, true),
		"1.00 times or more as long at p95 of the busiest hour, waiting included (expected 1.20); a figure " +
			"needs their service time, see mig-exporter.io/service-time": describeLatency(unbounded, false),
		"1.00 to 4.00 times as long at p95 of the busiest hour, waiting included (expected 1.20)": describeLatency(
			advise.Latency{Low: 1, Expected: 1.2, High: 4}, true),
	} {
		cmptest.Equal(t, "words", got, want)
	}

	report, s := observed(advise.DefaultOptions(), 25*time.Hour, bare(t, tiny)...)
	_, address := serve(t, recommended(report, s))
	explained := flat(runner{}.run(t, address, "recommend", "--explain=0").out)
	cmptest.HasTexts(t, explained, "requests")
	cmptest.LacksTexts(t, explained, "mig-exporter.io/")
}

// TestFlatMemoryDoesNotGrow: a trend that rounds to nothing is none.
func TestFlatMemoryDoesNotGrow(t *testing.T) {
	for bytes, shown := range map[float64]bool{1 << 20: false, 1 << 27: true} {
		report, s := observed(advise.DefaultOptions(), 25*time.Hour, wholeH100(t, 0, tiny, podOf("ml", "x-0", "Deployment/x")))
		report.Devices[0].Evidence.MemoryTrend = bytes
		_, address := serve(t, recommended(report, s))
		explained := runner{}.run(t, address, "recommend", "--explain=0").out
		cmptest.Equal(t, "growing", strings.Contains(explained, "growing by"), shown)
	}
}

// TestMemoryThatWasNotRead: the largest use that was seen is no bound if some was not read.
func TestMemoryThatWasNotRead(t *testing.T) {
	for want, e := range map[string]advise.Evidence{
		"at most 3.00 GiB":                           {MemoryBytes: 3 << 30},
		"3.00 GiB or more: not read all of the time": {MemoryBytes: 3 << 30, MemoryUnread: true},
		"unknown: not read":                          {MemoryUnread: true},
	} {
		cmptest.Equal(t, "memory", usedMemoryText(&advise.Recommendation{Evidence: &e}), want)
	}
}

// TestSpecOfAGPUThatIsLeft: the slice for the workload of a GPU can be on another one, whose spec has it.
func TestSpecOfAGPUThatIsLeft(t *testing.T) {
	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour,
		wholeH100(t, 0, tiny, podOf("ml", "a-0", "Deployment/a")),
		wholeH100(t, 1, tiny, podOf("ml", "b-0", "Deployment/b")),
		wholeH100(t, 2, load{})))
	cmptest.Equal(t, "target", report.Packing.TargetOf(0), 2)

	_, address := serve(t, recommended(report, s))
	got := runner{}.run(t, address, "recommend", "-o", "spec", "0")
	cmptest.Equal(t, "exit code", got.code, exitFailed)
	cmptest.HasTexts(t, flat(got.err), "created on other GPUs, that of GPU 0 on GPU 2: see migctl recommend -o spec 2")
}

// TestUnreadGPUIsUnknown: of a GPU that could not be read it is not known whether a slice would do.
func TestUnreadGPUIsUnknown(t *testing.T) {
	report, s := observed(advise.DefaultOptions(), time.Hour, wholeH100(t, 0, load{}))
	_, address := serve(t, recommended(report, s))
	cmptest.HasTexts(t, flat(runner{}.run(t, address, "recommend").out), "No workload is to move from a whole GPU to a slice.")

	report.NotJudged = []advise.NotJudged{{GPU: "GPU-1c", Index: 3, Model: "NVIDIA H100 80GB HBM3", Why: "GPU is lost"}}
	_, address = serve(t, recommended(report, s))
	got := flat(runner{}.run(t, address, "recommend").out)
	cmptest.HasTexts(t, got, "No workload is to move yet.", "It is not known whether a slice would do for the work of GPU 3.")
	cmptest.LacksTexts(t, got, "No workload is to move from")
}

// TestUnreadGPUIsNamedOnce: the reason stands in one place, and no line says that there is no such device.
func TestUnreadGPUIsNamedOnce(t *testing.T) {
	report, s := observed(advise.DefaultOptions(), time.Hour, wholeH100(t, 0, load{}))
	report.NotJudged = []advise.NotJudged{{GPU: "GPU-1c", Index: 3, Model: "NVIDIA H100 80GB HBM3", Why: whyLost}}
	report.Notes = append([]string{report.NotJudged[0].String()}, report.Notes...)
	_, address := serve(t, recommended(report, s))

	for _, command := range []string{"recommend 3", "recommend --explain 3", "recommend --explain all", "recommend 0 3"} {
		got := runner{}.run(t, address, strings.Fields(command)...)
		cmptest.Equal(t, command+": exit code", got.code, exitOK)
		cmptest.Equal(t, command+": how often the reason is given", strings.Count(flat(got.out), "GPU is lost"), 1)
		cmptest.LacksTexts(t, got.out, "No devices.")
	}
}
