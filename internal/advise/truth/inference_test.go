package truth

import (
	"math/rand/v2"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
)

// inference is an inference server that says how much of its cache is used, and how it divides the
// memory that it reserves, in GiB.
type inference struct {
	weights, activations float64
	cache                float64 // that requests use at the load that the GPU is there for
	annotated            bool    // its pods carry the size of the weights
	// ramp is how many minutes it loads weights. It holds peak times as much memory at the end, then
	// the weights alone while it prepares, and then takes its cache.
	ramp int
	peak float64
}

const (
	// unsteadyCache is the share of the used cache that comes and goes with the lengths of requests.
	unsteadyCache = 0.15
	// defaultFraction is vLLM's --gpu-memory-utilization unless it is set.
	//
	// https://docs.vllm.ai/en/latest/configuration/engine_args.html
	defaultFraction = 0.9
)

// addInference makes half of the servers such that answer. It takes its random numbers from a
// source of its own.
func (w *workload) addInference() {
	r := rand.New(rand.NewPCG(w.seed, 0x1f3a))
	if w.kind != "server" || r.IntN(2) == 0 {
		return
	}

	w.kind = "answering-server"
	v := &inference{annotated: r.IntN(2) == 0, ramp: w.loading, peak: 1, weights: between(r, 0.1, 0.75) * w.taken}
	v.activations = max(0.3, between(r, 0.02, 0.12)*v.weights)
	v.cache = between(r, 0.05, 0.9) * (w.taken - v.weights - v.activations)

	if r.IntN(3) == 0 { // in 32 bits, or before they are quantized
		v.peak = min(between(r, 1.3, 2), w.taken/v.weights)
	}

	w.loading += 5 + r.IntN(6)
	w.says = v
	w.needGiB = func(minute int) float64 { return v.weights + v.activations + w.cacheUse(minute) }
}

// takes returns the memory that a server takes some minutes after its start, in GiB, if it is up
// after so many and then reserves so much.
func (v *inference) takes(since, loading int, reservation float64) float64 {
	switch {
	case since >= loading || since < 0:
		return reservation
	case since >= v.ramp:
		return v.weights
	}

	return max(contextGiB, v.weights*v.peak*float64(since+1)/float64(v.ramp))
}

// least returns the memory of the smallest device that a server starts on, in GiB, once it is
// loaded.
func (v *inference) least() float64 { return (v.weights + v.activations) / defaultFraction }

// cacheUse returns how much of its cache a server uses on its whole GPU, in GiB: as much as it works
// on at the same time.
func (w *workload) cacheUse(minute int) float64 {
	return w.says.cache * min(1, w.demand(minute).Busy/maxOffered) * (1 - unsteadyCache*w.random(minute, 9))
}

// shows returns the memory in GiB of which the past shows that the workload needs it: of a server
// that says how much of its cache is used, all but the cache, which depends on the slice.
func (w *workload) shows(minute int) float64 {
	if w.says == nil {
		return w.takes(minute)
	}

	return w.says.takes(minute-w.startedAt(minute), w.loading, w.says.least())
}

// isUp reports whether a server answers that was moved in an earlier minute.
func (w *workload) isUp(minute, moved int) bool {
	return minute-max(w.startedAt(minute), moved) >= w.loading
}

// reserves returns what a server reserves of a device in GiB: not more than on its whole GPU.
func (w *workload) reserves(device float64) float64 { return min(w.taken, defaultFraction*device) }

// cacheIn returns how much of its cache a server uses if requests take longer, and how much it has,
// in GiB.
func (w *workload) cacheIn(minute int, reservation float64, on kernels.Device) (used, room float64) {
	used = w.cacheUse(minute) * kernels.Run(w.demand(minute), on).Stretch
	return used, reservation - w.says.weights - w.says.activations
}

// lacksCache reports whether requests wait for cache on a device in a minute.
func (w *workload) lacksCache(minute int, device float64, on kernels.Device) bool {
	used, room := w.cacheIn(minute, w.reserves(device), on)
	return used > room
}

// reservation returns what the server of a slice reserves, in GiB.
func (s *slice) reservation() float64 { return s.work.reserves(float64(s.profile.MemoryBytes) / gib) }

// answer adds what the inference servers of a node answer in a minute.
func (n *node) answer(s *gpu.Snapshot, minute int) {
	s.Servers = nil

	for i, w := range n.gpus {
		if w != nil && w.says != nil && w.isUp(minute, w.startedAt(minute)) {
			used, room := w.cacheIn(minute, w.taken, n.wholeDevice())
			addAnswer(s, s.GPUs[i].Holders, used, room, w.fraction)
		}
	}
}

// answerIn adds what those in slices answer in a minute.
func (n *node) answerIn(s *gpu.Snapshot, slices []slice, minute int) {
	s.Servers = nil

	for k := range slices {
		one := &slices[k]
		if one.work.says == nil || !one.work.isUp(minute, one.moved) {
			continue
		}

		if _, alive := one.uses(minute); !alive {
			continue
		}

		used, room := one.work.cacheIn(minute, one.reservation(), n.device(one.profile, one.loss))
		addAnswer(s, s.GPUs[k].Instances[0].Holders, used, room, defaultFraction)
	}
}

// addAnswer adds the answer of the server of a pod that could use so much cache, and has so much.
// Of a hundred requests those that have no room in it wait.
func addAnswer(s *gpu.Snapshot, holders []gpu.Holder, used, room, fraction float64) {
	if len(holders) == 0 {
		return
	}

	waiting := max(0, 100*(1-room/max(used, room)))
	s.Servers = append(s.Servers, gpu.PodServer{PodUID: holders[0].PodUID, Time: s.Time, ServerFigures: gpu.ServerFigures{
		Kind: gpu.ServerVLLM, Fraction: gpu.Some(fraction), CacheUse: gpu.Some(min(1, used/room)),
		Running: gpu.Some(100 - waiting), Waiting: gpu.Some(waiting),
	}})
}

// shortage is for how much of its busy time a server's requests waited for cache.
type shortage struct {
	lacking, busy float64
	hour          struct {
		lacking, busy float64
		began         int
	}
	began int // the first minute without cache of the first hour that lacked it too often; -1 if there was none
}

// maxShortage is the share of the busy time in which requests may wait for cache: the rest of p95.
const maxShortage = 0.05

// add adds a minute.
func (s *shortage) add(lacks bool, busy float64, minute int) {
	if s.hour.lacking == 0 {
		s.hour.began = minute
	}

	s.busy += busy
	s.hour.busy += busy

	if lacks {
		s.lacking += busy
		s.hour.lacking += busy
	}

	if minute%60 != 59 {
		return
	}

	if s.began < 0 && s.hour.lacking > maxShortage*s.hour.busy {
		s.began = s.hour.began
	}

	s.hour.lacking, s.hour.busy = 0, 0
}

// regret reports whether requests waited for cache too often.
func (s *shortage) regret() bool { return s.lacking > maxShortage*s.busy }
