package advise

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// serverStory is what a GPU with an inference server shows: its memory by the minute from its start
// on, in GiB, the last of which stays, and what the server answers.
type serverStory struct {
	start  []float64
	answer gpu.ServerFigures // none without a kind
	hints  gpu.RightsizingHints
	busy   float64 // 0: half of the time
	sm     float64 // 0: kernels on a few SMs
	hours  int     // at the end, for which it answers; 0: since its start
}

// memoryOf returns levels of memory, each for some minutes.
func memoryOf(levels ...stage) []float64 {
	var list []float64

	for _, s := range levels {
		for range s.minutes {
			list = append(list, s.gib)
		}
	}

	return list
}

// vllmStart is the start of a server that loads 14 GiB of weights, prepares for five minutes and
// takes the rest.
func vllmStart(gib float64) []float64 {
	return memoryOf(held(1, 2), held(1, 8), held(6, 14), held(1, gib))
}

// usesCache is the answer of a vLLM server.
func usesCache(share float64) gpu.ServerFigures {
	return gpu.ServerFigures{Kind: gpu.ServerVLLM, CacheUse: gpu.Some(share), CacheTokens: gpu.Some(400000.),
		Running: gpu.Some(8.), Waiting: gpu.Some(0.), Fraction: gpu.Some(0.9)}
}

// tell plays a story for eight days and returns the answer.
func (story serverStory) tell(t *testing.T, a *Advisor) Recommendation {
	t.Helper()

	busy := story.busy
	sm := story.sm

	if busy == 0 {
		busy = 0.5
	}

	if sm == 0 {
		sm = 0.01
	}

	var s *gpu.Snapshot
	at := start()
	show := func(g gpu.GPU, answers bool) {
		s = &gpu.Snapshot{Time: at, Hostname: "node-a", GPUs: []gpu.GPU{g}}
		if answers && story.answer.Kind != "" {
			s.Servers = []gpu.PodServer{{PodUID: "uid-a", Time: at, ServerFigures: story.answer}}
		}

		a.Observe(s)
		at = at.Add(time.Minute)
	}

	show(unheld([]gpu.GPU{wholeGPU(t, "H100-80GB", 0, load{})})[0], false)
	holder := pod("ml", "Deployment/a")
	holder.Rightsizing = story.hints
	g := wholeGPU(t, "H100-80GB", 0, load{busy: busy, sm: sm}, holder)

	minutes := int(longEnough.Minutes())
	for i := range minutes {
		g.Readings.Memory.Used = gpu.Some(uint64(story.start[min(i, len(story.start)-1)] * (1 << 30)))
		show(g, i >= len(story.start) && (story.hours == 0 || i >= minutes-60*story.hours))
	}

	return recommend(a, s).Devices[0]
}

// modelMemory are the hints of a pod whose annotation says how large its model is.
func modelMemory(gib uint64) gpu.RightsizingHints {
	return gpu.RightsizingHints{ModelMemory: gpu.Some(gib << 30)}
}

// TestServers: what a server holds is a reservation; what of it is needed follows from its weights
// and the use of its cache, and is not known without either.
func TestServers(t *testing.T) {
	slice := func(profile string) answer { return answer{ActionSlice, ReasonNone, profile} }
	kept := func(reason Reason) answer { return answer{ActionKeep, reason, ""} }
	large := vllmStart(72)
	triton := gpu.ServerFigures{Kind: gpu.ServerTriton, FinishedRequests: gpu.Some(7.)}

	for about, c := range map[string]struct {
		story serverStory
		want  answer
		says  []string // the explanation
	}{
		"weights seen, little of the cache used": {serverStory{start: large, answer: usesCache(0.1)}, slice("3g.40gb"),
			[]string{"vLLM says of itself that at most 10 % of its cache is used", "--gpu-memory-utilization=0.90"}},
		"restarted in its first hour": {serverStory{start: slices.Concat(large, []float64{72, 0}, large), answer: usesCache(0.1)},
			slice("3g.40gb"), nil},
		"builds an engine before it loads": {serverStory{start: slices.Concat(memoryOf(held(1, 20), held(1, 40), held(1, 60)),
			[]float64{0}, large), answer: usesCache(0.1)}, kept(ReasonMemory), nil},
		"all of the cache used": {serverStory{start: large, answer: usesCache(1)}, kept(ReasonMemory), nil},
		"does not answer": {serverStory{start: large}, kept(ReasonPreallocated),
			[]string{"--gpu-memory-utilization", "--mem-fraction-static", "JAX set XLA_PYTHON_CLIENT_PREALLOCATE=false"}},
		"answers for a day too few": {serverStory{start: large, answer: usesCache(0.1), hours: 12}, kept(ReasonPreallocated),
			[]string{"is known for 12.0 h, which is too short"}},
		"takes all memory after two hours": {serverStory{start: memoryOf(held(60, 2), held(60, 30), held(1, 72))},
			kept(ReasonPreallocated), nil},
		"reserves 40 %, weights unknown": {
			serverStory{start: memoryOf(held(1, 14), held(1, 32)), answer: usesCache(0.05)}, kept(ReasonPreallocated),
			[]string{"vLLM reserves 32.0 GiB, whatever it needs (--gpu-memory-utilization=0.90)",
				"mig-exporter.io/model-memory"}},
		"reserves 40 %, weights annotated": {serverStory{start: memoryOf(held(1, 14), held(1, 32)), answer: usesCache(0.05),
			hints: modelMemory(14)}, slice("1g.20gb"), []string{"16.2 of 32.0 GiB", "--gpu-memory-utilization=0.90"}},
		"reserves 40 %, annotated, loads in 32 bits without a pause": {
			serverStory{start: memoryOf(held(1, 20), held(1, 28), held(1, 32)), answer: usesCache(0.05), hints: modelMemory(14)},
			slice("3g.40gb"), []string{"28.0 of 32.0 GiB"}},
		"reserves 40 %, annotated, load not seen": {
			serverStory{start: memoryOf(held(1, 32)), answer: usesCache(0.05), hints: modelMemory(14)},
			slice("3g.40gb"), []string{"28.0 of 32.0 GiB"}},
		"reserves 40 %, annotated, more in its start than ever after": {
			serverStory{start: memoryOf(held(1, 20), held(8, 32), held(1, 60), held(1, 32)), answer: usesCache(0.05),
				hints: modelMemory(14)}, kept(ReasonMemory), []string{"needs 69.0 GiB"}},
		"reserves 40 %, annotated, does not answer": {serverStory{start: memoryOf(held(1, 14), held(1, 32)),
			hints: modelMemory(14)}, kept(ReasonPreallocated),
			[]string{"--advise.server-metrics asks the server, if it has metrics"}}, // JAX has none
		"flat at 40 %, maybe a fraction": {serverStory{start: memoryOf(held(1, 14), held(1, 32))}, kept(ReasonPreallocated), nil},
		"flat at less":                   {serverStory{start: memoryOf(held(1, 14), held(1, 30))}, slice("3g.40gb"), nil},
		"annotated with more than it holds": {serverStory{start: large, answer: usesCache(0.1), hints: modelMemory(75)},
			kept(ReasonPreallocated), nil},
		"Triton takes what it needs": {serverStory{start: memoryOf(held(1, 6)), answer: triton}, slice("1g.10gb"), nil},
		"loads in 32 bits": {serverStory{start: memoryOf(held(1, 20), held(5, 39), held(6, 14), held(1, 72)),
			answer: usesCache(0.05)}, kept(ReasonMemory), []string{"needs 44.8 GiB"}},
		"a slice stretches requests, and the cache they need": {serverStory{start: large, answer: usesCache(0.3), busy: 0.4,
			hints: gpu.RightsizingHints{MaxStretch: gpu.Some(9.)},
			sm:    0.28}, kept(ReasonMemory), nil},
	} {
		t.Run(about, func(t *testing.T) {
			a := New(fastOptions())
			r := c.story.tell(t, a)
			cmptest.Equal(t, "answer", answer{r.Action, r.Reason, r.Recommended}, c.want)
			cmptest.HasTexts(t, r.Explanation, c.says...)
		})
	}
}

// TestServerPrediction holds the equation: 72 GiB are 14 of weights, 1.4 for activations and 56.6
// of cache, a tenth of which is used.
func TestServerPrediction(t *testing.T) {
	const gib = 1 << 30
	r := serverStory{start: vllmStart(72), answer: usesCache(0.1)}.tell(t, New(fastOptions()))
	s := r.Evidence.Server
	p := r.Predicted.Server
	near := func(what string, got, want float64) {
		t.Helper()

		if d := got - want; d > 0.001*want || d < -0.001*want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("weights", s.Weights, 14*gib)
	near("cache", s.CacheBytes, 56.6*gib)
	near("need", s.Need, 21.06*gib)
	var memory float64

	for _, profile := range wholeGPU(t, "H100-80GB", 0, load{}).Profiles {
		if profile.Name == "3g.40gb" {
			memory = float64(profile.MemoryBytes)
		}
	}

	near("cache in the slice", p.CacheBytes, 0.9*memory-15.4*gib)
	near("tokens in the slice", p.CacheTokens, 400000*p.CacheBytes/(56.6*gib))
	near("use in the slice", p.CacheUse, 5.66*gib/p.CacheBytes)
	near("free memory", r.Predicted.MemoryFree, memory-21.06*gib)
	cmptest.Equal(t, "waiting", p.Waiting, 0)
	cmptest.Equal(t, "weights from", s.WeightsFrom, WeightsFromStart)
}

// TestServerFlags: SGLang's fraction is without activations, TensorRT-LLM's of what the weights
// leave.
func TestServerFlags(t *testing.T) {
	s := ServerEvidence{Weights: 20, Activations: 4}
	for kind, want := range map[gpu.ServerKind]struct {
		flag  string
		value float64
	}{
		gpu.ServerVLLM: {"--gpu-memory-utilization", 0.75}, gpu.ServerTGI: {"--cuda-memory-fraction", 0.75},
		gpu.ServerSGLang: {"--mem-fraction-static", 0.65}, gpu.ServerTriton: {"kv_cache_free_gpu_mem_fraction", 0.38},
	} {
		s.Kind = kind
		flag, value := s.flag(40, 30)
		cmptest.Equal(t, string(kind), flag, want.flag)
		cmptest.Equal(t, string(kind), value, want.value)
	}
}

// TestServerWaits: requests that do not fit into the cache of a slice any more wait.
func TestServerWaits(t *testing.T) {
	e := Evidence{Server: &ServerEvidence{Kind: gpu.ServerVLLM, Reservation: 72, Weights: 14, Activations: 2,
		CacheBytes: 56, CacheTokens: 5600, CacheUse: 0.5, Running: 14, Waiting: 1, Need: 44}}
	p := e.predictServer(&gpu.Profile{MemoryBytes: 40}, 1) // 36 in all, 20 of cache for the 28 that are used
	cmptest.Equal(t, "server", *p, PredictedServer{Flag: "--gpu-memory-utilization", Value: 0.9, CacheBytes: 20,
		CacheTokens: 2000, CacheUse: 1.4, Waiting: 5})
}

// TestPauseInLoadingIsNoPlateau: what is loaded on and on after a pause was not the weights.
func TestPauseInLoadingIsNoPlateau(t *testing.T) {
	for about, c := range map[string]struct {
		memory []float64
		want   float64 // GiB
	}{
		"prepares":             {memoryOf(held(1, 8), held(6, 14), held(90, 72)), 14},
		"captures graphs":      {memoryOf(held(1, 8), held(6, 14), held(6, 70), held(90, 72)), 14},
		"pauses, and prepares": {memoryOf(held(6, 5), held(1, 9), held(6, 14), held(90, 72)), 14},
		"pauses while it loads": {memoryOf(held(6, 5), held(1, 7), held(1, 9), held(1, 11), held(1, 14), held(90, 72)),
			0},
		"prepares for too short": {memoryOf(held(1, 8), held(2, 14), held(90, 72)), 0},
		"waits for its model":    {memoryOf(held(20, 0.6), held(1, 14), held(90, 72)), 0},
		"takes nothing more":     {memoryOf(held(1, 8), held(90, 14)), 0},
	} {
		var l loading
		for i, gib := range c.memory {
			l.follow(gib*1024, start().Add(time.Duration(i)*time.Minute))
		}

		got, _ := l.weights()
		cmptest.Equal(t, about, got/1024, c.want)
	}
}

// TestServerSurvivesRestart: what a server said, and what its start has shown, is kept.
func TestServerSurvivesRestart(t *testing.T) {
	a := New(fastOptions())
	before := serverStory{start: vllmStart(72), answer: usesCache(0.1)}.tell(t, a)

	var file bytes.Buffer
	if err := a.Checkpoint().Write(&file); err != nil {
		t.Fatal(err)
	}

	c, err := ReadCheckpoint(&file)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "dropped", len(c.Dropped()), 0)

	b := New(fastOptions())
	b.Restore(c)
	s := &gpu.Snapshot{Time: a.now.Add(time.Minute), Hostname: "node-a",
		GPUs: []gpu.GPU{wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.01, gib: 72}, pod("ml", "Deployment/a"))}}
	b.Observe(s)
	after := recommend(b, s).Devices[0]
	cmptest.Equal(t, "profile", after.Recommended, before.Recommended)

	// For the minute of the restart the server was silent.
	if silent := after.Evidence.Server.silent; !(silent > 0 && silent < 0.001) {
		t.Errorf("silent for %v of the time", silent)
	}

	after.Evidence.Server.silent = before.Evidence.Server.silent
	cmptest.Equal(t, "server", *after.Evidence.Server, *before.Evidence.Server)
}

// TestInvalidServerIsDropped: a file with a number that no server has is not used.
func TestInvalidServerIsDropped(t *testing.T) {
	w := workload{First: start(), Last: start(), Reference: start(), Reserve: &reserve{}}
	if err := w.validate(start()); err != nil {
		t.Errorf("of a sound one: %v", err)
	}

	w.Reserve.Days[3].CacheUse = -1
	if w.validate(start()) == nil {
		t.Error("a use of -1 is taken for sound")
	}
}

// answersOfASlice shows a server on a slice for eight days, with an answer each minute, and returns
// the recommendation.
func answersOfASlice(t *testing.T, answerAt func(minute int) gpu.ServerFigures) Recommendation {
	t.Helper()
	a := New(fastOptions())
	holder := pod("ml", "Deployment/a")
	holder.Rightsizing = modelMemory(4)
	gib := memoryOf(held(1, 3), held(6, 4), held(1, 38))
	held := slicedGPU(t, "H100-80GB", "3g.40gb", load{busy: 0.5, sm: 0.05}, holder)
	var s *gpu.Snapshot

	for i := range int(longEnough.Minutes()) {
		at := start().Add(time.Duration(i) * time.Minute)

		g := held
		if i == 0 {
			g = unheld([]gpu.GPU{g})[0]
		} else {
			g.Instances = slices.Clone(g.Instances)
			g.Instances[0].Memory.Used = gpu.Some(uint64(gib[min(i-1, len(gib)-1)] * (1 << 30)))
		}

		s = &gpu.Snapshot{Time: at, Hostname: "node-a", GPUs: []gpu.GPU{g},
			Servers: []gpu.PodServer{{PodUID: "uid-a", Time: at, ServerFigures: answerAt(i)}}}
		a.Observe(s)
	}

	return recommend(a, s).Devices[0]
}

// TestServerOfASlice: a slice that is full of a reservation is not too small, and can be too large.
// It is too small once the cache has been full for ten minutes and requests wait.
func TestServerOfASlice(t *testing.T) {
	last := int(longEnough.Minutes()) - 1

	from := func(minute int, waiting float64) func(int) gpu.ServerFigures {
		return func(at int) gpu.ServerFigures {
			f := usesCache(0.05)
			if at >= minute {
				f = usesCache(0.99)
				f.Waiting = gpu.Some(waiting)
			}

			return f
		}
	}
	for about, c := range map[string]struct {
		answers func(int) gpu.ServerFigures
		want    answer
	}{
		"little is used":             {from(last+1, 0), answer{ActionShrink, ReasonNone, "1g.10gb"}},
		"full, and requests wait":    {from(last-10, 2), answer{ActionGrow, ReasonMemoryFull, "7g.80gb"}},
		"full for nine minutes":      {from(last-9, 2), answer{ActionKeep, ReasonNone, ""}},
		"full, and no request waits": {from(last-10, 0), answer{ActionKeep, ReasonNone, ""}},
	} {
		r := answersOfASlice(t, c.answers)
		cmptest.Equal(t, about, answer{r.Action, r.Reason, r.Recommended}, c.want)

		if r.Action == ActionGrow {
			cmptest.HasTexts(t, r.Explanation, "the cache of its inference server has been full")
		}

		if r.Action == ActionShrink {
			cmptest.Equal(t, "flag", r.Predicted.Server.Flag, "--gpu-memory-utilization")
		}
	}
}

// TestServerRequestsTakeLonger: the cache in the slice is predicted by what decides whether it is
// large enough: requests take longer than their kernels, since they wait for each other.
func TestServerRequestsTakeLonger(t *testing.T) {
	hints := gpu.RightsizingHints{MaxStretch: gpu.Some(9.)}
	r := serverStory{start: vllmStart(72), answer: usesCache(0.05), busy: 0.4, sm: 0.28, hints: hints}.tell(t, New(fastOptions()))

	s := r.Evidence.Server

	p := r.Predicted
	if p.Latency.Expected <= 1.1*p.StretchP95.likely() {
		t.Fatalf("requests take %v times as long, and their kernels %v times", p.Latency, p.StretchP95)
	}

	want := s.CacheUse * p.Latency.Expected * s.CacheBytes / p.Server.CacheBytes
	if d := p.Server.CacheUse/want - 1; d > 0.01 || d < -0.01 {
		t.Errorf("%v of the cache in the slice is used, want %v", p.Server.CacheUse, want)
	}
}
