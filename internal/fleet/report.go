package fleet

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Report is what is recommended for a fleet.
type Report struct {
	APIVersion  string    `json:"apiVersion"`
	Prometheus  string    `json:"prometheus"`
	Time        time.Time `json:"time"` // the end of the window
	WindowHours float64   `json:"windowHours"`
	Nodes       int       `json:"nodes"`
	// Groups are the GPUs by cluster, model and namespace. Totals are those by cluster and model, with the slices of all
	// namespaces packed together.
	Groups []Group `json:"groups"`
	Totals []Group `json:"totals"`
	Fleet  Group   `json:"fleet"` // the sum of Totals
	GPUs   []GPU   `json:"gpus"`
	// Notes say what could not be seen, and how far the answer can be relied on.
	Notes []string `json:"notes"`
}

// Group is what is recommended for GPUs of one kind.
type Group struct {
	Cluster   string `json:"cluster"`
	Model     string `json:"model"`
	Namespace string `json:"namespace"` // that held the GPU for the longest time; empty if none did
	GPUs      int    `json:"gpus"`
	// Slices counts the GPUs of which a slice would do, FreedGPUs how many fewer GPUs they need then.
	Slices    int `json:"slices"`
	FreedGPUs int `json:"freedGpus"`
	// GPUHoursPerWeek are the hours a week for which the freed GPUs are held today.
	GPUHoursPerWeek float64 `json:"gpuHoursPerWeek"`
	// CostPerWeek is what these cost; absent without a price.
	CostPerWeek *float64 `json:"costPerWeek,omitempty"`
	// Provisional and NotChecked count Slices with evidence of less than seven days, and with profiles that lack media
	// engines of which the use cannot be read. Idle counts those that were held and ran nothing.
	Provisional int `json:"provisional,omitempty"`
	NotChecked  int `json:"mediaNotChecked,omitempty"`
	Idle        int `json:"idle,omitempty"`
	// Reasons count the GPUs that stay as they are; "free" are those that nothing held.
	Reasons map[advise.Reason]int `json:"reasons,omitempty"`
}

// ReasonFree counts GPUs that nothing held.
const ReasonFree advise.Reason = "free"

// GPU is what is recommended for a GPU.
type GPU struct {
	UUID      string `json:"uuid"`
	Cluster   string `json:"cluster,omitempty"`
	Node      string `json:"node,omitempty"`
	Model     string `json:"model"`
	Exporter  string `json:"exporter"`
	Namespace string `json:"namespace,omitempty"`
	// Namespaces is how many held it.
	Namespaces int           `json:"namespaces"`
	Action     advise.Action `json:"action"`
	Reason     advise.Reason `json:"reason,omitempty"`
	Profile    string        `json:"recommendedProfile,omitempty"`
	// Provisional and NotChecked are as in advise.Recommendation.
	Provisional bool            `json:"provisional,omitempty"`
	NotChecked  bool            `json:"mediaNotChecked,omitempty"`
	Idle        bool            `json:"idle,omitempty"`
	StretchP95  *advise.Stretch `json:"stretchP95,omitempty"`

	ObservedHours    float64         `json:"observedHours"` // while it was held
	HeldHoursPerWeek float64         `json:"heldHoursPerWeek"`
	Coverage         float64         `json:"coverageRatio,omitempty"`
	BusyMean         float64         `json:"busyMeanRatio,omitempty"`
	BusyP99          float64         `json:"busyP99Ratio,omitempty"`
	BusyMax          float64         `json:"busyMax5MinutesRatio,omitempty"`
	Kernels          *advise.Kernels `json:"kernelsP95,omitempty"`
	MemoryBytes      float64         `json:"memoryMaxBytes,omitempty"`
	MemoryTrend      float64         `json:"memoryTrendBytesPerDay,omitempty"`
	// ActivityUnread and NVLinkUnread: SM or DRAM activity, and NVLink's traffic, are not in the history.
	ActivityUnread bool `json:"activityUnread,omitempty"`
	NVLinkUnread   bool `json:"nvlinkUnread,omitempty"`

	model mig.Model
}

// fill fills in the evidence and the choice that follows from it.
func (g *GPU) fill(f *advise.Facts, nvlinkUnread bool, c advise.Choice) {
	e := f.Evidence
	g.Coverage, g.BusyMean, g.BusyP99, g.BusyMax = round3(e.CoverageRatio), round3(e.BusyMean), round3(e.BusyP99),
		round3(e.Busy10Minutes)
	g.MemoryBytes, g.MemoryTrend = e.MemoryBytes, math.Round(e.MemoryTrend)
	g.ActivityUnread, g.NVLinkUnread, g.Idle = f.ActivityUnread, nvlinkUnread, e.Busy10Minutes <= idleShare
	if !f.ActivityUnread {
		g.Kernels = &advise.Kernels{Width: round3(e.P95.Width), Bandwidth: round3(e.P95.Bandwidth)}
	}
	g.Action, g.Reason = c.Action, c.Reason
	if c.Profile != nil {
		g.Profile, g.NotChecked, g.StretchP95 = c.Profile.Name, c.NotChecked, &c.StretchP95
	}
}

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }

// report sums up.
func (s *survey) report() *Report {
	r := &Report{
		APIVersion: "mig-exporter/v1", Prometheus: s.client.url, Time: s.end.UTC(), WindowHours: s.options.Window.Hours(),
	}
	nodes := map[[2]string]bool{}
	for _, g := range s.gpus {
		r.GPUs = append(r.GPUs, g.answer)
		nodes[[2]string{g.cluster, g.node}] = true
	}
	r.Nodes = len(nodes)
	r.Groups = s.group(r.GPUs, func(g *GPU) string { return g.Namespace })
	r.Totals = s.group(r.GPUs, func(*GPU) string { return "" })
	r.Fleet.Reasons = map[advise.Reason]int{}
	for i := range r.Totals {
		r.Fleet.add(&r.Totals[i])
	}
	r.Notes = s.notes(r)
	return r
}

// group divides GPUs by cluster, model and namespace, the most freed ones first within a cluster and model.
func (s *survey) group(gpus []GPU, namespace func(*GPU) string) []Group {
	members := map[Key][]*GPU{}
	for i := range gpus {
		g := &gpus[i]
		key := Key{g.Cluster, g.Model, namespace(g)}
		members[key] = append(members[key], g)
	}
	var groups []Group
	for key, list := range members {
		groups = append(groups, s.sum(key, list))
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Model, b.Model), cmp.Compare(b.FreedGPUs, a.FreedGPUs),
			cmp.Compare(b.Slices, a.Slices), cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(a.Namespace, b.Namespace))
	})
	return groups
}

// Key names a group.
type Key struct{ cluster, model, namespace string }

// sum adds up the GPUs of a group.
func (s *survey) sum(key Key, list []*GPU) Group {
	group := Group{
		Cluster: key.cluster, Model: key.model, Namespace: key.namespace, GPUs: len(list), Reasons: map[advise.Reason]int{},
	}
	var wanted []string
	var known mig.Model
	held := 0.
	for _, g := range list {
		if g.Action != advise.ActionSlice {
			group.Reasons[cmp.Or(g.Reason, ReasonFree)]++
			continue
		}
		wanted, known = append(wanted, g.Profile), g.model
		held += g.HeldHoursPerWeek
		group.Provisional += count(g.Provisional)
		group.NotChecked += count(g.NotChecked)
		group.Idle += count(g.Idle)
	}
	group.Slices = len(wanted)
	if group.Slices > 0 {
		group.FreedGPUs = group.Slices - gpusFor(known.Profiles, wanted)
		group.GPUHoursPerWeek = math.Round(held*float64(group.FreedGPUs)/float64(group.Slices)*10) / 10
	}
	if p, ok := priceOf(s.options.Prices, key.model, known.Name); ok {
		cost := math.Round(group.GPUHoursPerWeek*p.Hour*100) / 100
		group.CostPerWeek = &cost
	}
	return group
}

func count(set bool) int {
	if set {
		return 1
	}
	return 0
}

// add adds the numbers of a group.
func (g *Group) add(more *Group) {
	g.GPUs, g.Slices, g.FreedGPUs = g.GPUs+more.GPUs, g.Slices+more.Slices, g.FreedGPUs+more.FreedGPUs
	g.GPUHoursPerWeek += more.GPUHoursPerWeek
	g.Provisional, g.NotChecked, g.Idle = g.Provisional+more.Provisional, g.NotChecked+more.NotChecked, g.Idle+more.Idle
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

// notes say what could not be seen.
func (s *survey) notes(r *Report) []string {
	notes := []string{
		"This is coarser than migctl recommend on each node: it judges a GPU with all that ran on it, by means over 5 " +
			"minutes, and the profiles and SMs are those of a table by model, not the driver's. It does not see graphics " +
			"processes, annotations of pods, the device plugin's strategy, peer-to-peer traffic over PCIe, L2 cache and clocks.",
	}
	unseen := map[string]int{}
	prices := map[string]bool{}
	blind, links, unheld := 0, 0, 0
	for _, g := range s.gpus {
		a := &g.answer
		blind += count(a.ActivityUnread && g.dialect.name == native().name)
		links += count(a.NVLinkUnread)
		unheld += count(!s.holdersKnown[g.cluster])
		if g.dialect.name != native().name {
			unseen[g.dialect.name]++
		}
		if p, ok := priceOf(s.options.Prices, a.Model, a.model.Name); ok {
			prices[p.Model] = true
		}
	}
	add := func(n int, format string, args ...any) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	for _, d := range dialects() {
		add(unseen[d.name], "%d GPUs are known from %s alone, which says nothing of JPEG and optical flow engines, nor, by "+
			"its default list, of "+
			"SM activity: add %s to its counters file. Without it, kernels are taken to fill the whole GPU.", unseen[d.name],
			d.name, "DCGM_FI_PROF_SM_ACTIVE")
	}
	add(blind, "%d GPUs have no SM or DRAM activity in the history: kernels are taken to fill the whole GPU.", blind)
	add(links, "NVLink's traffic of %d GPUs is not in the history.", links)
	add(unheld, "It is not known what held %d GPUs: they count as held all the time.", unheld)
	add(r.Fleet.NotChecked,
		"%d of the slices lack media engines of which the use cannot be read (--collector.media of mig-exporter): check "+
			"that these workloads decode or encode no video.", r.Fleet.NotChecked)
	add(r.Fleet.Idle, "%d of the GPUs of which a slice would do were held and ran nothing at all: ask whether they are "+
		"needed.", r.Fleet.Idle)
	add(r.Fleet.Provisional, "%d of the slices are provisional: there is evidence of less than seven days.",
		r.Fleet.Provisional)
	for _, p := range s.options.Prices {
		add(count(!prices[p.Model]), "The price of %s is that of no GPU in the fleet that could be a slice.", p.Model)
	}
	for _, w := range s.client.Warnings() {
		notes = append(notes, "Prometheus warns: "+w)
	}
	if s.options.Window < 7*24*time.Hour {
		notes = append(notes, "The window is "+model.Duration(s.options.Window).
			String()+"; expected 7d for an answer that is not provisional.")
	}
	return notes
}
