package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/poll"
)

// The forms of the report of check-node.
const (
	reportText = "text"
	reportJSON = "json"
)

// How many readings check-node makes, --poll.interval apart. Activity by GPM is known from the
// second on; DCGM connects after the first, and its first samples are blank.
const (
	nodeCheckPolls     = 4
	profiledCheckPolls = 10
)

// runCheckNode reads the node as the service would with this configuration, and reports what it can
// see. It changes nothing. ok is false if something that the configuration asks for is missing or
// not known to be there.
func runCheckNode(
	ctx context.Context,
	cfg *Config,
	out io.Writer,
	logger log.Logger,
) (ok bool, err error) {
	report, err := checkNode(ctx, cfg, logger)
	if err != nil {
		return false, err
	}

	if cfg.CheckOutput == reportJSON {
		err = report.writeJSON(out)
	} else {
		err = report.writeText(out)
	}

	return report.complete(), err
}

// checkNode reads the node and judges what it has read.
func checkNode(
	ctx context.Context,
	cfg *Config,
	logger log.Logger,
) (*nodeReport, error) {
	options := collectorOptions(&cfg.Metrics, &cfg.Kubernetes, cfg.JobDir != "")

	extras, err := readExtras(options, cfg.Metrics.CountersFile, logger)
	if err != nil {
		return nil, err
	}

	node, err := openDriver(&cfg.Driver, logger)
	if err != nil {
		return nil, err
	}
	defer node.close()

	// before the GPUs are opened, which wakes them
	host := node.kind.readHost(cfg.Profiling.dcgmMode() == dcgmEmbedded)
	// Nothing is written, so the folder of partition control is not named.
	if err := node.kind.openPods(node, &cfg.Kubernetes, ""); err != nil {
		host.podsErr = err
	}

	if host.dcgm == nil { // an engine in this process could take the profiling from the service's
		node.openProfiler(&cfg.Profiling, cfg.Poll.Interval)
	}

	node.openKernelLog(cfg.Driver.KernelLog)
	node.openJobs(cfg.JobDir)

	noKubelet := node.noteKubelet()

	run := pollRun{
		command:   commandCheckNode,
		cfg:       &cfg.Poll,
		node:      node,
		polls:     checkPolls(node),
		extras:    extras,
		isPending: isPending,
	}

	run.begin = func(move func() (time.Time, error)) error {
		_, err := move()
		return err
	}
	calls := newCallTimes()

	last, err := run.poll(
		ctx,
		nvmlsource.ObserveCalls(node.library, calls),
		node.sourceOptions(&cfg.Profiling, &cfg.Metrics),
	)
	if err != nil {
		return nil, err
	}

	if last == nil {
		last = &gpu.Snapshot{
			Sources: []gpu.SourceState{{Name: gpu.SourceNVML, Err: gpu.ErrVersionMismatch}},
		}
	}

	host.noKubelet = noKubelet()
	list := calls.list()
	judge := nodeJudge{
		cfg:             cfg,
		extras:          extras,
		host:            host,
		processesHidden: node.processesHidden,
		confidential:    node.confidential.Load(),
		last:            last,
		lastPoll:        run.lastPoll,
		calls:           list,
	}
	judge.judge()

	return &nodeReport{Checks: judge.checks, CallClasses: sumClasses(list), Calls: list}, nil
}

// readExtras returns the extra readings that a collector with a counters file serves.
func readExtras(
	opts collector.Options, countersFile string, logger log.Logger,
) (gpu.Extras, error) {
	counters, err := loadCounters(countersFile, logger)
	if err != nil {
		return gpu.Extras{}, err
	}

	opts.Counters = counters

	c, err := collector.New(opts)
	if err != nil {
		return gpu.Extras{}, err
	}

	return extrasOf(c), nil
}

// checkPolls returns how many readings of a node show what there is to see.
func checkPolls(n *node) int {
	if n.poll.Profiler != nil {
		return profiledCheckPolls
	}

	return nodeCheckPolls
}

// noteKubelet returns what reports whether the node has turned out to have no kubelet, or none is to
// be asked. It must be called before the node is polled.
func (n *node) noteKubelet() (none func() bool) {
	if n.poll.Pods == nil {
		return func() bool { return true }
	}

	finder := &kubeletFinder{Pods: n.poll.Pods}
	n.poll.Pods = finder

	return finder.none.Load
}

// kubeletFinder remembers whether the node turned out to have no kubelet. The sources of a Snapshot
// do not tell that from a kubelet that has not answered yet.
type kubeletFinder struct {
	poll.Pods

	none atomic.Bool
}

// List implements poll.Pods.
func (f *kubeletFinder) List(ctx context.Context) (gpu.Assignments, error) {
	answer, err := f.Pods.List(ctx)
	f.none.Store(errors.Is(err, gpu.ErrNoKubelet))

	return answer, err
}

// isPending reports whether a reading of the last poll, or one that began before, has not ended:
// the GPU may hang.
func isPending(s *gpu.Snapshot, last time.Time) bool {
	if len(s.Unread) > 0 {
		return true
	}

	for i := range s.Sources {
		if of := &s.Sources[i]; of.Name == gpu.SourceNVML && of.Up && of.LastSuccess.Before(last) {
			return true
		}
	}

	return slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool {
		return g.Up && g.LastRead.Before(last)
	})
}
