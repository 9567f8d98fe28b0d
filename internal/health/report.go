package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// apiVersion is the version of all documents of this program.
const apiVersion = "mig-exporter/v1"

// Report is the document of /api/v1/health: the verdict of the node, then those of its GPUs.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Verdict
	// Generation and Time are those of the Snapshot; missing before the first.
	Generation uint64    `json:"generation,omitempty"`
	Time       time.Time `json:"time,omitzero"`
	Hostname   string    `json:"hostname,omitempty"`
	GPUs       []GPU     `json:"gpus"`
}

// GPU is the verdict of a GPU.
type GPU struct {
	Index    int      `json:"index"`
	UUID     gpu.UUID `json:"uuid,omitempty"` // a GPU without a handle has none
	Name     string   `json:"name,omitempty"`
	PCIBusID string   `json:"pciBusId,omitempty"`
	Verdict
	// XIDsSince is from when on XIDs are known; missing if none are received.
	XIDsSince time.Time  `json:"xidsSince,omitzero"`
	Instances []Instance `json:"instances"`
}

// Instance is the verdict of a GPU instance. Reasons of the GPU that concern it are among its own.
type Instance struct {
	ID         gpu.InstanceID         `json:"id"`
	Generation uint64                 `json:"generation"`
	Profile    string                 `json:"profile,omitempty"`
	Placement  gpu.Opt[gpu.Placement] `json:"placement,omitzero"`
	UUIDs      []gpu.MIGUUID          `json:"uuids"` // of its MIG devices
	Verdict
}

// Report returns the judgement at a time. The caller owns it. If the last Snapshot is too old, it
// makes nothing better than unknown.
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
	for i := range r.GPUs {
		if judged := &r.GPUs[i]; judged.UUID == g.UUID && (g.UUID != "" || judged.Index == g.Index) {
			return judged.State
		}
	}

	return Unknown
}

// clone copies the report as deep as addToAll changes it.
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

// with returns the verdict with a further reason. A worse state begins with that reason.
func (v Verdict) with(reason Reason) Verdict {
	more := newVerdict(append(slices.Clone(v.Reasons), reason))

	if rank(more.State) <= rank(v.State) {
		more.State = v.State
		more.Message = v.Message
		more.Since = v.Since
		more.Action = v.Action

		return more
	}

	more.Since = reason.Since

	return more
}

// summarize returns the verdict of the node: of its own reasons, and of its GPUs.
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
			others += boolToInt(v.State != Healthy)
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

func boolToInt(b bool) int {
	if b {
		return 1
	}

	return 0
}

// Worst returns the worst reason of the node or of a GPU; false if all of it is healthy.
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
