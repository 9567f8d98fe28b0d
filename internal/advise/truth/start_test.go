package truth

import (
	"math/rand/v2"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// What pods do with memory when they start, by name.
const (
	startPlain    = "plain"        // it takes what it needs within a minute
	startFP32     = "fp32"         // weights are loaded in 32 bits, and then halved
	startEngine   = "engine build" // kernels are tried with larger and larger work spaces
	startAutotune = "autotune"     // compilation and autotuning: short peaks in no order
	startSlow     = "slow load"    // weights come from far away for most of an hour, the last ones beside a copy
)

// startNames lists them.
func startNames() []string {
	return []string{startPlain, startFP32, startEngine, startAutotune, startSlow}
}

// starting is how the pods of a workload start, and when. All of it is a pure function of the
// minute, as the rest of the workload is.
type starting struct {
	name    string
	minutes int     // that a start lasts
	peak    float64 // largest use of memory in it, as a multiple of what is needed afterwards
	// began is the minute in which the first pod that stays started, before 0 if the exporter came
	// later. A pod that stays is replaced every so many minutes; 0 for never.
	began, every int
}

// addStart draws how a workload starts. It takes its random numbers from a source of its own.
func (w *workload) addStart(m *model) {
	r := rand.New(rand.NewPCG(w.seed, 0x57a27))
	w.start = starting{name: startPlain, peak: 1, began: 1 + r.IntN(60)}

	if r.IntN(8) == 0 {
		w.start.began = -1 - r.IntN(60*dayMinutes)
	}

	if w.pods > 1 {
		w.start.began = 61 // after all others: in a scenario, its pod gets the devices that are free
	}

	if r.IntN(4) == 0 {
		w.start.every = (3 + r.IntN(7)) * dayMinutes
	}

	if w.loading > 0 {
		w.start.minutes = w.loading
	}

	if w.taken > 0 || w.shared || r.IntN(3) == 0 {
		return
	}

	s := &w.start
	switch s.name = startNames()[1+r.IntN(4)]; s.name {
	case startFP32:
		s.minutes, s.peak = 3+r.IntN(10), between(r, 1.6, 2)
	case startEngine:
		s.minutes, s.peak = 20+r.IntN(40), between(r, 1.3, 2.6)
	case startAutotune:
		s.minutes, s.peak = 5+r.IntN(15), between(r, 1.2, 2)
	case startSlow:
		s.minutes, s.peak = 20+r.IntN(40), between(r, 1, 1.3)
	}

	if w.lifetime > 0 {
		s.minutes = min(s.minutes, w.lifetime/3)
	}

	s.peak = max(1, min(s.peak, 0.95*m.gib/w.needGiB(0)))
}

// startedAt returns the minute in which the pod that runs in a minute started.
func (w *workload) startedAt(minute int) int {
	switch {
	case w.lifetime > 0:
		return minute - minute%(w.lifetime+w.pause)
	case w.start.every > 0:
		return minute - (minute-w.start.began)%w.start.every
	}

	return w.start.began
}

// startSeen reports whether a pod started while the workload was observed on its whole GPU.
func (w *workload) startSeen() bool {
	return w.lifetime > 0 || w.startedAt(observedMinutes-1) >= 0
}

// factor returns what a pod uses of memory some minutes after its start, as a multiple of what it
// needs afterwards.
func (s *starting) factor(w *workload, since int) float64 {
	if since >= s.minutes || since < 0 {
		return 1
	}

	done := float64(since+1) / float64(s.minutes)
	switch s.name {
	case startFP32:
		return s.peak * done
	case startEngine: // rounds of four minutes, each with a larger work space
		if since%4 != 3 && since != s.minutes-1 {
			return min(1, 4*done)
		}

		return max(min(1, 4*done), s.peak*(0.5+0.5*done))
	case startAutotune:
		if since == s.minutes/2 {
			return s.peak
		}

		return 1 + (s.peak-1)*w.random(since, 7)*0.9
	default:
		return s.peak * done
	}
}

// contextGiB is what a process that has loaded nothing yet takes.
const contextGiB = 0.3

// needAfter returns the memory that a pod needs in a minute, in GiB, if it started in another one.
func (w *workload) needAfter(minute, started int) float64 {
	return max(contextGiB, w.settledNeed(minute)*w.start.factor(w, minute-started))
}

// needMoved returns the memory that a slice must have for a pod in a minute, in GiB, if it was
// moved to it, and so started again, in an earlier one.
func (w *workload) needMoved(minute, moved int) float64 {
	started := max(w.startedAt(minute), moved)
	if w.says != nil {
		return w.says.memoryAfter(minute-started, w.loading, w.says.minDevice())
	}

	need := w.needAfter(minute, started)
	if w.fraction > 0 && minute-started >= w.loading {
		need /= w.fraction
	}

	return need
}

// backoff is how long a container that was killed waits for its next start, in minutes.
const backoff = 5

// killedAfter returns how many minutes after the move a pod is killed in a slice while it starts,
// and false if it comes up.
func (s *slice) killedAfter() (int, bool) {
	for minute := s.moved; minute <= s.moved+s.work.start.minutes; minute++ {
		if need := s.work.needMoved(minute, s.moved); need*gib+ownBytes > float64(s.profile.MemoryBytes) {
			return minute - s.moved, true
		}
	}

	return 0, false
}

// uses returns the memory in use in a slice in a minute, in bytes, and whether its container runs.
// One that is killed while it starts is started again, and killed again.
func (s *slice) uses(minute int) (bytes uint64, alive bool) {
	need := s.work.needMoved(minute, s.moved)

	after, killed := s.killedAfter()
	if killed {
		since := (minute - s.moved) % (after + backoff)
		if since >= after {
			return 0, false
		}

		need = s.work.needMoved(s.moved+since, s.moved)
	}

	if !killed && s.work.says != nil && s.work.isUp(minute, s.moved) {
		need = s.reservation()
	}

	return min(uint64(need*gib), s.profile.MemoryBytes), true
}

// movedHolders returns who holds a slice: a pod that is none of those on whole GPUs.
func (s *slice) movedHolders(number int) []gpu.Holder { return s.work.holders(s.index, 1000+number) }
