package advise

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// reserve is what the inference server of a workload says of itself.
type reserve struct {
	Kind     gpu.ServerKind
	Last     int64   // when it answered last, in Unix seconds
	Fraction float64 // of the device that it is configured to take, 0-1; 0 if it does not say so
	Tokens   float64 // for which its cache has room; 0 if it does not say so
	Days     [keptDays]reserveDay
}

// reserveDay is what one day of UTC has seen of a server.
type reserveDay struct {
	Day                        int32   // since 1970; 0 is no day
	Asked                      float32 // seconds between answers that say how much of the cache is used
	CacheUse, Running, Waiting float32 // largest
	Requests, Served           float32 // requests that ended, and the seconds for which they were served
}

// serverSample is the last answer of the server on a device.
type serverSample struct {
	at               time.Time
	finished, served gpu.Opt[float64]
	full             time.Time // since when its cache is full and requests wait; zero if that is not so
}

// fullCache is the use of a cache from which on it is full.
const fullCache = 0.95

// isFull reports whether the cache of a server has been full for ten minutes, and requests waited,
// by its last answer.
func (s *serverSample) isFull(now time.Time) bool {
	return !s.full.IsZero() && s.at.Sub(s.full) >= 10*time.Minute && now.Sub(s.at) <= maxServerGap
}

// maxServerGap is the longest time between two answers of a server that counts as asked.
const maxServerGap = 2 * time.Minute

// today returns the sums of the day of a time.
func (r *reserve) today(now time.Time) *reserveDay {
	number := dayOf(now)

	d := &r.Days[slotOf(number)]
	if d.Day != number {
		*d = reserveDay{Day: number}
	}

	return d
}

// holdsSeveral reports whether a pod holds several whole GPUs and GPU instances, or parts of them:
// on which of them its inference server is, is not known.
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

// hintsHere returns the hints of a device's pod. What they say of a server holds for the only
// device of a pod.
func hintsHere(s *gpu.Snapshot, holders []gpu.Holder) gpu.RightsizingHints {
	hints := hintsOf(holders)
	if hints.ModelMemory.Present() && holdsSeveral(s, holders[0].PodUID) {
		hints.ModelMemory = gpu.None[uint64]()
	}

	return hints
}

// observeServers adds what the inference servers of pods with one device have answered since the
// Snapshot before.
func (a *Advisor) observeServers(s *gpu.Snapshot) {
	for i := range s.Servers {
		answer := &s.Servers[i]
		if holdsSeveral(s, answer.PodUID) {
			continue
		}

		for _, d := range a.order {
			if d.workload != nil && d.holder.UID == answer.PodUID && answer.PodUID != "" &&
				answer.Time.After(d.server.at) {
				if d.workload.Reserve == nil {
					d.workload.Reserve = &reserve{}
				}

				d.server = d.workload.Reserve.add(answer, d.server, a.now)
			}
		}
	}
}

// add adds an answer of a server, with the one before, and returns what to compare the next one
// with.
func (r *reserve) add(answer *gpu.PodServer, before serverSample, now time.Time) serverSample {
	r.Kind = answer.Kind
	r.Last = now.Unix()
	r.Fraction = answer.Fraction.Or(0)
	r.Tokens = answer.CacheTokens.Or(0)
	d := r.today(now)

	if use, ok := answer.CacheUse.Get(); ok {
		d.CacheUse = max(d.CacheUse, float32(use))
		if gap := answer.Time.Sub(before.at); !before.at.IsZero() && gap <= maxServerGap {
			d.Asked += float32(gap.Seconds())
		}
	}

	d.Running = max(d.Running, float32(answer.Running.Or(0)))
	d.Waiting = max(d.Waiting, float32(answer.Waiting.Or(0)))

	finished, ok := grown(before.finished, answer.FinishedRequests)

	served, known := grown(before.served, answer.ServiceSeconds)
	if ok && known {
		d.Requests += float32(finished)
		d.Served += float32(served)
	}

	next := serverSample{
		at:       answer.Time,
		finished: answer.FinishedRequests,
		served:   answer.ServiceSeconds,
	}
	if answer.CacheUse.Or(0) >= fullCache && answer.Waiting.Or(0) >= 1 {
		next.full = answer.Time
		if !before.full.IsZero() && answer.Time.Sub(before.at) <= maxServerGap {
			next.full = before.full
		}
	}

	return next
}

// sums are the days of the last keptDays added up.
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

// numbers returns all numbers, none of which can be negative.
func (r *reserve) numbers() []float64 {
	if r == nil {
		return nil
	}

	list := []float64{r.Fraction, r.Tokens, float64(r.Last)}
	for _, d := range r.Days {
		for _, v := range []float32{d.Asked, d.CacheUse, d.Running, d.Waiting, d.Requests, d.Served} {
			list = append(list, float64(v))
		}
	}

	return list
}

// reserves reports whether what the server holds is a reservation, whatever it needs. Triton itself
// takes memory as it needs it; its TensorRT-LLM backend has a cache.
func (r *reserve) reserves() bool {
	return r.Kind != "" && (r.Kind != gpu.ServerTriton || r.Tokens > 0)
}

// isFlat reports whether memory did not change since the end of the last start, which was seen.
func (w *workload) isFlat(e *Evidence) bool {
	least := float64(w.Starts.Least) * (1 << 20)
	return w.Starts.Seen > 0 && least > 0 && least >= flatShare*e.settledBytes
}

// flatShare is by how much memory may change that is flat.
const flatShare = 0.95

// mean returns a quotient; 0 if there is none.
func mean(sum, count float32) float64 {
	if count <= 0 {
		return 0
	}

	return round3(float64(sum) / float64(count))
}

// ceilCents rounds up to two decimals, as the flags of servers are written.
func ceilCents(v float64) float64 { return math.Ceil(v*100-1e-6) / 100 }
