package advise

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// reserve is what the inference server of a workload says of itself, and of the memory that it reserves.
type reserve struct {
	Kind gpu.ServerKind
	Last int64 // when it answered last, in Unix seconds
	// Since is when a server of this kind answered first; 0 in evidence of older versions, which did
	// not count for how long servers were silent. Until is the latest of all answers.
	Since, Until int64
	Fraction     float64 // of the device's memory that it is configured to take, 0-1; 0 if it does not say
	Tokens       float64 // that its cache has room for; 0 if it does not say
	Days         [keptDays]reserveDay
	Replicas     []serverReplica // each pod of the last keptDays, see replica
}

// reserveDay is what one day of UTC has seen of a server.
type reserveDay struct {
	Day int32 // since 1970; 0 is no day
	// Asked are the seconds between answers that say how much of the cache is used. Those of several
	// replicas at once count once.
	Asked                      float32
	CacheUse, Running, Waiting float32 // largest
	Requests, Served           float32 // requests that ended, and for how many seconds in sum
}

// serverSample is the last answer of the server on a device.
type serverSample struct {
	at               time.Time
	kind             gpu.ServerKind
	finished, served gpu.Opt[float64]
	full             time.Time // since when its cache is full and requests wait; zero if that is not so
}

const (
	// fullCache is the use of a cache from which on it is full.
	fullCache = 0.95
	// fullFor is how long a cache must be full, and requests wait, before we call the slice too small.
	fullFor = 10 * time.Minute
	// minServerGap is the least Options.serverGap: servers are asked less often than GPUs are read.
	minServerGap = 2 * time.Minute
)

// serverGap returns the longest time between two answers of a server for which we take it to have gone on
// as they say. We see one answer a Snapshot at most.
func (o *Options) serverGap() time.Duration { return max(minServerGap, o.MaxGap) }

// isFull reports whether the cache of a server has been full for fullFor, and requests waited, by an answer
// that is not older than a gap.
func (s *serverSample) isFull(now time.Time, gap time.Duration) bool {
	return !s.full.IsZero() && s.at.Sub(s.full) >= fullFor && now.Sub(s.at) <= gap
}

// today returns the sums of the current day.
func (r *reserve) today(now time.Time) *reserveDay {
	number := dayOf(now)

	d := &r.Days[slotOf(number)]
	if d.Day != number {
		*d = reserveDay{Day: number}
	}

	return d
}

// holdsSeveral reports whether a pod holds several whole GPUs or GPU instances, or parts of several: then
// we do not know which of them its inference server uses.
func holdsSeveral(s *gpu.Snapshot, uid string) bool {
	var first gpu.Visit

	for d := range s.Devices() {
		if !slices.ContainsFunc(d.Holders, func(h gpu.Holder) bool { return h.PodUID == uid }) {
			continue
		}

		if first.GPU != nil && (d.GPU != first.GPU || d.Instance != first.Instance) {
			return true
		}

		first = d
	}

	return false
}

// hintsHere returns the hints of a device's pod. It drops what they say of a server if the pod has several
// devices.
func hintsHere(s *gpu.Snapshot, holders []gpu.Holder) gpu.RightsizingHints {
	hints := hintsOf(holders)
	if hints.ModelMemory.Present() && holdsSeveral(s, holders[0].PodUID) {
		hints.ModelMemory = gpu.None[uint64]()
	}

	return hints
}

// observeServers adds what the inference servers of pods with one device have answered since the
// Snapshot before, and for how long their pods have held the devices.
func (a *Advisor) observeServers(s *gpu.Snapshot, passed passedTime) {
	a.holdServers(passed)

	for i := range s.Servers {
		answer := &s.Servers[i]
		if answer.PodUID == "" || holdsSeveral(s, answer.PodUID) {
			continue
		}

		// The clock was set back since the server answered: the next answer has the right time.
		if answer.Time.Sub(a.now) > a.options.serverGap() {
			continue
		}

		for _, d := range a.order {
			isHeld := d.workload != nil && d.holder.UID == answer.PodUID
			if !isHeld || !answer.Time.After(d.server.at) {
				continue
			}

			d.server = a.addAnswer(d.workload, answer, d.server)
		}
	}
}

// addAnswer adds an answer of a server, see reserve.add. What another kind of server has said before, and
// what its starts have shown of its model, is dropped.
func (a *Advisor) addAnswer(w *workload, answer *gpu.PodServer, before serverSample) serverSample {
	if w.Reserve == nil {
		w.Reserve = &reserve{}
	}

	if kind := w.Reserve.Kind; kind != "" && kind != answer.Kind {
		*w.Reserve = reserve{}
		w.Starts.forgetLoads()
	}

	if before.kind != answer.Kind {
		before = serverSample{}
	}

	inRow := !before.at.IsZero() && answer.Time.Sub(before.at) <= a.options.serverGap()

	return w.Reserve.add(answer, before, inRow, a.now)
}

// add adds an answer of a server, and the time since the sample before if the two are in a row. Counters
// count by how much they have grown since then; the result is the sample for the next answer.
func (r *reserve) add(answer *gpu.PodServer, before serverSample, inRow bool, now time.Time) serverSample {
	r.Kind = answer.Kind
	r.Last = now.Unix()
	r.Fraction = answer.Fraction.Or(0)
	r.Tokens = answer.CacheTokens.Or(0)

	if r.Since == 0 {
		r.Since = now.Unix()
	}

	d := r.today(now)
	if use, ok := answer.CacheUse.Get(); ok {
		d.CacheUse = max(d.CacheUse, float32(use))

		if inRow {
			r.replica(answer.PodUID, now).today(now).Asked += float32(answer.Time.Sub(before.at).Seconds())
			d.Asked += float32(max(0, answer.Time.Unix()-max(before.at.Unix(), r.Until)))
		}

		r.Until = max(r.Until, answer.Time.Unix())
	}

	d.Running = max(d.Running, float32(answer.Running.Or(0)))
	d.Waiting = max(d.Waiting, float32(answer.Waiting.Or(0)))

	finished, finishedOK := grown(before.finished, answer.FinishedRequests)
	served, servedOK := grown(before.served, answer.ServiceSeconds)

	if finishedOK && servedOK {
		d.Requests += float32(finished)
		d.Served += float32(served)
	}

	next := serverSample{
		at:       answer.Time,
		kind:     answer.Kind,
		finished: answer.FinishedRequests,
		served:   answer.ServiceSeconds,
	}

	if answer.CacheUse.Or(0) >= fullCache && answer.Waiting.Or(0) >= 1 {
		next.full = answer.Time
		if inRow && !before.full.IsZero() {
			next.full = before.full // it has been full since then
		}
	}

	return next
}

// sums adds up the last keptDays days.
func (r *reserve) sums(now time.Time) reserveDay {
	var all reserveDay

	for _, d := range r.Days {
		if d.Day <= dayOf(now)-keptDays {
			continue
		}

		all.Asked += d.Asked
		all.CacheUse = max(all.CacheUse, d.CacheUse)
		all.Running = max(all.Running, d.Running)
		all.Waiting = max(all.Waiting, d.Waiting)
		all.Requests += d.Requests
		all.Served += d.Served
	}

	return all
}

// numbers returns all numbers for workload.numbers.
func (r *reserve) numbers() []float64 {
	if r == nil {
		return nil
	}

	list := []float64{r.Fraction, r.Tokens, float64(r.Last), float64(r.Since), float64(r.Until)}
	for _, d := range r.Days {
		list = appendNumbers(list, d.Asked, d.CacheUse, d.Running, d.Waiting, d.Requests, d.Served)
	}

	for i := range r.Replicas {
		for _, t := range r.Replicas[i].Days {
			list = appendNumbers(list, t.Held, t.Asked)
		}
	}

	return list
}

// reserves reports whether the server reserves memory, however much it needs. Triton itself takes memory
// as it needs it, but its TensorRT-LLM backend has a cache.
func (r *reserve) reserves() bool {
	return r.Kind != "" && (r.Kind != gpu.ServerTriton || r.Tokens > 0)
}

// isFlat reports whether memory has not changed since the end of the last start. It is false if we have
// seen no start.
func (w *workload) isFlat(e *Evidence) bool {
	least := float64(w.Starts.Least) * (1 << 20)
	return w.Starts.seen() > 0 && least > 0 && least >= flatShare*e.settledBytes
}

// flatShare is the share of its largest use that memory stays above if it is flat.
const flatShare = 0.95

// mean returns sum / count, rounded to three decimals; 0 if nothing was counted.
func mean(sum, count float32) float64 {
	if count <= 0 {
		return 0
	}

	return round3(float64(sum) / float64(count))
}

// ceilCents rounds up to two decimals, as operators write the flags of servers. 0.28 stays 0.28, although
// 100 times that is a little more than 28 in binary.
func ceilCents(v float64) float64 { return math.Ceil(v*100-1e-6) / 100 }
