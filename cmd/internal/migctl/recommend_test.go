package migctl

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// load is what a device shows: shares of it, and memory in GiB.
type load struct{ busy, sm, dram, gib float64 }

// Loads of an H100-80GB. The first three do with 1g.10gb, 1g.20gb and 3g.40gb.
var (
	tiny   = load{busy: 0.5, sm: 0.03, dram: 0.02, gib: 4}
	small  = load{busy: 0.5, sm: 0.03, gib: 15}
	middle = load{busy: 0.3, sm: 0.15, gib: 4}
	rare   = load{busy: 0.05, sm: 0.05, dram: 0.01, gib: 4}
	greedy = load{busy: 0.2, sm: 0.01, gib: 72}
)

// podOf returns the holder of a device: the pod of an owner with the container main.
func podOf(namespace, pod, owner string) gpu.Holder {
	return gpu.Holder{
		Container: gpu.Container{Namespace: namespace, Pod: pod, Name: "main"}, PodUID: "uid-" + pod, Workload: owner,
		Resource: wholeResource, Sharing: gpu.SharingExclusive,
	}
}

// wholeH100 returns an H100-80GB without MIG mode.
func wholeH100(t *testing.T, index int, l load, holders ...gpu.Holder) gpu.GPU {
	t.Helper()

	m, ok := mig.FindModel("H100-80GB")
	if !ok {
		t.Fatal("no model H100-80GB")
	}

	return gpu.GPU{
		Facts: gpu.Facts{
			UUID: gpu.UUID(fmt.Sprintf("GPU-5d8a0000-7d1c-5e0e-9f5a-%012d", index)), Index: index, Name: "NVIDIA H100 80GB HBM3",
			SMs: gpu.Some(m.SMs), Profiles: m.Profiles,
		},
		Device: gpu.Device{
			Up:        true,
			Holders:   holders,
			Allocated: gpu.Some(len(holders) > 0),
			Activity:  gpu.Activity{GraphicsEngine: gpu.Some(l.busy), SM: gpu.Some(l.sm), DRAM: gpu.Some(l.dram)},
		},
		MIG:            gpu.MIGState{Enabled: gpu.Some(false)},
		ActivitySource: gpu.ActivityGPM,
		Readings: gpu.Readings{
			SlowReadings: gpu.SlowReadings{PowerLimitWatts: gpu.Some(700.)},
			Memory:       gpu.Memory{Total: gpu.Some(uint64(80 << 30)), Used: gpu.Some(uint64(l.gib * (1 << 30)))},
			Media:        gpu.Media{Encoder: gpu.Some(0.), Decoder: gpu.Some(0.), JPEG: gpu.Some(0.), OFA: gpu.Some(0.)},
			PowerWatts:   gpu.Some(200.),
			PCIe:         gpu.PCIe{LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(5)},
		},
		Rates: gpu.LinkRates{PCIeReceive: gpu.Some(1e8), PCIeTransmit: gpu.Some(1e8)},
		Power: gpu.PowerEstimate{IdleWatts: gpu.Some(80.)},
	}
}

// slicedH100 returns an H100-80GB with GPU instances.
func slicedH100(t *testing.T, index int, instances ...gpu.GPUInstance) gpu.GPU {
	t.Helper()
	g := wholeH100(t, index, load{})
	g.MIG.Enabled = gpu.Some(true)

	for k := range instances {
		instances[k].ID = gpu.InstanceID(k + 1)
	}

	g.Instances = instances

	return g
}

// slice returns a GPU instance with one compute instance.
func slice(profile string, place gpu.Placement, l load, holders ...gpu.Holder) gpu.GPUInstance {
	for i := range holders {
		holders[i].Resource = resourceOf(profile)
	}

	uuid := gpu.MIGUUID(fmt.Sprintf("MIG-9d1a%04d-6a0b-5c1d-8e2f-3a4b5c6d7e8f", place.Start))

	return gpu.GPUInstance{
		Generation: 1, Profile: profile,
		Device: gpu.Device{
			Up:        true,
			Allocated: gpu.Some(len(holders) > 0),
			Holders:   holders,
			Activity:  gpu.Activity{GraphicsEngine: gpu.Some(l.busy), SM: gpu.Some(l.sm), DRAM: gpu.Some(l.dram)},
		},
		Placement:        gpu.Some(place),
		Memory:           gpu.Memory{Used: gpu.Some(uint64(l.gib * (1 << 30)))},
		Media:            gpu.Media{Decoder: gpu.Some(0.), JPEG: gpu.Some(0.), OFA: gpu.Some(0.)},
		ComputeInstances: []gpu.ComputeInstance{{UUID: uuid, Profile: profile, Device: gpu.Device{Up: true}}},
	}
}

// unheld returns GPUs as they are before anything holds them.
func unheld(gpus []gpu.GPU) []gpu.GPU {
	free := slices.Clone(gpus)
	for i := range free {
		g := &free[i]
		g.Holders, g.Allocated, g.Readings.Memory.Used = nil, gpu.Some(false), gpu.Some(uint64(0))

		g.Instances = slices.Clone(g.Instances)
		for k := range g.Instances {
			n := &g.Instances[k]
			n.Holders, n.Allocated, n.Memory.Used = nil, gpu.Some(false), gpu.Some(uint64(0))
		}
	}

	return free
}

// observed returns the report of an Advisor that has seen the same GPUs every minute for a time,
// and the last Snapshot.
func observed(o advise.Options, duration time.Duration, gpus ...gpu.GPU) (*advise.Report, *gpu.Snapshot) {
	return observedWith(o, duration, func(int) {}, gpus...)
}

// observedWith lets change alter the GPUs before each minute. The start of what holds them is seen.
func observedWith(
	o advise.Options, duration time.Duration, change func(minute int), gpus ...gpu.GPU,
) (*advise.Report, *gpu.Snapshot) {
	return observedFrom(o, duration, nil, change, gpus...)
}

// observedFrom is observedWith of a node whose Snapshots have sources.
func observedFrom(
	o advise.Options, duration time.Duration, sources []gpu.SourceState, change func(minute int), gpus ...gpu.GPU,
) (*advise.Report, *gpu.Snapshot) {
	o.MaxGap = 2 * time.Minute
	a := advise.New(o)
	s := &gpu.Snapshot{Hostname: "node-a", Sources: sources, GPUs: gpus}
	from := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	a.Observe(&gpu.Snapshot{Hostname: "node-a", Time: from.Add(-time.Minute), GPUs: unheld(gpus)})

	for s.Time = from; s.Time.Before(from.Add(duration)); s.Time = s.Time.Add(time.Minute) {
		change(int(s.Time.Sub(from).Minutes()))
		a.Observe(s)
	}

	s.Time = s.Time.Add(-time.Minute)
	report := a.Recommend(s)
	report.Pack(s)

	return report, s
}

// established returns a report as it is after a week: no answer is provisional.
func established(report *advise.Report, s *gpu.Snapshot) (*advise.Report, *gpu.Snapshot) {
	for i := range report.Devices {
		report.Devices[i].Provisional = false
	}

	report.Pack(s)

	return report, s
}

// mixedNode has an answer of each kind.
func mixedNode(t *testing.T) []gpu.GPU {
	unread := wholeH100(t, 7, tiny, podOf("video", "transcode-0", "StatefulSet/transcode"))
	unread.Readings.Media = gpu.Media{}

	return []gpu.GPU{
		wholeH100(t, 0, tiny, podOf("vision", "resnet-7c9f6d5b8-x2x4k", "Deployment/resnet")),
		wholeH100(t, 1, greedy, podOf("llm", "vllm-0", "StatefulSet/vllm")),
		wholeH100(t, 2, middle, podOf("speech", "whisper-0", "StatefulSet/whisper")),
		wholeH100(t, 3, small, podOf("ml", "nightly-evaluation-29543040-abcde", "CronJob/nightly-evaluation")),
		wholeH100(t, 4, rare, podOf("images", "diffusion-5f4d6c7b9-qwert", "Deployment/diffusion")),
		wholeH100(t, 5, load{}),
		slicedH100(t, 6,
			slice("3g.40gb", at(0, 4), load{busy: 0.2, sm: 0.02, gib: 3}, podOf("ml", "rerank-0", "Deployment/rerank")),
			slice("2g.20gb", at(4, 2), load{busy: 1, sm: 1, gib: 8}, podOf("ml", "embed-0", "Deployment/embed")),
			slice("1g.10gb", at(6, 1), load{gib: 1}, podOf("dev", "notebook-0", "StatefulSet/notebook")),
		),
		unread,
	}
}

// recommended are the routes of a server with a report.
func recommended(report *advise.Report, s *gpu.Snapshot) map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{"GET /recommendations": answer(report), "GET /node": answer(nodedoc.New(s))}
}

// isCommand reports whether a line of a procedure is a command.
func isCommand(line string) bool {
	return strings.HasPrefix(line, "      kubectl ") || strings.HasPrefix(line, "      migctl ")
}

// withoutCommands drops the lines of commands, which are not wrapped.
func withoutCommands(out string) string {
	var kept []string

	for line := range strings.Lines(out) {
		if !isCommand(line) {
			kept = append(kept, line)
		}
	}

	return strings.Join(kept, "")
}

func TestRecommendShowsTheNode(t *testing.T) {
	gpus := mixedNode(t)
	// GPU 2: days and nights, a few wide kernels, a leak
	report, s := observedWith(advise.DefaultOptions(), 8*24*time.Hour, func(minute int) {
		g := &gpus[2]
		busy := 0.02 + 0.2*(1+math.Sin(float64(minute)*2*math.Pi/1440))
		width := []float64{0.05, 0.15, 0.15, 0.3}[minute%4]
		g.Activity.GraphicsEngine, g.Activity.SM, g.Activity.DRAM = gpu.Some(busy), gpu.Some(busy*width), gpu.Some(busy*0.2)
		g.Readings.Memory.Used = gpu.Some(uint64(12<<30 + minute<<18))
	}, gpus...)

	_, address := serve(t, recommended(report, s))
	for _, c := range []struct {
		name string
		args []string
	}{
		{"recommend", nil}, {"recommend-some", []string{"6", "GPU-5d8a0000-7d1c-5e0e-9f5a-000000000001"}},
		{"recommend-explain-slice", []string{"--explain=6"}}, {"recommend-explain-whole", []string{"--explain=2"}},
		{"recommend-explain-keep", []string{"--explain=1"}}, {"recommend-explain-free", []string{"--explain=5"}},
		{"recommend-explain-video", []string{"--explain=7"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"recommend"}, c.args...)
			got := runner{}.run(t, address, args...)
			cmptest.Equal(t, "exit code and errors", outcome{code: got.code, err: got.err}, outcome{})
			fits(t, withoutCommands(got.out))
			golden(t, c.name+".txt", got.out)

			ascii := runner{env: map[string]string{"LANG": "C"}}.run(t, address, args...)
			if i := strings.IndexFunc(ascii.out, func(r rune) bool { return r > 126 }); i >= 0 {
				t.Errorf("not ASCII: %s", ascii.out[i:])
			}

			fits(t, withoutCommands(ascii.out))
		})
	}
}

// TestRecommendOfAFullNode: no GPU is free, so the first pod must wait for its slice.
func TestRecommendOfAFullNode(t *testing.T) {
	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour,
		wholeH100(t, 0, tiny, podOf("vision", "resnet-7c9f6d5b8-x2x4k", "Deployment/resnet")),
		wholeH100(t, 1, middle, podOf("speech", "whisper-0", "StatefulSet/whisper")),
		wholeH100(t, 2, middle, podOf("speech", "whisper-1", "StatefulSet/whisper")),
		wholeH100(t, 3, small, podOf("ml", "worker-0", "Workflow/worker"))))
	_, address := serve(t, recommended(report, s))
	got := runner{}.run(t, address, "recommend")
	fits(t, withoutCommands(got.out))
	golden(t, "recommend-full.txt", got.out)
}

// TestRecommendCountsProvisionalSlices: what the packing leaves out is counted beside what it
// moves.
func TestRecommendCountsProvisionalSlices(t *testing.T) {
	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour,
		wholeH100(t, 0, tiny, podOf("vision", "a-0", "Deployment/a")),
		wholeH100(t, 1, tiny, podOf("vision", "b-0", "Deployment/b")),
		wholeH100(t, 2, tiny, podOf("vision", "c-0", "Deployment/c"))))
	report.Devices[1].Action, report.Devices[2].Action = advise.ActionKeep, advise.ActionKeep
	report.Pack(s)

	for _, i := range []int{1, 2} {
		report.Devices[i].Action, report.Devices[i].Provisional = advise.ActionSlice, true
	}

	const incomplete = "by evidence that is not complete yet (less than seven days)"
	routes := recommended(report, s)
	_, address := serve(t, routes)
	got := runner{}.run(t, address, "recommend").out
	cmptest.HasTexts(t, flat(got), "The workloads to move hold 1 GPU now",
		"Recommended provisionally, "+incomplete+", and not moved yet: 2 slices, for GPU 1, 2.", "Procedure.")
	cmptest.LacksTexts(t, flat(got), "although a slice would do")
	fits(t, withoutCommands(got))
	report.Packing = nil
	report.Devices[0].Action = advise.ActionKeep
	_, address = serve(t, recommended(report, s))
	got = runner{}.run(t, address, "recommend").out
	cmptest.HasTexts(t, flat(got), "No workload is to move yet: 2 slices are recommended provisionally, "+incomplete+
		", for GPU 1, 2.")
	cmptest.LacksTexts(t, got, "Procedure", "No workload is to move from")
}

// TestRecommendHasOneReason: a slice whose media engines are not checked is left out for that reason,
// in the table and below it, whether its evidence is complete or not.
func TestRecommendHasOneReason(t *testing.T) {
	report, s := established(observed(advise.DefaultOptions(), 25*time.Hour,
		wholeH100(t, 0, tiny, podOf("vision", "a-0", "Deployment/a")),
		wholeH100(t, 1, tiny, podOf("vision", "b-0", "Deployment/b"))))
	unchecked := &report.Devices[1]
	unchecked.NotChecked = true

	const left = "Not moved, since the use of media engines cannot be read, and the slice has fewer: GPU 1."

	for _, provisional := range []bool{false, true} {
		unchecked.Provisional = provisional
		report.Devices[0].Provisional = false
		report.Pack(s)

		_, address := serve(t, recommended(report, s))
		got := runner{}.run(t, address, "recommend").out
		cmptest.HasTexts(t, flat(got), "media not checked", "The workloads to move hold 1 GPU now", left)
		cmptest.LacksTexts(t, got, "provisional")
		fits(t, withoutCommands(got))

		report.Devices[0].Provisional = true
		report.Pack(s)

		_, address = serve(t, recommended(report, s))
		got = runner{}.run(t, address, "recommend").out
		cmptest.HasTexts(t, flat(got), "No workload is to move yet: 1 slice is recommended provisionally", "for GPU 0.", left)
	}
}

// TestRecommendPrintsTheDocument: as the server wrote it, keys that migctl does not know included.
func TestRecommendPrintsTheDocument(t *testing.T) {
	report, s := observed(advise.DefaultOptions(), 25*time.Hour, mixedNode(t)...)

	data, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}

	routes := recommended(report, s)
	const later = `,"later":{"z":1,"a":2.50}}`
	routes["GET /recommendations"] = raw(strings.TrimSuffix(string(data), "}") + later)
	_, address := serve(t, routes)
	got := runner{}.run(t, address, "recommend", "-o", "json")

	var compact strings.Builder
	for line := range strings.Lines(got.out) {
		compact.WriteString(strings.TrimSpace(line))
	}

	want := strings.ReplaceAll(strings.TrimSuffix(string(data), "}")+later, `": `, `":`)
	cmptest.Equal(t, "document", strings.ReplaceAll(compact.String(), `": `, `":`), want)
	asYAML := runner{}.run(t, address, "recommend", "-o", "yaml")
	cmptest.HasTexts(t, asYAML.out, "apiVersion: mig-exporter/v1\n", "\nlater:\n  z: 1\n  a: 2.50\n")
	one := runner{}.run(t, address, "recommend", "-o", "json", "6")

	var filtered advise.Report
	if err := json.Unmarshal([]byte(one.out), &filtered); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "devices of GPU 6", len(filtered.Devices), 3)
	cmptest.HasTexts(t, one.out, `"later"`)
}

func TestRecommendWithoutAnAnswer(t *testing.T) {
	report, s := observed(advise.DefaultOptions(), time.Hour, mixedNode(t)...)
	withReport := recommended(report, s)

	none := map[string]http.HandlerFunc{"GET /recommendations": refuse(api.Problem{
		Type: api.Unavailable, Title: "Unavailable", Status: 503, Detail: "No report has been made yet. Try again."})}
	for _, c := range []struct {
		about  string
		routes map[string]http.HandlerFunc
		args   []string
		code   int
		says   []string
	}{
		{"no report yet", none, nil, exitFailed, []string{
			"No report has been made yet. Try again.", "repeat the command in a minute", "--advise.min-evidence",
		}},
		{"an old server", map[string]http.HandlerFunc{}, nil, exitFailed, []string{
			"no /api/v1/recommendations", "this version of mig-exporter does not offer it",
		}},
		{"no such GPU", withReport, []string{"17"}, exitUsage, []string{`no GPU "17"`}},
		{"no such GPU to explain", withReport, []string{"--explain=GPU-1"}, exitUsage, []string{`no GPU "GPU-1"`}},
		{"no such GPU in a spec", withReport, []string{"-o", "spec", "17"}, exitUsage, []string{`no GPU "17"`}},
		{"nothing for a spec", withReport, []string{"-o", "spec"}, exitFailed, []string{"there is no spec to write"}},
		{"JSON and explanation", withReport, []string{"-o", "json", "--explain=0"}, exitUsage, []string{"cannot be combined"}},
		{"spec and explanation", withReport, []string{"-o", "spec", "--explain=0"}, exitUsage, []string{"cannot be combined"}},
		{"two GPUs", withReport, []string{"--explain=0", "1"}, exitUsage, []string{"--explain takes the GPU"}},
		{"no JSON", map[string]http.HandlerFunc{"GET /recommendations": raw("[]")}, nil, exitUnreachable, []string{
			"it answers with no JSON object",
		}},
	} {
		t.Run(c.about, func(t *testing.T) {
			_, address := serve(t, c.routes)
			got := runner{}.run(t, address, append([]string{"recommend"}, c.args...)...)
			cmptest.Equal(t, "exit code and output", outcome{code: got.code, out: got.out}, outcome{code: c.code})
			cmptest.HasTexts(t, flat(got.err), c.says...)
			fits(t, got.err)
		})
	}

	got := runner{}.run(t, "unix:///none", "recommend")
	cmptest.Equal(t, "without a server", got.code, exitUnreachable)
}

// TestRecommendOfAnEmptyNode: a report without devices, and one of which nothing follows.
func TestRecommendOfAnEmptyNode(t *testing.T) {
	for says, gpus := range map[string][]gpu.GPU{
		"No devices.": nil,
		"No workload is to move yet.\nIt is not known whether a slice would do for the work of GPU 0.": {
			wholeH100(t, 0, tiny, podOf("ml", "a-0", "Deployment/a"))},
	} {
		report, s := observed(advise.DefaultOptions(), time.Hour, gpus...)
		_, address := serve(t, recommended(report, s))
		got := runner{}.run(t, address, "recommend")
		cmptest.Equal(t, "exit code", got.code, exitOK)
		cmptest.HasTexts(t, got.out, says)
		cmptest.LacksTexts(t, got.out, "Procedure")
		fits(t, got.out)
	}
}

// TestRecommendBeforeTheGPUsAreKnown: a node whose GPUs are not known yet is not one without GPUs, and a GPU that
// has not been read yet is there.
func TestRecommendBeforeTheGPUsAreKnown(t *testing.T) {
	nvml := gpu.SourceState{Name: gpu.SourceNVML, Up: true, LastSuccess: time.Unix(1, 0)}
	recommend := func(s *gpu.Snapshot, args ...string) outcome {
		report := advise.New(advise.DefaultOptions()).Recommend(s)
		report.Pack(s)
		_, address := serve(t, recommended(report, s))
		got := runner{}.run(t, address, append([]string{"recommend"}, args...)...)

		return outcome{code: got.code, out: flat(got.out), err: flat(got.err)}
	}

	unread := &gpu.Snapshot{Sources: []gpu.SourceState{nvml}, Unread: []int{0, 3}}

	for _, args := range [][]string{nil, {"3"}, {"all"}, {"--explain=3"}} {
		got := recommend(unread, args...)
		cmptest.Equal(t, "exit code", got.code, exitOK)
		cmptest.HasTexts(t, got.out, "GPU 3", "not judged: it has not been read yet")
		cmptest.LacksTexts(t, got.out, "No devices.")
	}

	cmptest.HasTexts(t, recommend(unread, "-o", "json").out, `"notJudged": [`, `"why": "it has not been read yet"`)

	got := recommend(unread, "GPU-5f2a") // it may be one of these
	cmptest.Equal(t, "exit code with a UUID", got.code, exitFailed)
	cmptest.HasTexts(t, got.err, `no GPU "GPU-5f2a" is known yet: the UUID of GPU 0, 3 has not been read`)
	cmptest.Equal(t, "exit code with an index that there is not", recommend(unread, "4").code, exitUsage)

	unknown := &gpu.Snapshot{Sources: []gpu.SourceState{{Name: gpu.SourceNVML, Err: gpu.ErrNoDriver}}}
	const sentence = "it is not known yet which GPUs this node has: no NVIDIA driver"

	got = recommend(unknown)
	cmptest.Equal(t, "exit code without a driver", got.code, exitOK)
	cmptest.Equal(t, "how often it is said", strings.Count(got.out, sentence), 1)
	cmptest.LacksTexts(t, got.out, "No devices.")
	cmptest.HasTexts(t, recommend(unknown, "-o", "json").out, `"gpusUnknown": "no NVIDIA driver"`)

	for _, args := range [][]string{{"3"}, {"GPU-5f2a"}, {"--explain=3"}} {
		got = recommend(unknown, args...)
		cmptest.Equal(t, "exit code of a GPU without a driver", got.code, exitFailed)
		cmptest.HasTexts(t, got.err, "is known yet: "+sentence)
		cmptest.LacksTexts(t, got.err, "MIG mode")
	}

	got = recommend(unknown, "-o", "spec")
	cmptest.Equal(t, "exit code of a spec", got.code, exitFailed)
	cmptest.HasTexts(t, got.err, sentence)
}
