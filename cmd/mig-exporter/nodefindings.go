package main

import (
	"slices"
	"sync/atomic"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

// nodeFindings judges the node as check-node does, now and then, for the status page. It calls no
// driver: it judges Snapshots, and the facts of the host as they were at the start. What check-node
// says of single calls of the driver it does not know.
//
// A new instance has no activity before its second reading. We therefore take a check to fail only
// if it did so the last time, too.
type nodeFindings struct {
	judge nodeJudge // of the facts that stay
	// complete adds those that change, but for the Snapshot.
	complete func(*nodeJudge)
	every    int // polls between two judgements: as many as check-node makes

	// Owned by the poll loop.
	polls  int
	before []string // names of the checks that failed the last time

	found atomic.Pointer[[]web.Finding]
}

// openFindings begins to judge the node, if there is a page that shows it. It must be called before
// the node is polled.
func (x *exporter) openFindings(cfg *Config) {
	if !cfg.Web.State {
		return
	}

	noKubelet := x.node.watchForKubelet()
	f := &nodeFindings{
		judge: nodeJudge{
			cfg:             cfg,
			host:            x.node.kind.readHost(false), // an embedded DCGM is a source of this process
			processesHidden: x.node.processesHidden,
		},
		complete: func(j *nodeJudge) {
			j.extras = extrasOf(x.metrics.current.Load())
			j.confidential = x.node.confidential.Load()
			j.host.noKubelet = noKubelet()
		},
		every: checkPolls(x.node),
	}

	x.node.observers = append(x.node.observers, f.observe)
	x.findings = f.found.Load
}

// observe judges a Snapshot of a whole poll, if it is time.
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
