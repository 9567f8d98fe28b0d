package advise

import (
	"fmt"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Where we know the size of a model's weights from.
const (
	WeightsFromAnnotation = "annotation" // mig-exporter.io/model-memory
	WeightsFromStart      = "start"      // memory was flat before the cache was taken
)

// ServerEvidence is what an inference server said of itself, which is a tenant's word, and what follows
// from it. The memory that it holds is a reservation: weights, activations and cache.
type ServerEvidence struct {
	// Kind is empty if no server has answered, and only the pod's annotation says that there is a
	// model.
	Kind        gpu.ServerKind `json:"kind,omitempty"`
	Reservation float64        `json:"reservationBytes"`
	// Fraction is the share of the device that its flag tells it to take; 0 if unknown.
	Fraction float64 `json:"fraction,omitempty"`
	// Weights is the size of the model's weights, 0 if unknown, and WeightsFrom says where we know it
	// from. Activations are an allowance for activations; the rest of the reservation is the cache.
	Weights     float64 `json:"weightsBytes,omitempty"`
	WeightsFrom string  `json:"weightsFrom,omitempty"`
	Activations float64 `json:"activationsBytes,omitempty"`
	CacheBytes  float64 `json:"cacheBytes,omitempty"`
	CacheTokens float64 `json:"cacheTokens,omitempty"`
	// AskedHours is for how long we have known how much of the cache is used.
	AskedHours float64 `json:"askedHours,omitempty"`
	CacheUse   float64 `json:"cacheUseMaxRatio,omitempty"`
	Running    float64 `json:"runningRequestsMax,omitempty"`
	Waiting    float64 `json:"waitingRequestsMax,omitempty"`
	// ServiceSeconds is how long the server works on a request on average, without the time in which
	// it waits. It works on several at once.
	ServiceSeconds float64 `json:"serviceSecondsMean,omitempty"`
	// Need is how much of the reservation was in use at most; 0 if unknown.
	Need float64 `json:"needBytes,omitempty"`

	reserves bool
	full     bool    // the cache is full, and requests wait
	young    bool    // it has answered for less than a week
	silent   float64 // share of the held time in which it did not say how much of its cache is used
	least    float64 // hours: a shorter held time counts as that
	remedy   string  // how to see why it did not, as an end of a sentence
	load     float64 // largest use while the weights were loaded, bytes; below Weights if unknown
}

// PredictedServer is what is expected of an inference server in the recommended profile.
type PredictedServer struct {
	// Flag is the server's flag for its reservation, and Value its value in the slice.
	Flag  string  `json:"flag"`
	Value float64 `json:"value"`
	// CacheBytes and CacheTokens are what that leaves for the cache. CacheUse is the largest use of
	// the cache, above 1 if fewer requests fit than before, and Waiting how many requests wait then.
	CacheBytes  float64 `json:"cacheBytes"`
	CacheTokens float64 `json:"cacheTokens,omitempty"`
	CacheUse    float64 `json:"cacheUseMaxRatio"`
	Waiting     float64 `json:"waitingRequestsMax"`
}

const (
	// We take activations for activationShare of the weights, and for minActivations bytes at least:
	// no server says how large they are.
	activationShare = 0.1
	minActivations  = 1 << 30
	// unseenLoad is how many times as much as the weights we expect a server to hold while it loads
	// them, if we have not seen it: in 32 bits before it halves them, or in 16 before it quantizes
	// them.
	unseenLoad = 2
	// mostReserved is the share of a slice that a server should reserve at most. The rest is for
	// contexts and graphs.
	mostReserved = 0.9
)

// addServer adds what we know of the inference server of a workload. We know the memory that it needs if
// we know its weights, and if it has said for Options.MinEvidence, and for nearly all of the time that its
// pods held their devices, how much of its cache is used.
func (a *Advisor) addServer(w *workload, e *Evidence, hints gpu.RightsizingHints) {
	r := w.Reserve
	answers := r != nil && isRecent(r.Last, a.now)

	annotated := hints.ModelMemory.Present() && w.isFlat(e)
	if !answers && !annotated {
		return
	}

	s := &ServerEvidence{Reservation: e.settledBytes, reserves: annotated}
	if answers {
		s.addAnswers(r, r.sums(a.now))
		s.least = a.options.MinEvidence.Hours()
		s.silent = r.silence(a.now, s.least)
		s.young = isYoung(r.Since, a.now)
		s.remedy = "the exporter's log says why a server cannot be read"
	}

	e.Server = s
	if !s.reserves {
		return
	}

	weights, load := w.Starts.weights()
	s.load = load
	s.WeightsFrom = WeightsFromStart

	// A start that held more than ever after has loaded its weights in that.
	if e.StartMemory*flatShare > s.Reservation && weights == 0 {
		s.load = max(load, e.StartMemory)
	}

	if bytes, ok := hints.ModelMemory.Get(); ok {
		weights = float64(bytes)
		s.WeightsFrom = WeightsFromAnnotation
	}

	s.solve(weights, a.options.MinEvidence.Hours())
}

// addAnswers adds what a server has answered.
func (s *ServerEvidence) addAnswers(r *reserve, days reserveDay) {
	s.Kind = r.Kind
	s.Fraction = r.Fraction
	s.CacheTokens = r.Tokens
	s.reserves = s.reserves || r.reserves()
	s.AskedHours = round3(float64(days.Asked) / 3600)
	s.CacheUse = round3(float64(days.CacheUse))
	s.Running = float64(days.Running)
	s.Waiting = float64(days.Waiting)
	s.ServiceSeconds = mean(days.Served, days.Requests)
}

// solve divides the reservation into its parts if the weights are known, and computes the need if the use
// of the cache is known, too. It ignores weights that do not fit into the reservation.
func (s *ServerEvidence) solve(weights, minHours float64) {
	activations := max(activationShare*weights, minActivations)
	if weights <= 0 || weights+activations >= s.Reservation {
		s.WeightsFrom = ""
		return
	}

	s.Weights = weights
	s.Activations = activations
	s.CacheBytes = s.Reservation - weights - activations

	if s.load < weights {
		s.load = min(unseenLoad*weights, s.Reservation) // a start took no more than that
	}

	if s.Kind != "" && s.AskedHours >= minHours && !s.isSilent() {
		s.Need = s.needAt(1)
	}
}

// needAt returns the memory that a server needs if requests take stretch times as long: it works on that
// many times as many at once, and they use that much more of the cache.
func (s *ServerEvidence) needAt(stretch float64) float64 {
	return max(s.load, s.Weights+s.Activations+s.CacheUse*stretch*s.CacheBytes)
}

// isKnown reports whether the memory that a server needs is known.
func (s *ServerEvidence) isKnown() bool { return s != nil && s.Need > 0 }

// isSilent reports whether a server has said for too little of the time how much of its cache is used.
func (s *ServerEvidence) isSilent() bool { return s.silent > 1-minCoverage }

// isProvisional reports whether the need of a server is known, by answers of less than a week.
func (s *ServerEvidence) isProvisional() bool { return s.isKnown() && s.young }

// isYoung reports whether a time in Unix seconds lies less than a week before now.
func isYoung(since int64, now time.Time) bool {
	return now.Sub(time.Unix(since, 0)) < provisionalBefore
}

// lacksCache reports whether a slice that stretches requests has too little memory for the cache that they
// then use.
func (s *ServerEvidence) lacksCache(p *gpu.Profile, stretch float64) bool {
	return s.isKnown() && s.needAt(max(1, stretch)) > mostReserved*float64(p.MemoryBytes)
}

// HeldBytes returns the memory that was in use at most. Of a server it is what was used of the
// reservation, if that is known.
func (e *Evidence) HeldBytes() float64 {
	if e.Server.isKnown() {
		return e.Server.Need
	}

	return e.MemoryBytes
}

// predictServer returns what we expect of the server in a profile that stretches requests; nil if we do
// not know what it needs.
func (e *Evidence) predictServer(p *gpu.Profile, stretch float64) *PredictedServer {
	s := e.Server
	if !s.isKnown() {
		return nil
	}

	memory := float64(p.MemoryBytes)
	reserved := min(mostReserved*memory, s.Reservation)
	cache := reserved - s.Weights - s.Activations
	used := s.CacheUse * max(1, stretch) * s.CacheBytes

	predicted := &PredictedServer{
		CacheBytes: cache,
		CacheUse:   round3(used / cache),
		Waiting:    s.Waiting,
	}

	predicted.Flag, predicted.Value = s.flag(memory, reserved)
	if s.CacheTokens > 0 {
		predicted.CacheTokens = float64(int64(cache / (s.CacheBytes / s.CacheTokens)))
	}

	if used > cache {
		predicted.Waiting += round3(s.Running * max(1, stretch) * (1 - cache/used))
	}

	return predicted
}

// flag returns the flag, and its value, that makes a server reserve a part of a device's memory. SGLang's
// fraction leaves out activations; TensorRT-LLM's is a fraction of what weights and activations leave.
func (s *ServerEvidence) flag(memory, reserved float64) (name string, value float64) {
	name = flagOf(s.Kind)
	switch s.Kind {
	case gpu.ServerSGLang:
		return name, ceilCents((reserved - s.Activations) / memory)
	case gpu.ServerTriton:
		return name, ceilCents(
			(reserved - s.Weights - s.Activations) / (memory - s.Weights - s.Activations),
		)
	}

	return name, ceilCents(reserved / memory)
}

// flagOf returns the flag, or for Triton the parameter of the model's configuration, that sets what
// a server reserves.
//
// https://docs.vllm.ai/en/latest/configuration/engine_args.html
// https://docs.sglang.ai/advanced_features/server_arguments.html
// https://huggingface.co/docs/text-generation-inference/reference/launcher
// https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md
func flagOf(kind gpu.ServerKind) string {
	switch kind {
	case gpu.ServerVLLM:
		return "--gpu-memory-utilization"
	case gpu.ServerSGLang:
		return "--mem-fraction-static"
	case gpu.ServerTGI:
		return "--cuda-memory-fraction"
	case gpu.ServerTriton:
		return "kv_cache_free_gpu_mem_fraction"
	}

	return ""
}

// nameOf returns the name of a kind of servers in a sentence.
func nameOf(kind gpu.ServerKind) string {
	switch kind {
	case gpu.ServerVLLM:
		return "vLLM"
	case gpu.ServerSGLang:
		return "SGLang"
	case gpu.ServerTGI:
		return "TGI"
	case gpu.ServerTriton:
		return "Triton"
	}

	return "the server"
}

// serverAdvice returns how to start the server in the recommended slice, as an end of a sentence; "" if no
// server is known.
func (r *Recommendation) serverAdvice() string {
	if r.Predicted == nil || r.Predicted.Server == nil {
		return ""
	}

	s := r.Evidence.Server
	p := r.Predicted.Server

	return fmt.Sprintf(
		"; %s says of itself that at most %.0f %% of its cache is used, which makes %.1f of %.1f GiB: "+
			"start it there with %s=%.2f, which leaves %.1f GiB for the cache, %.0f %% of it used",
		nameOf(s.Kind),
		100*s.CacheUse,
		s.Need/(1<<30),
		s.Reservation/(1<<30),
		p.Flag,
		p.Value,
		p.CacheBytes/(1<<30),
		100*p.CacheUse,
	)
}

// explain returns sentences on a reservation: how much of it is needed, or how we could know that.
func (s *ServerEvidence) explain() string {
	text := fmt.Sprintf(
		"%s reserves %.1f GiB, whatever it needs",
		nameOf(s.Kind),
		s.Reservation/(1<<30),
	)
	if s.Fraction > 0 {
		text += fmt.Sprintf(" (%s=%.2f)", flagOf(s.Kind), s.Fraction)
	}

	if s.Weights == 0 {
		text += ". The memory of the model's weights is not known: set the pod's annotation " +
			"mig-exporter.io/model-memory, or restart one replica while it is observed"
	}

	switch {
	case s.isKnown():
		text += fmt.Sprintf(
			". Of that %.1f GiB are needed; a bolder answer follows once this has held for as long as the "+
				"first one needed",
			s.Need/(1<<30),
		)
	case s.Kind == "":
		text += ". How much of its cache is used is not known: --advise.server-metrics asks the server, if it " +
			"has metrics"
	case s.AskedHours == 0:
		text += ". It does not say how much of its cache is used"
	case s.isSilent():
		text += fmt.Sprintf(
			". How much of its cache is used is known for %.1f h, but a replica did not say it for %.3g %% of the "+
				"time that it held its device, or of %.3g h if that was shorter, and what it needed then is "+
				"unknown. At most %.0f %% is allowed: %s",
			s.AskedHours,
			100*s.silent,
			s.least,
			100*(1-minCoverage),
			s.remedy,
		)
	case s.Weights > 0:
		text += fmt.Sprintf(
			". How much of its cache is used is known for %.1f h, which is too short",
			s.AskedHours,
		)
	}

	if flag := flagOf(s.Kind); flag != "" {
		text += fmt.Sprintf(". %s is a fraction of the device: a slice needs another one", flag)
	}

	return text
}
