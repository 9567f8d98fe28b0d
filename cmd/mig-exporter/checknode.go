package main

import (
	"cmp"
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
	if node.profiler != nil {
		cfg.Capture.Polls = profiledCheckPolls
	}

	calls := newCallTimes()
	recorder := capture.NewRecorder(nvmlsource.ObserveCalls(node.library, calls), node.now())
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

	judge := nodeJudge{cfg: cfg, host: host, last: last}
	judge.judge()

	list := calls.list()

	return &nodeReport{Checks: judge.checks, CallClasses: sumClasses(list), Calls: list}, nil
}

// callTimes adds up how long each function of the driver took. It is safe for concurrent use.
type callTimes struct {
	classes map[string]gpu.CallClass // never modified

	mu         sync.Mutex
	byFunction map[string]*callTime
}

// callTime is how often a function was called, and how long that took.
type callTime struct {
	Function   string        `json:"function"`
	Class      gpu.CallClass `json:"class"`
	Calls      int           `json:"calls"`
	Seconds    float64       `json:"seconds"`
	MaxSeconds float64       `json:"maxSeconds"`           // of the longest call
	Unreturned int           `json:"unreturned,omitempty"` // calls that still hang; their time is not known
}

// classTime is how often the functions of a class were called, and how long that took.
type classTime struct {
	Class   gpu.CallClass `json:"class"`
	Calls   int           `json:"calls"`
	Seconds float64       `json:"seconds"`
}

func newCallTimes() *callTimes {
	return &callTimes{classes: gpu.ClassifiedCalls(), byFunction: map[string]*callTime{}}
}

// BeginCall counts a call before it is made, so that one that hangs is in the report.
func (c *callTimes) BeginCall(function string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	t := c.byFunction[function]
	if t == nil {
		t = &callTime{Function: function, Class: cmp.Or(c.classes[function], gpu.CallUnknown)}
		c.byFunction[function] = t
	}
	t.Calls++
	t.Unreturned++

	return time.Now()
}

// EndCall adds the time that a call took.
func (c *callTimes) EndCall(function string, began time.Time) {
	seconds := time.Since(began).Seconds()

	c.mu.Lock()
	defer c.mu.Unlock()

	t := c.byFunction[function]
	t.Unreturned--
	t.Seconds += seconds
	t.MaxSeconds = max(t.MaxSeconds, seconds)
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
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(a.Function, b.Function))
	})

	return list
}

// sumClasses adds up calls by class, the dearest first.
func sumClasses(calls []callTime) []classTime {
	list := []classTime{}
	for _, class := range gpu.CallClasses() {
		sum := classTime{Class: class}
		for _, c := range calls {
			if c.Class == class {
				sum.Calls += c.Calls
				sum.Seconds += c.Seconds
			}
		}
		if sum.Calls > 0 {
			list = append(list, sum)
		}
	}

	return list
}

// describeError returns an error's text for the report, with what it was about in front.
func describeError(about string, err error) string { return fmt.Sprintf("%s: %v", about, err) }
