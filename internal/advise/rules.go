package advise

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// LinkFloor is the traffic in bytes per second up to which a link counts as unused.
const LinkFloor = linkFloor

const (
	// ContextBytes is the memory that the contexts of a process without data take at most.
	ContextBytes = contextMemory << 20
	// UnusedBytes is the memory that a device without any process shows at most.
	UnusedBytes = unusedMemory << 20
	// LoadedFrom is how many times as large memory of ContextBytes or less must become to show that
	// data was loaded.
	LoadedFrom = loadedFrom
)

// MinRead is the share of the time for which memory, the use of media engines and NVLink traffic must have
// been read: in the rest there may have been more.
const MinRead = 1 - rareShare

// ReservedShare is the share of a device's memory from which on flat memory may be a reservation.
const ReservedShare = reservedShare

// IdleShare is the busy time up to which a device counts as idle.
const IdleShare = idleShare

// Window is what we know of a whole GPU in a part of the time for which it was held. All windows of a
// Record have one length.
type Window struct {
	End time.Time
	// Busy, SM and DRAM are mean activities, 0-1. A window without Busy is a gap.
	Busy, SM, DRAM gpu.Opt[float64]
	Memory         gpu.Opt[float64] // largest use, in bytes
	LeastMemory    gpu.Opt[float64] // smallest use, in bytes; only of memory that may be a reservation
	// Engines are the media engines that were used. Other kinds were not.
	Engines []WindowEngines
}

// Record is the evidence on a whole GPU from a history that was kept elsewhere, for example by
// Prometheus. It follows the rules of an Advisor, with longer windows and one exception: the largest
// use of memory, the busiest ten minutes, the mean of busy time, the use of media engines and the
// coverage are of the whole history, not of its last eight days.
type Record struct {
	length   time.Duration
	workload workload
	end      time.Time // of the last window
	device   device    // only for the means over ten minutes

	// Of the whole history.
	held, observed float64             // seconds
	busy           float64             // integral over the observed seconds
	memory         float64             // largest, in bytes
	uses           []memoryUse         // of windows of which the smallest use is known
	busiest        float64             // largest mean over ten minutes
	engines        [mediaKinds]float64 // largest mean of a window
}

// NewRecord returns a Record without evidence, of a GPU that is held since a time. A window is whole
// minutes long. An observation counts half once it is as old as the history is long, or a week old if
// that is more: with a shorter half-life, a history of a month would forget a load that comes once a
// month.
func NewRecord(since time.Time, length, history time.Duration) *Record {
	days := max(history, halfLife).Hours() / 24

	return &Record{length: length, end: since, workload: workload{
		First: since, Last: since, Reference: since, halfLife: uint8(min(days, math.MaxUint8)),
	}}
}

// Add adds a window. Add windows in order; nothing held the GPU in the time between two of them.
func (r *Record) Add(v Window) {
	seconds := r.length.Seconds()
	if !v.End.Add(-r.length).Equal(r.end) {
		r.device = device{} // as for another holder
	}

	r.end = v.End
	r.held += seconds

	bytes, memoryOK := v.Memory.Get()
	r.memory = max(r.memory, bytes)

	if least, ok := v.LeastMemory.Get(); ok && memoryOK {
		r.uses = append(r.uses, memoryUse{end: v.End, least: least, most: bytes})
	}

	sum := window{held: seconds, memory: bytes / (1 << 20)}

	if busy, ok := v.Busy.Get(); ok {
		busy = min(max(busy, 0), 1)
		sum.observed = seconds
		sum.busy = busy * seconds
		sum.sm = min(v.SM.Or(busy), 1) * seconds
		sum.dram = min(v.DRAM.Or(busy), 1) * seconds

		unread := !v.SM.Present() || !v.DRAM.Present()
		if unread {
			sum.activityUnread = seconds
		} else {
			sum.measured = seconds
			sum.measuredBusy = sum.busy
			sum.measuredSM = sum.sm
			sum.measuredDRAM = sum.dram
		}

		if !memoryOK {
			sum.memoryUnread.add(busy, seconds)
		}

		r.observed += seconds
		r.busy += sum.busy
		r.device.addMinutes(int(r.length/time.Minute), minute{
			busy:    float32(busy),
			sm:      float32(sum.sm / seconds),
			dram:    float32(sum.dram / seconds),
			unread:  unread,
			engines: sum.meanEngines(),
		})
	}

	r.addEngines(&v, seconds)

	last := r.device.lastTenMinutes()
	r.busiest = max(r.busiest, float64(last.busy))
	r.workload.close(v.End, &sum, last)
}

// Facts returns what the evidence says at a time of a GPU with a total memory. The caller adds the traffic
// of links, and whether the use of media engines is known.
func (r *Record) Facts(now time.Time, totalBytes float64) *Facts {
	e := evidenceOf(&r.workload, now)
	e.MemoryBytes = r.memory
	e.flat = r.isFlat(now)
	e.Busy10Minutes = r.busiest
	e.KnownDays = round3(max(0, now.Sub(r.workload.First).Hours()/24))
	e.setMediaUse(r.mediaUse())

	if r.observed > 0 {
		e.BusyMean = r.busy / r.observed
		e.CoverageRatio = r.observed / r.held
	}

	return &Facts{
		Evidence:     &e,
		Preallocated: isPreallocated(&r.workload, &e, totalBytes),
		MemoryUnread: e.MemoryUnread,
	}
}

// memoryUse is the smallest and the largest use of memory in a window, in bytes.
type memoryUse struct {
	end         time.Time
	least, most float64
}

// flatWindows is the share of the windows in which memory must have been flat. It was not in those with a
// start, which a history does not show.
const flatWindows = 0.9

// isFlat reports whether memory has hardly changed in the last keptDays but for starts: whether it was near
// what it was at most in nine of ten windows.
func (r *Record) isFlat(now time.Time) bool {
	var most []float64

	recent := r.uses
	for len(recent) > 0 && now.Sub(recent[0].end) > keptDays*24*time.Hour {
		recent = recent[1:]
	}

	for _, u := range recent {
		most = append(most, u.most)
	}

	if len(most) == 0 {
		return false
	}

	slices.Sort(most)

	usual := most[int(flatWindows*float64(len(most)-1))]
	flat := 0

	for _, u := range recent {
		if u.least >= flatShare*usual {
			flat++
		}
	}

	return float64(flat) >= flatWindows*float64(len(recent))
}

// IsProvisional reports whether the evidence covers less than a week, see Recommendation.Provisional.
func (r *Record) IsProvisional(now time.Time) bool { return r.workload.isProvisional(now) }

// Summary returns a sentence on a reason for several GPUs. It leaves out numbers, which differ from GPU to
// GPU; Recommendation.Explanation has them.
func (r Reason) Summary(o Options) string {
	switch r {
	case ReasonLittleEvidence:
		return fmt.Sprintf("held and observed for less than %g h", o.MinEvidence.Hours())
	case ReasonLowCoverage:
		return fmt.Sprintf(
			"observed for less than %.0f %% of the time that it was held",
			100*minCoverage,
		)
	case ReasonPreallocated:
		return "its framework takes its memory in advance, and what it needs cannot be seen. " + preallocatedRemedy
	case ReasonStartUnseen:
		return "a smaller profile would do by what was observed, but no start was, which can need more " +
			"memory. " + startRemedy
	case ReasonMemory:
		return "no smaller profile has the memory that it needs with headroom and growth"
	}

	return fixedText(r)
}

// preallocatedRemedy says how to make the need for memory visible. The flags are those of flagOf, and of
// https://docs.jax.dev/en/latest/201/gpu-memory.html: JAX has no metrics, but can take memory as it needs it.
const preallocatedRemedy = "Limit it there (vLLM: --gpu-memory-utilization, SGLang: " +
	"--mem-fraction-static, TGI: --cuda-memory-fraction, TensorRT-LLM: " +
	"kv_cache_free_gpu_mem_fraction), or with JAX set XLA_PYTHON_CLIENT_PREALLOCATE=false, to let it be seen"

// Round3 rounds to three decimals: more would claim a precision that no evidence has.
func Round3(v float64) float64 { return round3(v) }
