package main

import (
	"slices"
	"sync/atomic"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

// nodeFindings judges the node for the status page, with the checks of check-node. It makes no driver
// calls: it judges Snapshots, and the facts of the host as they were at the start. It knows nothing of
// single driver calls.
//
// A new instance has no activity before its second reading. We therefore report a check only if it
// fails twice in a row.
type nodeFindings struct {
	judge nodeJudge // with the facts that do not change
	// complete adds the facts that change, except the Snapshot.
	complete func(*nodeJudge)
	every    int // we judge every so many polls: as many as check-node makes

	// The poll loop owns these.
	polls  int
	before []string // names of the checks that failed the last time

	found atomic.Pointer[[]web.Finding] // nil before the second judgement
}

// openFindings begins to judge the node, if there is a status page. Call it before the node is polled.
func (x *exporter) openFindings(cfg *Config) {
	if !cfg.Web.State {
		return
	}

	hasNoKubelet := x.node.watchForKubelet()
	f := &nodeFindings{
		judge: nodeJudge{
			cfg:             cfg,
			host:            x.node.kind.readHost(false), // even an embedded DCGM is a source that we ask
			processesHidden: x.node.processesHidden,
		},
		complete: func(j *nodeJudge) {
			j.extras = extrasOf(x.metrics.current.Load())
			j.confidential = x.node.confidential.Load()
			j.host.noKubelet = hasNoKubelet()
		},
		every: checkPolls(x.node),
	}

	x.node.observers = append(x.node.observers, f.observe)
	x.findings = f.found.Load
}

// observe judges the Snapshot of every f.every-th poll.
func (f *nodeFindings) observe(s *gpu.Snapshot) {
	f.polls++
	if f.polls%f.every != 0 {
		return
	}

	judge := f.judge
	judge.last = s
	f.complete(&judge)
	judge.judge()

	var (
		failing []string
		lasting []nodeCheck
	)

	for _, c := range judge.checks {
		if !c.fails() {
			continue
		}

		failing = append(failing, c.Name)
		if slices.Contains(f.before, c.Name) {
			lasting = append(lasting, c)
		}
	}

	first := f.polls == f.every
	f.before = failing

	if first {
		return
	}

	found := []web.Finding{}
	for _, c := range joinChecks(lasting) {
		found = append(found, web.Finding{
			Missing: c.State == checkMissing, Name: c.Name, Found: c.Found, Remedy: c.Remedy,
		})
	}

	f.found.Store(&found)
}
