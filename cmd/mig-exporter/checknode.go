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

// How many polls check-node makes, --poll.interval apart. GPM has activity from the second poll on.
// With DCGM it takes longer: we connect after the first poll, and DCGM's first samples are blank.
const (
	nodeCheckPolls     = 4
	profiledCheckPolls = 10
)

// runCheckNode reads the node as the service would with this configuration, and reports what can be
// seen of it. It changes nothing. ok is false if something that the configuration asks for is
// missing or unknown.
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

	// We look which GPUs sleep before we open them, which wakes them.
	host := node.kind.readHost(cfg.Profiling.dcgmMode() == dcgmEmbedded)
	// check-node writes nothing, so we do not name the state folder of partition control.
	if err := node.kind.openPods(node, &cfg.Kubernetes, ""); err != nil {
		host.podsErr = err
	}

	// We do not start an embedded engine: it could take the profiling away from the service's.
	if host.dcgm == nil {
		node.openProfiler(&cfg.Profiling, cfg.Poll.Interval)
	}

	node.openKernelLog(cfg.Driver.KernelLog)
	node.openJobs(cfg.JobDir)

	hasNoKubelet := node.watchForKubelet()

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

	host.noKubelet = hasNoKubelet()
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

// readExtras returns the extra readings that a collector with these options and counters file needs.
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

// checkPolls returns how many polls it takes to see all that a node shows.
func checkPolls(n *node) int {
	if n.poll.Profiler != nil {
		return profiledCheckPolls
	}

	return nodeCheckPolls
}

// watchForKubelet returns a function that reports whether the node has no kubelet, or we do not ask
// one. Call watchForKubelet before the node is polled, and the function after that.
func (n *node) watchForKubelet() (hasNone func() bool) {
	if n.poll.Pods == nil {
		return func() bool { return true }
	}

	finder := &kubeletFinder{Pods: n.poll.Pods}
	n.poll.Pods = finder

	return finder.none.Load
}

// kubeletFinder remembers whether the node has no kubelet. In the sources of a Snapshot that looks
// like a kubelet that has not answered yet.
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

// isPending reports whether any reading of the poll at last, or of one before, has not ended: the GPU
// may hang.
func isPending(s *gpu.Snapshot, last time.Time) bool {
	if len(s.Unread) > 0 {
		return true
	}

	for i := range s.Sources {
		if source := &s.Sources[i]; source.Name == gpu.SourceNVML && source.Up &&
			source.LastSuccess.Before(last) {
			return true
		}
	}

	return slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool {
		return g.Up && g.LastRead.Before(last)
	})
}
