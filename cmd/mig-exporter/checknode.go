package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/capture"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// The forms of the report of check-node.
const (
	reportText = "text"
	reportJSON = "json"
)

// How many readings check-node makes, --poll.interval apart. Activity by GPM is known from the second on; DCGM connects
// after the first, and its first samples are blank.
const (
	nodeCheckPolls     = 4
	profiledCheckPolls = 10
)

// runCheckNode reads the node as the service would with this configuration, and reports what it can see. It changes
// nothing. ok is false if something that the configuration asks for cannot be had.
func runCheckNode(ctx context.Context, cfg Config, out io.Writer, logger log.Logger) (ok bool, err error) {
	// Partition control would write to its state folder, and nothing here needs it.
	cfg.Control = ControlConfig{}
	cfg.Capture.Polls = nodeCheckPolls

	report, err := checkNode(ctx, &cfg, logger)
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
func checkNode(ctx context.Context, cfg *Config, logger log.Logger) (*nodeReport, error) {
	node, err := openDriver(cfg, logger)
	if err != nil {
		return nil, err
	}
	defer node.close()

	host := node.kind.readHost(cfg) // before the GPUs are opened, which wakes them
	if err := node.kind.openPods(node, cfg); err != nil {
		host.podsErr = err
	}
	if host.dcgm == nil { // an engine in this process could take the profiling from the service's
		node.openProfiler(cfg)
	}
	node.openKernelLog(cfg)
	if node.profiler != nil {
		cfg.Capture.Polls = profiledCheckPolls
	}

	calls := newCallTimes()
	recorder := capture.NewRecorder(node.library, node.now())
	recorder.Observe(calls.add)
	last, err := recordPolls(ctx, cfg, node, recorder, nvmlsource.Options{
		Now: node.now, MayOpen: node.mayOpen, Admin: node.admin, Logger: logger,
		GPM: cfg.asksGPM(), ProcessesHidden: node.processesHidden, ProcessUtilization: cfg.servesProcesses(),
	})
	if err != nil {
		return nil, err
	}
	if last == nil {
		last = &gpu.Snapshot{Sources: []gpu.SourceState{{Name: gpu.SourceNVML, Err: gpu.ErrVersionMismatch}}}
	}

	judge := nodeJudge{cfg: cfg, host: host, last: last, calls: calls}
	judge.judge()
	return &nodeReport{Checks: judge.checks, Calls: calls.list()}, nil
}

// callTimes adds up how long each function of the driver took. It is safe for concurrent use.
type callTimes struct {
	mu         sync.Mutex
	byFunction map[string]*callTime
}

// callTime is how often a function was called, and how long that took.
type callTime struct {
	Function   string  `json:"function"`
	Calls      int     `json:"calls"`
	Seconds    float64 `json:"seconds"`
	MaxSeconds float64 `json:"maxSeconds"` // of the longest call
}

func newCallTimes() *callTimes { return &callTimes{byFunction: map[string]*callTime{}} }

func (c *callTimes) add(function string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.byFunction[function]
	if t == nil {
		t = &callTime{Function: function}
		c.byFunction[function] = t
	}
	t.Calls++
	t.Seconds += took.Seconds()
	t.MaxSeconds = max(t.MaxSeconds, took.Seconds())
}

// list returns the functions that were called, the one that took longest first.
func (c *callTimes) list() []callTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []callTime{}
	for _, t := range c.byFunction {
		list = append(list, *t)
	}
	slices.SortFunc(list, func(a, b callTime) int {
		if a.Seconds != b.Seconds {
			return int(max(-1, min(1, (b.Seconds-a.Seconds)*1e12)))
		}
		return strings.Compare(a.Function, b.Function)
	})
	return list
}

// describeError returns an error's text for the report, with what it was about in front.
func describeError(about string, err error) string { return fmt.Sprintf("%s: %v", about, err) }
