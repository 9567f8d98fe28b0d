package fleet

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Report has the recommendations for a fleet.
type Report struct {
	APIVersion  string    `json:"apiVersion"`
	Prometheus  string    `json:"prometheus"`
	Time        time.Time `json:"time"` // the end of the window
	WindowHours float64   `json:"windowHours"`
	Nodes       int       `json:"nodes"`
	// Groups sum up the GPUs by cluster, model and namespace.
	Groups []Group `json:"groups"`
	// Totals sum them up by cluster and model: the slices of all namespaces are packed together.
	Totals []Group `json:"totals"`
	Fleet  Group   `json:"fleet"` // the sum of Totals
	GPUs   []GPU   `json:"gpus"`
	// Notes say what we could not see, and how reliable the recommendations are.
	Notes []string `json:"notes"`

	options advise.Options
}

// ReasonText returns a sentence that explains a reason.
func (r *Report) ReasonText(reason advise.Reason) string { return ReasonText(reason, r.options) }

// Group sums up the recommendations for the GPUs of one kind.
type Group struct {
	Cluster   string `json:"cluster"`
	Model     string `json:"model"`
	Namespace string `json:"namespace"` // the one that held the GPUs longest; empty if none did
	GPUs      int    `json:"gpus"`
	// Slices counts the GPUs whose workload could run in a slice.
	Slices int `json:"slices"`
	// Final counts those of Slices that are neither Provisional nor NotChecked. What follows is of
	// these alone, as migctl recommend moves no others.
	Final int `json:"-"`
	// FreedGPUs is how many fewer GPUs these workloads need if they run in slices.
	FreedGPUs int `json:"freedGpus"`
	// FreedByAll is the same with the slices that are not final.
	FreedByAll int `json:"-"`
	// GPUHoursPerWeek is how many hours a week the freed GPUs are held today.
	GPUHoursPerWeek float64 `json:"gpuHoursPerWeek"`
	// CostPerWeek is the price of these hours; absent without a price.
	CostPerWeek *float64 `json:"costPerWeek,omitempty"`
	// These are included in Slices, and a slice can be several of them: Provisional have evidence that is not
	// complete yet, NotChecked a profile that lacks media engines whose use we cannot read, Idle were held but
	// ran no kernel.
	Provisional int `json:"provisional,omitempty"`
	NotChecked  int `json:"mediaNotChecked,omitempty"`
	Idle        int `json:"idle,omitempty"`
	// Share counts the GPUs that workloads fill, but seldom: such workloads could share a GPU, but
	// not run in a slice.
	Share int `json:"share,omitempty"`
	// Reasons count the GPUs that stay as they are; "free" are those that nothing held.
	Reasons map[advise.Reason]int `json:"reasons,omitempty"`
}

// ReasonFree counts GPUs that nothing held.
const ReasonFree advise.Reason = "free"

// GPU is the recommendation for one GPU.
type GPU struct {
	UUID      string `json:"uuid"`
	Cluster   string `json:"cluster,omitempty"`
	Node      string `json:"node,omitempty"`
	Model     string `json:"model"`
	Exporter  string `json:"exporter"`
	Namespace string `json:"namespace,omitempty"`
	// Namespaces is how many namespaces held it.
	Namespaces int `json:"namespaces"`
	// Owner owns the pod that held it last: "vision/Deployment/resnet". It is empty if it is unknown.
	Owner string `json:"owner,omitempty"`
	// ByReplica says that another replica of the owner decided, see alignReplicas.
	ByReplica bool          `json:"byReplica,omitempty"`
	Action    advise.Action `json:"action"`
	Reason    advise.Reason `json:"reason,omitempty"`
	// Explanation is a sentence that says why.
	Explanation string `json:"explanation,omitempty"`
	Profile     string `json:"recommendedProfile,omitempty"`
	// Decided is the figure of the slice that is nearest to its limit.
	Decided *advise.Decided `json:"decidedBy,omitempty"`
	// Gain is how much the slice saves if it is packed with all final slices of the cluster and
	// model; absent if it is not final itself.
	Gain *advise.Gain `json:"gain,omitempty"`
	// Provisional and NotChecked: see advise.Recommendation.
	Provisional bool `json:"provisional,omitempty"`
	// Advised says that the right-sizing advisor of the GPU's node decided.
	Advised    bool `json:"advised,omitempty"`
	NotChecked bool `json:"mediaNotChecked,omitempty"`
	// Idle says that it was held, no kernel ran on it, and no media engine was seen in use. With
	// NotChecked, some engines were not read.
	Idle bool `json:"idle,omitempty"`
	// StretchP95 is absent if nothing ran on the GPU.
	StretchP95 *advise.Stretch `json:"stretchP95,omitempty"`

	ObservedHours    float64 `json:"observedHours"` // while it was held
	HeldHoursPerWeek float64 `json:"heldHoursPerWeek"`
	Coverage         float64 `json:"coverageRatio,omitempty"`
	BusyMean         float64 `json:"busyMeanRatio,omitempty"`
	BusyP99          float64 `json:"busyP99Ratio,omitempty"`
	BusyMax          float64 `json:"busyMax10MinutesRatio,omitempty"`
	// Kernels is absent if nothing ran, or if the activity of SMs and DRAM is not in the history.
	Kernels     *advise.Kernels `json:"kernelsP95,omitempty"`
	MemoryBytes float64         `json:"memoryMaxBytes,omitempty"`
	MemoryTrend float64         `json:"memoryTrendBytesPerDay,omitempty"`
	// MediaUse says how many media engines of each kind were used. P99 is over the largest samples
	// of five minutes each; the busiest time is the five minutes with the largest mean.
	MediaUse []advise.MediaUse `json:"mediaUse,omitempty"`
	// Server is the report of the inference server in its pods, if Prometheus scrapes that.
	Server *advise.ServerEvidence `json:"server,omitempty"`
	// StartWith says how to start the server in the slice.
	StartWith *advise.PredictedServer `json:"predictedServer,omitempty"`
	// ActivityUnread says that SM or DRAM activity is not in the history for long enough, NVLinkUnread
	// that the traffic of NVLink is not, in both directions.
	ActivityUnread bool `json:"activityUnread,omitempty"`
	NVLinkUnread   bool `json:"nvlinkUnread,omitempty"`

	model   mig.Model
	byLabel bool // only labels or an owner show that its pod is part of a job
	// fits is the profile that would do by the history, kept when the node's advisor says that it
	// gains nothing, or that the GPU is gone; else empty. fitsIsDoubtful and fitsNotChecked say why it is not
	// final.
	fits                           string
	fitsIsDoubtful, fitsNotChecked bool
	// refusedThere is why what held a GPU that is gone needed it whole, if that is known; else empty.
	refusedThere advise.Reason
	whyThere     string
	// pod is the one that held it last. hasLeft says that it had the GPU no more in its last hour with
	// samples, or that the GPU is gone for a day.
	pod     podKey
	hasLeft bool
	// hadOthers says that the evidence is without what pods did that are known to be of other owners.
	hadOthers bool
	// isYoung says that the evidence is of less than a week, or of too few days of it.
	isYoung bool
	// bridgeUnread says that an NVLink bridge may connect the GPU, of which nothing was read.
	bridgeUnread bool
}

// isFinal reports whether a slice would do, and nothing more is to be learned first.
func (g *GPU) isFinal() bool {
	return g.Action == advise.ActionSlice && g.whyNotFinal() == advise.ReasonNone
}

// whyNotFinal returns why a slice is not final, by the rule of an Advisor.
func (g *GPU) whyNotFinal() advise.Reason { return advise.WhyNotFinal(g.Provisional, g.NotChecked) }

// addEvidence fills in the evidence and r, the recommendation that follows from it.
func (g *GPU) addEvidence(f *advise.Facts, nvlinkUnread bool, r advise.Recommendation) {
	e := f.Evidence
	round := advise.Round3
	g.Coverage = round(e.CoverageRatio)
	g.BusyMean = round(e.BusyMean)
	g.BusyP99 = round(e.BusyP99)
	g.BusyMax = round(e.Busy10Minutes)
	g.MemoryBytes = e.MemoryBytes
	g.MemoryTrend = math.Round(e.MemoryTrend)
	g.MediaUse = e.MediaUse
	g.Server = e.Server
	g.ActivityUnread = e.ActivityUnread
	g.NVLinkUnread = nvlinkUnread
	g.Idle = e.Busy10Minutes <= advise.IdleShare && len(e.MediaUse) == 0

	if e.P95 != (advise.Kernels{}) {
		g.Kernels = &advise.Kernels{Width: round(e.P95.Width), Bandwidth: round(e.P95.Bandwidth)}
	}

	g.Action = r.Action
	g.Reason = r.Reason
	g.Explanation = r.Explanation

	if r.Predicted != nil {
		g.Profile = r.Recommended
		g.NotChecked = r.NotChecked
		g.Decided = &r.Predicted.Decided
		g.StartWith = r.Predicted.Server

		if r.Predicted.StretchP95 != (advise.Stretch{}) {
			g.StretchP95 = &r.Predicted.StretchP95
		}
	}
}

// report returns the report, after all GPUs were judged.
func (a *analysis) report() *Report {
	r := &Report{
		APIVersion:  "mig-exporter/v1",
		Prometheus:  a.client.url,
		Time:        a.end.UTC(),
		WindowHours: a.options.Window.Hours(),
		options:     a.options.Advise,
	}
	nodes := map[place]bool{}

	isPartial := a.client.isPartial()

	for _, g := range a.gpus {
		g.answer.Provisional = g.answer.Provisional || isPartial && g.answer.Action == advise.ActionSlice
		r.GPUs = append(r.GPUs, g.answer)
		nodes[g.place] = true
	}

	r.Nodes = len(nodes)
	alignReplicas(r.GPUs)
	weighGains(r.GPUs)
	r.Groups = a.group(r.GPUs, func(g *GPU) string { return g.Namespace })
	r.Totals = a.group(r.GPUs, func(*GPU) string { return "" })
	r.Fleet.Reasons = map[advise.Reason]int{}

	for i := range r.Totals {
		r.Fleet.add(&r.Totals[i])
	}

	r.Notes = a.notes(r)

	return r
}

// group sums up GPUs by cluster, model and namespace. Within a cluster and model the group that
// frees most GPUs comes first.
func (a *analysis) group(gpus []GPU, namespace func(*GPU) string) []Group {
	members := map[Key][]*GPU{}

	for i := range gpus {
		g := &gpus[i]
		key := Key{g.Cluster, g.Model, namespace(g)}
		members[key] = append(members[key], g)
	}

	var groups []Group
	for key, list := range members {
		groups = append(groups, a.sum(key, list))
	}

	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(
			cmp.Compare(a.Cluster, b.Cluster),
			cmp.Compare(a.Model, b.Model),
			cmp.Compare(b.FreedGPUs, a.FreedGPUs),
			cmp.Compare(b.Slices, a.Slices),
			cmp.Compare(b.GPUs, a.GPUs),
			cmp.Compare(a.Namespace, b.Namespace),
		)
	})

	return groups
}

// Key names a group.
type Key struct{ cluster, model, namespace string }

// sum adds up the GPUs of a group.
func (a *analysis) sum(key Key, list []*GPU) Group {
	group := Group{
		Cluster:   key.cluster,
		Model:     key.model,
		Namespace: key.namespace,
		GPUs:      len(list),
		Reasons:   map[advise.Reason]int{},
	}
	var wanted, final []string
	var known mig.Model
	held := 0.

	for _, g := range list {
		if g.Action != advise.ActionSlice {
			group.Reasons[cmp.Or(g.Reason, ReasonFree)]++
			group.Share += boolToInt(g.Action == advise.ActionShare)
			continue
		}

		group.Slices++
		group.Provisional += boolToInt(g.Provisional)
		group.NotChecked += boolToInt(g.NotChecked)
		group.Idle += boolToInt(g.Idle)

		if g.Profile != "" { // a slice whose profile is unknown takes a whole GPU
			wanted = append(wanted, g.Profile)
			known = g.model
		}

		if !g.isFinal() {
			continue
		}

		group.Final++
		held += g.HeldHoursPerWeek

		if g.Profile != "" {
			final = append(final, g.Profile)
		}
	}

	group.FreedByAll = len(wanted) - len(pack(known.Profiles, wanted))

	if group.Final > 0 {
		group.FreedGPUs = len(final) - len(pack(known.Profiles, final))
		hours := held * float64(group.FreedGPUs) / float64(group.Final)
		group.GPUHoursPerWeek = math.Round(hours*10) / 10
	}

	if p, ok := priceOf(a.options.Prices, key.model, known.Name); ok {
		cost := math.Round(group.GPUHoursPerWeek*p.Hour*100) / 100
		group.CostPerWeek = &cost
	}

	return group
}

// boolToInt returns 1 for true.
func boolToInt(set bool) int {
	if set {
		return 1
	}

	return 0
}

// add adds the numbers of a group.
func (g *Group) add(more *Group) {
	g.GPUs += more.GPUs
	g.Slices += more.Slices
	g.Final += more.Final
	g.FreedGPUs += more.FreedGPUs
	g.FreedByAll += more.FreedByAll
	g.GPUHoursPerWeek += more.GPUHoursPerWeek
	g.Provisional += more.Provisional
	g.NotChecked += more.NotChecked
	g.Idle += more.Idle
	g.Share += more.Share

	for reason, n := range more.Reasons {
		g.Reasons[reason] += n
	}

	if more.CostPerWeek != nil {
		cost := *more.CostPerWeek
		if g.CostPerWeek != nil {
			cost += *g.CostPerWeek
		}

		g.CostPerWeek = &cost
	}
}
