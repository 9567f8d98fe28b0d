package fleet

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// The reasons that only a history in Prometheus has, besides those of package advise.
const (
	ReasonMIGMode      advise.Reason = "mig-mode"
	ReasonModelUnknown advise.Reason = "model-unknown"
	ReasonModelChanged advise.Reason = "model-changed"
	ReasonNoHistory    advise.Reason = "no-history"
	ReasonGone         advise.Reason = "gone"
)

// ReasonText returns a sentence on a reason.
func ReasonText(r advise.Reason) string {
	switch r {
	case ReasonMIGMode:
		return "the GPU was in MIG mode; migctl recommend judges its slices"
	case ReasonModelUnknown:
		return "the profiles of this model, or of this size of it, are not in the table that comes with migctl; migctl " +
			"recommend asks the driver"
	case ReasonModelChanged:
		return "the history names several models for it"
	case ReasonNoHistory:
		return "the history has neither its busy time nor its utilization, or not its memory"
	case ReasonGone:
		return "it has no sample in the last hour"
	case advise.ReasonLittleEvidence:
		return "held for less time than is needed"
	case advise.ReasonLowCoverage:
		return "the history has gaps of more than 5 % of the time"
	case advise.ReasonPreallocated:
		return "the framework takes all memory in advance, so what it needs cannot be seen; limit it there (vLLM: " +
			"--gpu-memory-utilization, JAX: XLA_PYTHON_CLIENT_MEM_FRACTION)"
	case advise.ReasonMemory:
		return "no smaller profile has the memory that it needs, with headroom and growth"
	}
	return r.Text()
}

// linkFloor is the traffic over NVLink in bytes per second up to which it counts as unused.
const linkFloor = 1 << 20

// preallocatedShare is the share of a GPU's memory from which on it counts as taken in advance, if it never changes.
const preallocatedShare = 0.7

// idleShare is the busy time up to which a GPU counts as idle.
const idleShare = 0.001

// summarize judges a GPU.
func (s *survey) summarize(g *device) GPU {
	h := g.history
	if !s.holdersKnown[g.cluster] {
		h.holdAlways()
	}
	answer := GPU{
		UUID: g.uuid, Cluster: g.cluster, Node: g.node, Model: shortName(g.name), Exporter: g.dialect.name,
		Namespace: h.mainNamespace(), Namespaces: len(h.namespaces), Action: advise.ActionKeep,
	}
	s.mu.Lock()
	known, ok := s.models.find(g.name, h.total)
	s.mu.Unlock()
	observed := h.observe()
	answer.ObservedHours, answer.HeldHoursPerWeek = observed.hours(), observed.heldPerWeek(s.options.Window)
	switch {
	case h.mig:
		answer.Reason = ReasonMIGMode
		return answer
	case g.names > 1:
		answer.Reason = ReasonModelChanged
		return answer
	case !ok:
		answer.Reason = ReasonModelUnknown
		return answer
	case !h.isSeen():
		answer.Reason = ReasonNoHistory
		return answer
	case h.isGone():
		answer.Reason = ReasonGone
		return answer
	case observed.held == 0:
		answer.Action, answer.Namespace = advise.ActionFree, ""
		return answer
	case math.IsNaN(largestOf(h.heldMemory())):
		answer.Reason = ReasonNoHistory
		return answer
	}
	facts := h.facts(observed)
	whole := gpuOf(&known, h.total)
	answer.model = known
	answer.fill(facts, math.IsNaN(h.nvlink), advise.Choose(whole, facts, s.options.Advise))
	answer.Provisional = answer.Action == advise.ActionSlice && observed.span < 7*24*time.Hour-hour
	return answer
}

// observation is which steps of a history count.
type observation struct {
	steps []int // those in which the GPU was held and its busy time is known
	held  int   // steps in which it was held, gaps between two of them included
	span  time.Duration
}

func (o *observation) hours() float64 { return (time.Duration(len(o.steps)) * step).Hours() }

func (o *observation) heldPerWeek(window time.Duration) float64 {
	return (time.Duration(o.held) * step).Hours() * (7 * 24) / window.Hours()
}

// observe finds the steps that count. A step without any sample between two in which the GPU was held is a gap.
func (h *history) observe() *observation {
	o := &observation{}
	first, last := slices.Index(h.held, true), -1
	for at, held := range h.held {
		if held {
			last = at
		}
	}
	if first < 0 {
		return o
	}
	for at := first; at <= last; at++ {
		known := !isNaN(h.busy[at])
		if h.held[at] && known {
			o.steps = append(o.steps, at)
		}
		if h.held[at] || !known {
			o.held++
		}
	}
	o.span = time.Duration(len(h.held)-first) * step
	return o
}

// holdAlways takes a GPU for held whenever it is seen: there is no telling.
func (h *history) holdAlways() {
	for at, v := range h.busy {
		h.held[at] = !isNaN(v)
	}
}

// isGone reports whether nothing is known of the last hour.
func (h *history) isGone() bool {
	for _, v := range h.busy[len(h.busy)-min(len(h.busy), int(hour/step)):] {
		if !isNaN(v) {
			return false
		}
	}
	return true
}

// mainNamespace returns the namespace that held the GPU for the longest time.
func (h *history) mainNamespace() string {
	best, most := "", 0
	for name, count := range h.namespaces {
		if count > most || count == most && name < best {
			best, most = name, count
		}
	}
	return best
}

// heldMemory returns the largest use of memory in each hour in which the GPU was held, NaN for the other hours.
func (h *history) heldMemory() []float64 {
	held := slices.Clone(h.memory)
	for at := range held {
		from := at * int(hour/step)
		if !slices.Contains(h.held[from:min(from+int(hour/step), len(h.held))], true) {
			held[at] = math.NaN()
		}
	}
	return held
}

// largestOf returns the largest value, NaN if none is known.
func largestOf(values []float64) float64 {
	largest := math.NaN()
	for _, v := range values {
		if !(v <= largest) && !math.IsNaN(v) {
			largest = v
		}
	}
	return largest
}

// facts returns what decides over the GPU.
func (h *history) facts(o *observation) *advise.Facts {
	memory := h.heldMemory()
	e := &advise.Evidence{
		Since:         h.start.Add(time.Duration(slices.Index(h.held, true)) * step),
		ObservedHours: o.hours(),
		CoverageRatio: float64(len(o.steps)) / float64(o.held),
		MemoryBytes:   largestOf(memory),
		MemoryTrend:   memoryTrend(h.start, memory),
		MediaUnread:   len(h.media) < 4,
	}
	for _, engine := range []string{"encoder", "decoder", "jpeg", "ofa"} {
		if h.media[engine] > 0 {
			e.MediaEngines = append(e.MediaEngines, engine)
		}
	}
	var busy, widths, bandwidths []weighted
	unread := 0
	for _, at := range o.steps {
		share := float64(h.busy[at])
		busy = append(busy, weighted{share, 1})
		e.BusyMean += share / float64(len(o.steps))
		e.Busy10Minutes = max(e.Busy10Minutes, share)
		if isNaN(h.sms[at]) || isNaN(h.bandwidth[at]) {
			unread++
		}
		if share > 0 {
			widths = append(widths, weighted{usedWhileBusy(h.sms[at], share), share})
			bandwidths = append(bandwidths, weighted{usedWhileBusy(h.bandwidth[at], share), share})
		}
	}
	e.BusyP50, e.BusyP99 = quantile(busy, 0.5), quantile(busy, 0.99)
	e.Median = advise.Kernels{Width: quantile(widths, 0.5), Bandwidth: quantile(bandwidths, 0.5)}
	e.P95 = advise.Kernels{Width: quantile(widths, 0.95), Bandwidth: quantile(bandwidths, 0.95)}
	return &advise.Facts{
		Evidence: e, Shared: h.shared, MultiGPU: h.multi, NVLink: h.nvlink > linkFloor,
		Preallocated:   isPreallocated(memory, h.total),
		ActivityUnread: float64(unread) > 0.05*float64(len(o.steps)),
	}
}

// usedWhileBusy returns what kernels use while they run; all of it if that is unknown.
func usedWhileBusy(used float32, busy float64) float64 {
	if isNaN(used) {
		return 1
	}
	return min(float64(used)/busy, 1)
}

// weighted is a value and what it counts.
type weighted struct{ value, weight float64 }

// quantile returns the smallest value that a share q of the weight does not exceed, 0 if there is none. It sorts the
// values.
func quantile(values []weighted, q float64) float64 {
	slices.SortFunc(values, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	total, sum := 0., 0.
	for _, v := range values {
		total += v.weight
	}
	for _, v := range values {
		if sum += v.weight; sum >= q*total*(1-1e-9) {
			return v.value
		}
	}
	return 0
}

// memoryTrend returns by how many bytes a day the daily maxima grow, by least squares; 0 if there are fewer than
// three days. memory is by hour from a time on.
func memoryTrend(start time.Time, memory []float64) float64 {
	days := map[int64]float64{}
	for at, v := range memory {
		if v > 0 {
			day := start.Add(time.Duration(at)*hour).Unix() / (24 * 60 * 60)
			days[day] = max(days[day], v)
		}
	}
	var n, sx, sy, sxx, sxy float64
	first := start.Unix() / (24 * 60 * 60)
	for _, day := range slices.Sorted(maps.Keys(days)) {
		x, y := float64(day-first), days[day]
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if n < 3 {
		return 0
	}
	return max(0, (n*sxy-sx*sy)/(n*sxx-sx*sx))
}

// isPreallocated reports whether nearly all memory of a GPU was taken in nearly every hour that is known.
func isPreallocated(memory []float64, total float64) bool {
	largest := largestOf(memory)
	known, full := 0, 0
	for _, v := range memory {
		if math.IsNaN(v) {
			continue
		}
		known++
		if v >= 0.95*largest {
			full++
		}
	}
	return largest >= preallocatedShare*total && float64(full) >= 0.95*float64(known)
}
