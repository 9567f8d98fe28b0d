package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// coarser is the note on how the answers differ from an Advisor's.
const coarser = "The rules are those of migctl recommend, the evidence is coarser: a GPU is " +
	"judged with all that ran on it, by means over 5 minutes instead of one, and profiles and SMs " +
	"come from a table of models, not from the driver. Not seen are starts from before the window, " +
	"how long requests wait, graphics processes, annotations of pods, the device plugin's strategy, " +
	"peer-to-peer traffic over PCIe, L2 cache and clocks. Before you change a node, ask migctl " +
	"recommend there."

// counts has numbers of GPUs for the notes.
type counts struct {
	blind         int // without SM or DRAM activity
	young         int // provisional, known for less than seven days
	bridges       int // provisional without NVLink traffic
	unheld        int // in a cluster whose history names no holder
	holderUnknown int // see fleetGPU
	holderUnread  int // see fleetGPU
	byAdvisor     int // judged by the advisor of their node
	gone          int // without a sample in the last hour
	unseen        int // whole since no start of their holder is in the history
	unpriced      int // freed, without a price
	lapsed        int // whose advisor had an answer about another holder, and has none now
	byReplica     int // with the answer of another replica
	ownerless     int // slices whose owner is unknown
	hidden        int // slices whose pods may be parts of a job

	first, last time.Time       // begin and end of all GPUs' history
	exporters   map[string]int  // number of GPUs by the exporter that we query
	prices      map[string]bool // models of the prices that are used
}

// countForNotes counts GPUs for the notes.
func (a *analysis) countForNotes(r *Report) counts {
	c := counts{exporters: map[string]int{}, prices: map[string]bool{}}

	for _, g := range a.gpus {
		answer := &g.answer
		c.blind += boolToInt(answer.ActivityUnread && !answer.Advised)
		c.unseen += boolToInt(answer.Reason == advise.ReasonStartUnseen && !answer.Advised)
		c.unheld += boolToInt(!a.holdersKnown[g.cluster])
		c.holderUnknown += boolToInt(g.holderUnknown)
		c.holderUnread += boolToInt(g.holderUnread)
		c.exporters[g.dialect.name]++
		c.lapsed += boolToInt(g.lapsed)

		c.gone += boolToInt(!g.last.After(a.end.Add(-hour)))
		if c.first.IsZero() || !g.first.IsZero() && g.first.Before(c.first) {
			c.first = g.first
		}

		if g.last.After(c.last) {
			c.last = g.last
		}

		if p, ok := priceOf(a.options.Prices, answer.Model, answer.model.Name); ok {
			c.prices[p.Model] = true
		}
	}

	for i := range r.GPUs {
		g := &r.GPUs[i]
		c.byReplica += boolToInt(g.ByReplica)
		c.byAdvisor += boolToInt(g.Advised)

		if g.Action == advise.ActionSlice {
			c.bridges += boolToInt(g.bridgeUnread)
			c.young += boolToInt(g.Provisional && g.isYoung)
			c.ownerless += boolToInt(g.Owner == "")
			_, workload, _ := strings.Cut(g.Owner, "/")
			c.hidden += boolToInt(!g.Advised && mayHideJob(workload))
		}
	}

	for i := range r.Totals {
		if r.Totals[i].CostPerWeek == nil {
			c.unpriced += r.Totals[i].FreedGPUs
		}
	}

	return c
}

// longWindow is the window that a note suggests, to see rare events.
const longWindow = 30 * 24 * time.Hour

// describeReach says that the history does not show events that are rarer than reach, which is how
// far it reaches back, and how to look further back.
func describeReach(reach, window time.Duration) string {
	known := fmt.Sprintf("Nothing rarer than %.3g days is known", reach.Hours()/24)
	switch {
	case reach < window-time.Hour:
		return known + ": the history begins there."
	case window < longWindow:
		return known + ". --window=30d looks further back, as far as Prometheus keeps it."
	}

	return known + "."
}

// notes returns sentences that say what the history does not show, and what to do about it.
func (a *analysis) notes(r *Report) []string {
	notes := []string{coarser}
	c := a.countForNotes(r)
	add := func(n int, format string, args ...any) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}

	if c.gone == len(a.gpus) && !c.last.IsZero() {
		notes = append(
			notes,
			fmt.Sprintf(
				"The history has nothing on any GPU in the last hour before %s, so all of them "+
					"count as gone: its last samples are of %s. Add --time=%[2]s to judge the time before.",
				a.end.UTC().Format(time.RFC3339),
				c.last.UTC().Format(time.RFC3339),
			),
		)
	}

	fromDCGM := 0

	for _, d := range dialects()[1:] {
		n := c.exporters[d.name]
		fromDCGM += n
		add(
			n,
			"%d GPUs are known from %s, which has nothing on JPEG and optical flow engines.",
			n,
			d.name,
		)
	}

	add(
		c.blind,
		"Of %d of the GPUs the history has no SM or DRAM activity: how much of them kernels fill is unknown, "+
			"and nothing is recommended.",
		c.blind,
	)
	add(
		min(c.blind, fromDCGM),
		"dcgm-exporter serves SM activity if DCGM_FI_PROF_SM_ACTIVE is in its counters file, "+
			"which its default one leaves out.",
	)
	add(
		c.byAdvisor,
		"%d GPUs are judged by the right-sizing advisor of their node, whose evidence is finer.",
		c.byAdvisor,
	)
	add(
		c.lapsed,
		"Of %d GPUs the right-sizing advisor had an answer in the last day, and has none on what held them "+
			"last: slices for them are provisional, since it may refuse what the history cannot show.",
		c.lapsed,
	)
	add(
		c.bridges,
		"%d of the slices are provisional because NVLink bridges may connect their GPUs, and the "+
			"history lacks traffic of these. nvidia-smi nvlink --status on the node lists them. If "+
			"there are any, measure: "+nvlinkRemedy+".",
		c.bridges,
	)
	add(
		c.unheld,
		"%d GPUs are in a cluster whose history names no pod or job: they count as held all the time.",
		c.unheld,
	)
	add(
		c.holderUnknown,
		"%d GPUs count as held all the time: the history never has nvidia_gpu_allocated of them, as if "+
			"the kubelet did not answer, the files of batch jobs could not be used, or mig-exporter saw "+
			"only the processes of its own PID namespace.",
		c.holderUnknown,
	)
	add(
		c.holderUnread,
		"For some of the time the history does not show whether anything held %d of the GPUs: they count "+
			"as held then, and a start in that time is not seen.",
		c.holderUnread,
	)
	add(
		r.Fleet.NotChecked,
		"%d of the slices have fewer media engines than the GPU, and their use is not known, so that "+
			"FREED leaves them out: check what these workloads use of them (video, JPEG, optical flow). "+
			"mig-exporter serves it with --collectors=+media.",
		r.Fleet.NotChecked,
	)
	add(
		r.Fleet.Idle,
		"On %d of the GPUs that could be slices no kernel ran, and no media engine was seen in use, although "+
			"they were held: ask whether they are needed.",
		r.Fleet.Idle,
	)

	add(
		c.unseen,
		"%d of the GPUs stay as they are although a slice would do by what is in the history: "+
			"what holds them started before it, and a start can need more memory than ever after. "+
			"A longer --window may have their starts, and restarting one replica shows them; "+
			"migctl recommend on the node remembers those that its exporter has seen. Peaks "+
			"between two scrapes are in no history.",
		c.unseen,
	)
	add(
		r.Fleet.Share,
		"Wide kernels run on %d of the GPUs that stay as they are, seldom: a slice would stretch their "+
			"requests, but several such workloads could share a GPU (MPS or time-slicing).",
		r.Fleet.Share,
	)
	noteOwners(&c, add)
	add(
		r.Fleet.Provisional,
		"%d of the slices are provisional, by evidence that is not complete yet: FREED leaves them out. "+
			"Of %d of them it is of less than seven days, or may be of another workload.",
		r.Fleet.Provisional,
		c.young,
	)
	a.notePrices(c, add)

	notes = append(notes, a.noteRefusals()...)

	for _, w := range a.client.Warnings() {
		notes = append(notes, "Prometheus warns: "+w)
	}

	add(
		boolToInt(a.client.isPartial()),
		"All slices are provisional, as a part of the history may be missing by these warnings.",
	)

	if !c.first.IsZero() {
		notes = append(notes, describeReach(a.end.Sub(c.first), a.options.Window))
	}

	if a.options.Window < 7*24*time.Hour {
		notes = append(
			notes,
			fmt.Sprintf("The window is %s: every answer is provisional. Expected 7d or more.",
				model.Duration(a.options.Window)),
		)
	}

	return notes
}

// noteOwners adds notes about other replicas and pods that change with a slice's owner.
func noteOwners(c *counts, add func(n int, format string, args ...any)) {
	add(
		c.byReplica,
		"%d of the GPUs have the answer of another replica of their owner, which is weaker: a patch moves "+
			"all replicas, on every node.",
		c.byReplica,
	)

	add(
		c.ownerless,
		"Of %d of the slices the owners are not in the history. A patch moves all replicas of an owner, on "+
			"every node: compare the answers for them first.",
		c.ownerless,
	)

	add(
		c.hidden,
		"Of %d of the slices it is unknown whether their pods are parts of one job: the history "+
			"has neither an advisor's answer nor labels that show it. Those of JobSet, "+
			"LeaderWorkerSet and indexed Jobs are in it if --kubernetes.pod-label names them; migctl "+
			"recommend on the node sees all.",
		c.hidden,
	)
}

// notePrices adds notes about freed GPUs without a price, and about prices that we don't use.
func (a *analysis) notePrices(c counts, add func(n int, format string, args ...any)) {
	if len(a.options.Prices) > 0 {
		add(
			c.unpriced,
			"%d of the freed GPUs have no --price: COST/WEEK leaves them out.",
			c.unpriced,
		)
	}

	for _, p := range a.options.Prices {
		add(
			boolToInt(!c.prices[p.Model]),
			"--price=%s=%g is used for no GPU: no model's name has these words, or another "+
				"--price has more of them.",
			p.Model,
			p.Hour,
		)
	}
}

// noteRefusals says what Prometheus has refused to answer about inference servers, and what follows.
func (a *analysis) noteRefusals() []string {
	const (
		refused = "Prometheus refused to answer, as too much, for some of the window "
		remedy  = " Raise its --query.max-samples, or the timeout of the queries."
	)

	var notes []string

	if a.refused.pods {
		notes = append(notes, refused+"which pods have inference servers: slices for pods that may have one are "+
			"provisional."+remedy)
	}

	for _, s := range knownServers() {
		if a.refused.kinds[s.kind] {
			notes = append(notes, refused+"what inference servers of the kind "+string(s.kind)+" report: the GPUs of "+
				"those whose need is then unknown stay."+remedy)
		}
	}

	if a.refused.weights {
		notes = append(notes, refused+"which annotations of pods say how large the models of inference servers "+
			"are: the GPUs of those whose need is then unknown stay."+remedy)
	}

	return notes
}
