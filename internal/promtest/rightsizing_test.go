package promtest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// advisedGPU is a whole GPU and what the advisor says of it.
type advisedGPU struct {
	holder      string // a pod, or "job N"; empty: it is free
	profile     string // of a candidate
	reason      string // of one that is kept
	reclaimable float64
	low, high   float64
	latency     [2]float64 // at least, at most; zero: unknown
	figure      string     // the one that decided; empty: an older exporter, that has none
	deciding    float64
	freed       float64
	confidence  float64
}

// isKept reports whether no slice would do: the evidence on one that would may not be complete.
func (g advisedGPU) isKept() bool { return g.reason != "" && g.reason != "provisional" }

// advisedGPUs are by index. The last one has too little evidence.
func advisedGPUs() []advisedGPU {
	return []advisedGPU{
		{holder: "ml/small", profile: "1g.10gb", reclaimable: 0.875, low: 1, high: 1.25, confidence: 1,
			latency: [2]float64{1, 4.5}, figure: "latency", deciding: 1.2839, freed: 0.75},
		{holder: "ml/middle", profile: "3g.40gb", reclaimable: 0.5, low: 1.5, high: 1.75, confidence: 0.75,
			figure: "memory", deciding: 0.5},
		{holder: "job 4711", profile: "1g.10gb", reclaimable: 0.875, low: 1, high: 1, confidence: 0.5},
		{holder: "chat/wide", reason: "stretch", confidence: 1},
		{holder: "chat/links", reason: "nvlink", confidence: 0.5},
		{holder: "chat/wider", reason: "stretch", confidence: 0.25},
		{holder: "ml/young", reason: "provisional", confidence: 0.375},
		{holder: "ml/new", confidence: 0.125},
	}
}

// advisedSlice is a slice of GPU 8, and what the advisor says of it.
type advisedSlice struct{ pod, profile, action, recommended string }

func advisedSlices() []advisedSlice {
	return []advisedSlice{
		{"full", "1g.10gb", "grow", "2g.20gb"}, {"idle", "1g.10gb", "idle", ""}, {"wasteful", "3g.40gb", "shrink", "1g.10gb"},
		{"stuck", "1g.10gb", "grow", ""}, {"right", "1g.10gb", "", ""},
	}
}

// adviceText is what a node serves whose exporter has been watching for a week, or was started just
// now.
type adviceText struct {
	strings.Builder
	isNew bool
}

func (a *adviceText) say(family, labels string, value float64) {
	fmt.Fprintf(a, "%s{%s} %v\n", family, labels, value)
}

func serveAdvice(isNew bool) string {
	a := &adviceText{isNew: isNew}
	a.say("mig_exporter_build_info", `version="1"`, 1)

	for i, g := range advisedGPUs() {
		a.serveGPU(fmt.Sprintf(`gpu="%d",uuid="GPU-advised-%d"`, i, i), float64(i+1)/16, g)
	}

	const labels = `gpu="8",uuid="GPU-advised-8"`
	a.say("nvidia_gpu_up", labels, 1)
	a.say("nvidia_gpu_mig_enabled", labels, 1)

	for i, s := range advisedSlices() {
		a.serveSlice(fmt.Sprintf(`%s,gpu_instance="%d",mig_profile=%q`, labels, i, s.profile), fmt.Sprintf("%d:1", i), s)
	}

	return a.String()
}

// advisedPod returns the labels of a pod; none for a job, so that the scrape adds those of the
// exporter.
func advisedPod(holder string) string {
	namespace, pod, ok := strings.Cut(holder, "/")
	if !ok {
		return ""
	}

	return fmt.Sprintf(`,namespace=%q,pod=%q,container="main"`, namespace, pod)
}

func (a *adviceText) serveGPU(on string, used float64, g advisedGPU) {
	a.say("nvidia_gpu_up", on, 1)
	a.say("nvidia_gpu_mig_enabled", on, 0)
	a.say("nvidia_gpu_allocated", on, 1)

	for _, family := range []string{"graphics_engine_activity_ratio", "sm_activity_ratio", "dram_activity_ratio"} {
		a.say("nvidia_gpu_"+family, on, used)
	}

	a.say("nvidia_gpu_memory_used_bytes", on, used*64)
	a.say("nvidia_gpu_memory_total_bytes", on, 64)

	if pod := advisedPod(g.holder); pod != "" {
		a.say("nvidia_gpu_pod_info", on+pod+`,sharing="exclusive",confirmed="true"`, 1)
	} else {
		a.say("nvidia_gpu_hpc_job_info", on+fmt.Sprintf(`,hpc_job=%q`, strings.TrimPrefix(g.holder, "job ")), 1)
	}

	if a.isNew {
		a.say("nvidia_gpu_rightsizing_confidence_ratio", on, 0)

		if g.profile != "" || g.reason == "provisional" {
			a.say("nvidia_gpu_rightsizing_rejected", on+`,reason="no-activity"`, 1) // it reads none
		}

		return
	}

	a.say("nvidia_gpu_rightsizing_confidence_ratio", on, g.confidence)

	if g.reason != "" {
		a.say("nvidia_gpu_rightsizing_rejected", on+fmt.Sprintf(`,reason=%q`, g.reason), 1)
	}

	if g.profile != "" {
		a.say("nvidia_gpu_rightsizing_candidate", on+advisedPod(g.holder)+fmt.Sprintf(`,recommended_profile=%q`, g.profile),
			1)
		a.say("nvidia_gpu_rightsizing_reclaimable_ratio", on, g.reclaimable)
		a.say("nvidia_gpu_rightsizing_stretch_ratio", on+`,bound="low"`, g.low)
		a.say("nvidia_gpu_rightsizing_stretch_ratio", on+`,bound="high"`, g.high)
		a.say("nvidia_gpu_rightsizing_freed_gpus", on, g.freed)

		if g.latency[1] > 0 {
			a.say("nvidia_gpu_rightsizing_latency_ratio", on+`,bound="low"`, g.latency[0])
			a.say("nvidia_gpu_rightsizing_latency_ratio", on+`,bound="high"`, g.latency[1])
		}

		if g.figure != "" {
			a.say("nvidia_gpu_rightsizing_deciding_ratio", on+fmt.Sprintf(`,figure=%q`, g.figure), g.deciding)
		}
	}
}

func (a *adviceText) serveSlice(on, placement string, s advisedSlice) {
	pod := advisedPod("ml/" + s.pod)
	a.say("nvidia_mig_gpu_instance_info", on+fmt.Sprintf(`,placement=%q`, placement), 1)
	a.say("nvidia_mig_gpu_instance_up", on, 1)
	a.say("nvidia_mig_gpu_instance_allocated", on, 1)
	a.say("nvidia_mig_compute_instance_info", on+`,compute_instance="0"`, 1)
	a.say("nvidia_mig_gpu_instance_pod_info", on+pod+`,sharing="exclusive",confirmed="true"`, 1)

	if a.isNew && s.action == "idle" {
		s.action = "shrink"
		s.recommended = "1g.5gb" // its hour has not passed
	}

	if s.action != "" {
		a.say("nvidia_mig_gpu_instance_rightsizing_candidate",
			on+pod+fmt.Sprintf(`,action=%q,recommended_profile=%q`, s.action, s.recommended), 1)
	}
}

// advised adds a node whose exporter has an advisor. In the end another exporter takes its place,
// without its evidence.
func (f *fleet) advised(t *testing.T) {
	t.Helper()

	node := fleetNode{name: "advised"}
	for since := scrapeInterval; since <= fleetRuns; since += scrapeInterval {
		f.addScrapeOf(t, node.target("old"), scraped().Add(since), Text, []byte(serveAdvice(false)))

		if since > fleetRuns-overlap/2 {
			f.addScrapeOf(t, node.target("new"), scraped().Add(since), Text, []byte(serveAdvice(true)))
		}
	}
}

// rightsizing compares panels with what the advised node serves, while two exporters of it are
// scraped.
func (f *fleet) rightsizing(t *testing.T, boards map[string]grafanaDashboard) {
	v := fleetView("advised")

	sum := map[string]float64{}
	for _, g := range advisedGPUs() {
		sum["judged"]++
		if g.profile != "" {
			sum["candidates"]++
			sum["freed"] += g.reclaimable
			sum["low"] += g.low
			sum["high"] += g.high
			sum["confidence"] += g.confidence
		}

		if g.isKept() {
			sum["kept"]++
			sum["confidence of kept"] += g.confidence
		}
	}

	const candidates, kept, changes = "Whole GPUs that should be slices", "GPUs that stay whole", "Slices that should change"
	for _, c := range []struct {
		title, ref string
		want       float64
	}{
		{"Whole GPUs that are held", "A", sum["judged"]},
		{"GPUs to be gained", "A", sum["freed"]},
		{"SMs to be gained", "A", sum["freed"] / sum["judged"]},
		{"Slices to change", "A", 4}, {changes, "Action", 1 + 2 + 3 + 1},
		{candidates, "Gain", sum["freed"]}, {candidates, "Low", sum["low"]}, {candidates, "High", sum["high"]},
		{candidates, "LatencyLow", 1}, {candidates, "LatencyHigh", 4.5}, {candidates, "Freed", 0.75},
		{candidates, "Confidence", sum["confidence"]},
		{kept, "Confidence", sum["confidence of kept"]},
		{"Why GPUs stay whole", "A", sum["kept"]},
		{"GPUs for which a slice would do", "A", sum["candidates"]},
		{"SMs to be gained, in GPUs", "A", sum["freed"]},
		{"Busy time", "A", 36. / 16}, {"SM activity", "A", 36. / 16}, {"Memory bandwidth", "A", 36. / 16},
		{"Memory used", "A", 36. / 16},
	} {
		got := f.query(t, boards["mig-rightsizing"].panel(t, c.title), c.ref, v).total()
		if math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s, %s: got %v, want %v", c.title, c.ref, got, c.want)
		}
	}

	f.adviceInWords(t, boards, v)
	// The alert is about the GPUs of the table.
	fires := map[string]bool{}
	for _, gpu := range f.alerts(t, "GpuRightsizingCandidate", 0, v, "gpu") {
		fires[gpu] = true
	}

	if got := slices.Sorted(maps.Keys(fires)); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("the alert is about GPUs %q", got)
	}
}

// adviceInWords compares what has labels.
func (f *fleet) adviceInWords(t *testing.T, boards map[string]grafanaDashboard, v view) {
	t.Helper()
	board := boards["mig-rightsizing"]
	said := func(d grafanaDashboard, title, ref string, labels ...string) []string {
		var list []string

		for _, s := range f.query(t, d.panel(t, title), ref, v).series {
			text := joined(s.Metric, labels...)
			if d.panel(t, title).Type != "table" {
				text += fmt.Sprintf(" %v", s.Floats[0].F)
			}

			list = append(list, text)
		}

		slices.Sort(list)

		return list
	}
	var profiles, holders, reasons, keepers, changes []string

	for i, g := range advisedGPUs() {
		if g.profile != "" {
			profiles, holders = append(profiles, fmt.Sprint(i, " ", g.profile)), append(holders,
				fmt.Sprint(i, " ", strings.Replace(g.holder, "job 4711", "n/a", 1)))
		}

		if g.isKept() {
			reasons, keepers = append(reasons, fmt.Sprint(i, " ", g.reason)), append(keepers, fmt.Sprint(i, " ", g.holder))
		}
	}

	for i, s := range advisedSlices() {
		if s.action == "" {
			continue
		}

		slice := fmt.Sprintf("%s@%d:1", s.profile, i)
		if s.recommended == "" {
			s.recommended = "n/a"
		}

		changes = append(changes, slice+" "+s.recommended+" ml/"+s.pod)
	}

	slices.Sort(changes)

	for _, c := range []struct{ got, want []string }{
		{said(board, "Whole GPUs that should be slices", "Profile", "gpu", "recommended_profile"), profiles},
		{said(board, "Whole GPUs that should be slices", "Holder", "gpu", "holder"), holders},
		{said(board, "Whole GPUs that should be slices", "Decided", "gpu", "decided"), []string{
			"0 latency 1.28", "1 memory 0.5", "2 n/a"}},
		{said(board, "GPUs that stay whole", "Reason", "gpu", "reason"), reasons},
		{said(board, "GPUs that stay whole", "Holder", "gpu", "holder"), keepers},
		{said(board, "Why GPUs stay whole", "A", "reason"), []string{"nvlink 1", "stretch 2"}},
		{said(board, "Slices that should change", "Action", "slice", "recommended_profile", "holder"), changes},
		{said(board, "Slices by what they should do", "A", "action"), []string{"grow 2", "idle 1", "shrink 1"}},
		{said(boards["mig-fleet"], "Slices by what they should do", "A", "action"), []string{"grow 2", "idle 1", "shrink 1"}},
		{said(boards["mig-fleet"], "Why GPUs stay whole", "A", "reason"), []string{"nvlink 1", "stretch 2"}},
		{said(board, "Larger than their work needs", "A", "evidence"), []string{"provisional 1", "week 3"}},
		{said(boards["mig-fleet"], "Larger than their work needs", "A", "evidence"), []string{"provisional 1", "week 3"}},
		{said(boards["mig-fleet"], underusedPanel, "Profile", "gpu", "recommended_profile"), append(profiles, "6 n/a")},
		{said(boards["mig-fleet"], underusedPanel, "Known", "gpu", "known"), []string{
			"0 advisor, a week", "1 advisor, a week", "2 advisor, a week", "6 advisor, not complete"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}
