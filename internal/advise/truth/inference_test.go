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
	// the weights alone while it prepares, if it does, and then takes its cache.
	ramp int
	peak float64
}

const (
	// unsteadyCache is the share of the used cache that comes and goes with the lengths of requests,
	// steadyMinutes how long it stays.
	unsteadyCache = 0.15
	steadyMinutes = 20
	// crowding is how much more than in proportion requests are worked on at once under load: they
	// slow each other down.
	crowding = 0.5
	// defaultFraction is vLLM's --gpu-memory-utilization unless it is set.
	//
	// https://docs.vllm.ai/en/latest/configuration/engine_args.html
	defaultFraction = 0.9
)

// addInference makes half of the servers answer. It takes its random numbers from a source of its
// own. What no server says is not as the advisor assumes it: activations are up to 40 % of the
// weights, a start holds up to two and a half times as much, and not every one prepares.
func (w *workload) addInference() {
	r := rand.New(rand.NewPCG(w.seed, 0x1f3a))
	if w.kind != "server" || r.IntN(2) == 0 {
		return
	}

	w.kind = "answering-server"
	v := &inference{annotated: r.IntN(2) == 0, ramp: w.loading, peak: 1, weights: between(r, 0.1, 0.6) * w.taken}
	v.activations = min(0.4*v.weights, between(r, 0.3, 6))
	v.cache = between(r, 0.05, 0.9) * (w.taken - v.weights - v.activations)

	if r.IntN(3) == 0 { // in 32 bits, or before they are quantized
		v.peak = min(between(r, 1.3, 2.5), w.taken/v.weights)
	}

	if r.IntN(4) > 0 {
		w.loading += 5 + r.IntN(6)
	}

	w.says = v
	w.needGiB = func(minute int) float64 { return v.weights + v.activations + w.cacheUse(minute, 1) }
}

// memoryAfter returns the memory that a server holds some minutes after its start, in GiB. It is
// loading for the first of them, and then holds its reservation.
func (v *inference) memoryAfter(since, loading int, reservation float64) float64 {
	switch {
	case since >= loading || since < 0:
		return reservation
	case since >= v.ramp:
		return v.weights
	}

	return max(contextGiB, v.weights*v.peak*float64(since+1)/float64(v.ramp))
}

// minDevice returns the memory of the smallest device that a loaded server fits on, in GiB.
func (v *inference) minDevice() float64 { return (v.weights + v.activations) / defaultFraction }

// cacheUse returns how much cache a server uses if requests take stretch times as long, in GiB: in
// proportion to the requests that it works on at the same time.
func (w *workload) cacheUse(minute int, stretch float64) float64 {
	crowd := func(load float64) float64 { return load / (1 - crowding*min(1, load)) }
	load := w.demand(minute).Busy * stretch
	steady := minute / steadyMinutes * steadyMinutes

	return w.says.cache * crowd(load) / crowd(maxOffered) * (1 - unsteadyCache*w.random(steady, 9))
}

// observedNeed returns the memory in GiB of which the past shows that the workload needs it: of a
// server that says how much of its cache is used, all but the cache, which depends on the slice.
func (w *workload) observedNeed(minute int) float64 {
	if w.says == nil {
		return w.takes(minute)
	}

	return w.says.memoryAfter(minute-w.startedAt(minute), w.loading, w.says.minDevice())
}

// isUp reports whether a server has loaded its model that was moved in an earlier minute.
func (w *workload) isUp(minute, moved int) bool {
	return minute-max(w.startedAt(minute), moved) >= w.loading
}

// reservationOn returns what a server reserves of a device, in GiB: not more than on its whole GPU.
func (w *workload) reservationOn(device float64) float64 { return min(w.taken, defaultFraction*device) }

// roomIn returns what a reservation leaves for the cache, in GiB.
func (v *inference) roomIn(reservation float64) float64 {
	return reservation - v.weights - v.activations
}

// lacksCache reports whether requests that take stretch times as long wait for cache on a device of
// so many GiB.
func (w *workload) lacksCache(minute int, device, stretch float64) bool {
	return w.cacheUse(minute, stretch) > w.says.roomIn(w.reservationOn(device))
}

// reservation returns what the server of a slice reserves, in GiB.
func (s *slice) reservation() float64 {
	return s.work.reservationOn(float64(s.profile.MemoryBytes) / gib)
}

// answer adds what the inference servers on whole GPUs answer in a minute.
func (n *node) answer(s *gpu.Snapshot, minute int) {
	s.Servers = nil

	for i, w := range n.gpus {
		if w != nil && w.says != nil && w.isUp(minute, w.startedAt(minute)) {
			addAnswer(s, s.GPUs[i].Holders, w.cacheUse(minute, 1), w.says.roomIn(w.taken), w.fraction)
		}
	}
}

// answerIn adds what the inference servers in slices answer in a minute. Those that are killed when
// they start never answer.
func (n *node) answerIn(s *gpu.Snapshot, slices []slice, minute int) {
	s.Servers = nil

	for k := range slices {
		one := &slices[k]

		w := one.work
		if w.says == nil || !w.isUp(minute, one.moved) {
			continue
		}

		if _, killed := one.killedAfter(); killed {
			continue
		}

		stretch := kernels.Run(w.demand(minute), n.device(one.profile, one.loss)).Stretch
		addAnswer(s, s.GPUs[k].Instances[0].Holders, w.cacheUse(minute, stretch), w.says.roomIn(one.reservation()),
			defaultFraction)
	}
}

// addAnswer adds the answer of the server of a pod, with the cache that its requests could use and
// the room for it in GiB. Of a hundred requests those without room wait.
func addAnswer(s *gpu.Snapshot, holders []gpu.Holder, used, room, fraction float64) {
	if len(holders) == 0 {
		return
	}

	waiting := 100 * (1 - room/max(used, room))
	s.Servers = append(s.Servers, gpu.PodServer{PodUID: holders[0].PodUID, Time: s.Time, ServerFigures: gpu.ServerFigures{
		Kind: gpu.ServerVLLM, Fraction: gpu.Some(fraction), CacheUse: gpu.Some(min(1, used/room)),
		Running: gpu.Some(100 - waiting), Waiting: gpu.Some(waiting),
	}})
}

// shortage is for how much of its busy time a server's requests waited for cache.
type shortage struct {
	lacking, busy float64
	hour          struct {
		number, began int
		lacking, busy float64
	}
	began int // the first minute without cache of the first hour that lacked it too often; -1 if there was none
}

// maxShortage is the share of the busy time in which requests may wait for cache: the rest of p95.
const maxShortage = 0.05

// add adds a minute.
func (s *shortage) add(lacks bool, busy float64, minute int) {
	h := &s.hour
	if h.number != minute/60 {
		h.number = minute / 60
		h.lacking, h.busy = 0, 0
	}

	if h.lacking == 0 {
		h.began = minute
	}

	s.busy += busy
	h.busy += busy

	if lacks {
		s.lacking += busy
		h.lacking += busy
	}

	if minute%60 == 59 && s.began < 0 && h.lacking > maxShortage*h.busy {
		s.began = h.began
	}
}

// regret reports whether requests waited for cache too often.
func (s *shortage) regret() bool { return s.lacking > maxShortage*s.busy }
