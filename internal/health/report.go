package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// apiVersion is the version of all documents of this program.
const apiVersion = "mig-exporter/v1"

// Report is the document of /api/v1/health: the verdict on the node, then the verdicts on its GPUs.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Verdict
	// Generation and Time are of the Snapshot that was judged; missing before the first.
	Generation uint64    `json:"generation,omitempty"`
	Time       time.Time `json:"time,omitzero"`
	Hostname   string    `json:"hostname,omitempty"`
	GPUs       []GPU     `json:"gpus"`
}

// GPU is the verdict on a GPU.
type GPU struct {
	Index    int      `json:"index"`
	UUID     gpu.UUID `json:"uuid,omitempty"` // a GPU without a handle has none
	Name     string   `json:"name,omitempty"`
	PCIBusID string   `json:"pciBusId,omitempty"`
	Verdict
	// XIDsSince is since when we have received XIDs; missing if we receive none.
	XIDsSince time.Time  `json:"xidsSince,omitzero"`
	Instances []Instance `json:"instances"`
}

// Instance is the verdict on a GPU instance. Its reasons include the GPU's reasons that concern it.
type Instance struct {
	ID         gpu.InstanceID         `json:"id"`
	Generation uint64                 `json:"generation"`
	Profile    string                 `json:"profile,omitempty"`
	Placement  gpu.Opt[gpu.Placement] `json:"placement,omitzero"`
	UUIDs      []gpu.MIGUUID          `json:"uuids"` // of its MIG devices
	Verdict
}

// Report returns the judgement as of now. The caller owns it. If the last Snapshot is too old,
// every state is unknown or worse.
func (t *Tracker) Report(now time.Time) *Report {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.report.APIVersion == "" {
		v := newVerdict([]Reason{{Code: CodeNoSnapshot, State: Unknown, Action: ActionNone, Since: t.began,
			Message: "the first reading of this node has not ended"}})
		v.Since = t.began

		return &Report{APIVersion: apiVersion, Verdict: v, GPUs: []GPU{}}
	}

	r := t.report.clone()

	if age := now.Sub(r.Time); t.maxAge > 0 && age > t.maxAge {
		r.addToAll(Reason{Code: CodeStale, State: Unknown, Action: ActionNone, Since: r.Time.Add(t.maxAge),
			Message: fmt.Sprintf("the last reading of the node is %s old", age.Round(time.Second))})
	}

	return &r
}

// StateOf returns the state of a GPU; unknown if the report does not have it.
func (r *Report) StateOf(g *gpu.GPU) State {
	if judged := r.find(g); judged != nil {
		return judged.State
	}

	return Unknown
}

// StateOfInstance returns the state of a GPU instance of a GPU; unknown if the report does not have
// it.
func (r *Report) StateOfInstance(g *gpu.GPU, inst *gpu.GPUInstance) State {
	judged := r.find(g)
	if judged == nil {
		return Unknown
	}

	for i := range judged.Instances {
		if own := &judged.Instances[i]; own.ID == inst.ID && own.Generation == inst.Generation {
			return own.State
		}
	}

	return Unknown
}

// find returns the verdict on a GPU; nil if the report does not have it.
func (r *Report) find(g *gpu.GPU) *GPU {
	for i := range r.GPUs {
		if judged := &r.GPUs[i]; judged.UUID == g.UUID && (g.UUID != "" || judged.Index == g.Index) {
			return judged
		}
	}

	return nil
}

// clone copies the report as deeply as addToAll changes it.
func (r Report) clone() Report {
	r.GPUs = slices.Clone(r.GPUs)
	for i := range r.GPUs {
		r.GPUs[i].Instances = slices.Clone(r.GPUs[i].Instances)
	}

	return r
}

// addToAll adds a reason to the node and to all its devices.
func (r *Report) addToAll(reason Reason) {
	r.Verdict = r.Verdict.with(reason)

	for i := range r.GPUs {
		g := &r.GPUs[i]
		g.Verdict = g.Verdict.with(reason)

		for n := range g.Instances {
			g.Instances[n].Verdict = g.Instances[n].Verdict.with(reason)
		}
	}
}

// with returns the verdict with a further reason. If that makes the state worse, the state begins
// with the reason.
func (v Verdict) with(reason Reason) Verdict {
	extended := newVerdict(append(slices.Clone(v.Reasons), reason))

	if rank(extended.State) <= rank(v.State) {
		extended.State = v.State
		extended.Message = v.Message
		extended.Since = v.Since
		extended.Action = v.Action

		return extended
	}

	extended.Since = reason.Since

	return extended
}

// summarize returns the verdict on the node, by its own reasons and the verdicts on its GPUs. Its
// message is that of the worst, and says how many others are not healthy: "GPU 3: XID 79 ...; 2
// others are not healthy".
func (r *Report) summarize(reasons []Reason, keep *keeper) Verdict {
	v := newVerdict(reasons)
	others := 0

	for i := range r.GPUs {
		g := &r.GPUs[i]
		if reach(g.Action) > reach(v.Action) {
			v.Action = g.Action
		}

		switch {
		case g.State == Healthy && v.State == Healthy && g.Message != healthyMessage:
			v.Message = g.Message
		case g.State == Healthy:
		case rank(g.State) > rank(v.State):
			if v.State != Healthy {
				others++ // the worst so far
			}

			v.State = g.State
			v.Message = fmt.Sprintf("GPU %d: %s", g.Index, g.Message)
		default:
			others++
		}
	}

	switch {
	case others == 1:
		v.Message += "; 1 other is not healthy"
	case others > 1:
		v.Message += fmt.Sprintf("; %d others are not healthy", others)
	}

	return keep.dateState("node", v)
}

// Worst returns the worst reason of the node or of a GPU; false if the node and all GPUs are
// healthy.
func (r *Report) Worst() (worst Reason, ok bool) {
	all := slices.Clone(r.Reasons)

	for i := range r.GPUs {
		all = append(all, r.GPUs[i].Reasons...)
	}

	if v := newVerdict(all); len(v.Reasons) > 0 {
		return v.Reasons[0], true
	}

	return Reason{}, false
}
