package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/capture"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/cluster"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/hpcjobs"
	"github.com/mig-exporter/mig-exporter/internal/kernellog"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/servermetrics"
)

// nodeKind is what a node is: this machine, a simulation, or the recording of another machine.
type nodeKind interface {
	// openPods opens the sources of the node's pods and containers, if there are any. In the folder
	// markDir it remembers that a kubelet has answered; empty: it does not.
	openPods(n *node, cfg *KubernetesConfig, markDir string) error
	// openProcessTable returns a table of the names of processes and, if withUsers is set, of their
	// users; nil if the node has none.
	openProcessTable(withUsers bool) poll.ProcessTable
	// readHost reads what check-node reports of the host. embedded says that DCGM runs in this
	// process.
	readHost(embedded bool) hostFacts
	// hostEngine returns the DCGM host engine of the node, and a function that returns the id of the
	// user that runs it; nil if the node has none.
	hostEngine(cfg *ProfilingConfig) (engine dcgmsource.Connector, user func() int)
	// openDependencies opens what partition control needs besides the driver and the kubelet. It
	// returns what tells partition control who a client is; nil if there is no cluster (n.cluster).
	// It fails if the node cannot be repartitioned.
	openDependencies(n *node, cfg *ControlConfig) (server.Reviewer, error)
	// apiServer returns where the node's API server is.
	apiServer() (apiServer, error)
}

// movableClock is the clock of a simulation or a recording. It can be moved if it is stepped.
type movableClock interface {
	Advance(by time.Duration) error
	// AwaitHandled blocks until what has happened meanwhile is handled: see sim.Node.AwaitHandled.
	AwaitHandled(ctx context.Context)
}

// node is what the program reads: the same for all kinds of nodes. Its fields poll, control and log
// are options for these packages, with what this node has; sources that are absent there are not
// asked.
type node struct {
	clock
	driverAccess
	kind     nodeKind
	hostname string
	boot     func() (string, error) // the id of this boot; empty if the node has none
	dcgm     dcgmAccess

	poll    poll.Options
	control control.Options
	log     kernellog.Options

	cluster *cluster.Cluster // nil if we do not ask the API server
	polled  func()           // called after each poll
	// states return the states of the sources that the poll loop does not read itself; ok is false
	// while a source is not asked.
	states     []func() (state gpu.SourceState, ok bool)
	serverPods servermetrics.Pods // finds pods; nil if we do not ask the API server
	running    runningContainers

	observers []func(*gpu.Snapshot)         // called with the Snapshot of each whole poll
	parts     []func(context.Context) error // run beside the poll loop
	closers   []func() error
	logger    log.Logger
}

// clock is the time of a node.
type clock struct {
	now     func() time.Time
	speed   time.Duration // how many times as fast as real time it runs, without unit
	stepped bool          // it only moves by /-/sim/advance
}

// differs reports whether the clock can differ from this machine's.
func (c *clock) differs() bool { return c.stepped || c.speed != 1 }

// driverAccess is the driver of a node, with what this process may do with it.
type driverAccess struct {
	library nvmlsource.Library
	admin   bool // this process has an administrator's rights on the machine's GPUs
	// mayOpen returns why this process may not open the GPUs; nil if it may.
	mayOpen      func(confidential gpu.Opt[bool]) error
	confidential atomic.Bool        // whether the GPUs are in confidential-computing mode; mayOpen sets it
	opening      nvmlsource.Opening // without Pause; empty: GPUs cannot be released
	// processesHidden is why the driver's lists of processes can be incomplete; nil if they are
	// complete.
	processesHidden error
}

// dcgmAccess is what the program does with DCGM besides reading activity. If DCGM is not used, retry
// and end do nothing.
type dcgmAccess struct {
	calls func() uint64 // how many calls we have made; nil if DCGM is not used
	retry func()        // asks again for what DCGM has refused
	// end ends an embedded DCGM, which has the GPUs open, until the caller calls resume.
	end func(context.Context) (resume func(), err error)
}

// isSimulated reports whether the node is not this machine.
func (n *node) isSimulated() bool {
	_, here := n.kind.(machine)
	return !here
}

// sourceOptions returns the options of a source that reads the driver of the node.
func (n *node) sourceOptions(profiling *ProfilingConfig, metrics *MetricsConfig) nvmlsource.Options {
	return nvmlsource.Options{
		Now:                n.now,
		Logger:             n.logger,
		MayOpen:            n.mayOpen,
		Admin:              n.admin,
		GPM:                profiling.asksGPM(),
		ProcessesHidden:    n.processesHidden,
		ProcessUtilization: metrics.servesProcesses(),
	}
}

// pollOptions returns the options of a loop that reads the node.
func (n *node) pollOptions(cfg *PollConfig) poll.Options {
	opts := n.poll
	opts.Hostname = n.hostname
	opts.Interval = cfg.Interval
	opts.Grace = cfg.grace(n.stepped)
	opts.Timeout = cfg.Timeout * n.speed
	opts.StaleAfter = staleIntervals * cfg.Interval * n.speed
	opts.PodsStaleAfter = podsStaleAfter * n.speed
	opts.Now = n.now
	opts.Sources = n.sources
	opts.Logger = n.logger

	if n.stepped { // the loop does not poll by itself: /-/sim/advance does
		opts.Interval = 0
	}

	return opts
}

// openNode opens a node with the sources of its pods, activity and jobs.
func openNode(cfg *Config, logger log.Logger) (*node, error) {
	n, err := openDriver(&cfg.Driver, logger)
	if err != nil {
		return nil, err
	}

	if err := n.kind.openPods(n, &cfg.Kubernetes, cfg.Control.markDir()); err != nil {
		n.close()
		return nil, err
	}

	n.poll.ProcessContainers = cfg.Metrics.servesProcesses()
	n.openProcesses(cfg)

	if cfg.Advise.Enabled && cfg.Advise.ServerMetrics {
		n.openServers()
	}

	n.openProfiler(&cfg.Profiling, cfg.Poll.Interval)
	n.openKernelLog(cfg.Driver.KernelLog)
	n.openJobs(cfg.JobDir)

	return n, nil
}

// openProcesses sets what we serve of single processes. Outside of the host's PID namespace we know
// nothing of them.
func (n *node) openProcesses(cfg *Config) {
	detail := cfg.Web.processDetail()
	n.poll.Processes = detail

	if !detail.ListsProcesses() {
		if off, known := cfg.Metrics.Disabled[collector.GroupProcessInfo]; known && !off {
			level.Warn(n.logger).Log(
				"msg", "collector has no series", "collector", collector.GroupProcessInfo,
				"needs", "--web.processes=names or users",
			)
		}

		return
	}

	if n.processesHidden == nil {
		n.poll.ProcessTable = n.kind.openProcessTable(detail == gpu.ProcessUsers)
	}
}

// openJobs opens the folder of batch jobs, if one is configured.
func (n *node) openJobs(dir string) {
	if dir != "" {
		n.poll.Jobs = hpcjobs.New(dir, n.logger)
	}
}

// openKernelLog begins to read the kernel's log, if that is enabled. If it cannot be read, it is a
// source that is down, which we try again.
func (n *node) openKernelLog(enabled bool) {
	if !enabled {
		return
	}

	n.log.Now = n.now
	opened := kernellog.Start(n.log)
	n.onClose(opened.Close)
	n.poll.KernelLog = opened
}

// openDriver opens a node without the sources of its pods.
func openDriver(cfg *DriverConfig, logger log.Logger) (*node, error) {
	n := &node{
		clock:        clock{speed: cfg.clockSpeed(), stepped: cfg.stepped()},
		driverAccess: driverAccess{mayOpen: func(gpu.Opt[bool]) error { return nil }},
		dcgm: dcgmAccess{
			retry: func() {},
			end:   func(context.Context) (func(), error) { return func() {}, nil },
		},
		boot:    func() (string, error) { return "", nil },
		polled:  func() {},
		running: runningContainers{current: func() *gpu.Snapshot { return nil }},
		logger:  logger,
	}
	var err error

	switch {
	case cfg.Kind == driverSim && cfg.Scenario != "" && capture.IsRecording(cfg.Scenario):
		err = n.openRecording(cfg)
	case cfg.Kind == driverSim:
		err = n.openSimulation(cfg)
	case cfg.Scenario != "":
		err = fmt.Errorf("--sim.scenario=%s: expected --driver=sim with it", cfg.Scenario)
	default:
		err = n.openMachine(cfg.Library)
	}

	switch cfg.PIDNamespace {
	case pidNamespaceHost:
		n.processesHidden = nil
	case pidNamespaceContainer:
		n.processesHidden = fmt.Errorf(
			"--pid-namespace=%s: %w",
			cfg.PIDNamespace,
			gpu.ErrPIDNamespace,
		)
	}

	return n, err
}

// onClose registers a function for close to call.
func (n *node) onClose(f func()) {
	n.closers = append(n.closers, func() error {
		f()
		return nil
	})
}

// close closes what the node has opened, in reverse order.
func (n *node) close() {
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		errs = append(errs, n.closers[i]())
	}

	if err := errors.Join(errs...); err != nil {
		level.Warn(n.logger).Log("msg", "close", "err", err)
	}
}

// handlers returns the handlers of a simulation or a recording; nil for a machine. flush blocks until
// everything that follows from the last Snapshot is served.
func (n *node) handlers(poller *poll.Poller, flush func(context.Context)) map[string]http.Handler {
	clock, ok := n.kind.(movableClock)
	if !ok {
		return nil
	}

	all := map[string]http.Handler{"POST /-/sim/advance": advanceHandler(clock, poller, flush)}
	if s, ok := n.kind.(simulation); ok {
		all["POST /-/sim/replace-pod"] = replacePodHandler(s)
		all["GET /-/sim/truth"] = s.evaluation
	}

	return all
}

// stepper is the poll loop: Poll calls first, polls, and publishes a Snapshot.
type stepper interface {
	Poll(ctx context.Context, first func() error) error
	Current() *gpu.Snapshot
}

// advanceHandler answers POST /-/sim/advance?by=DURATION: it moves a stepped clock, and answers when
// the Snapshot of the new time is published and everything that follows from it is served.
func advanceHandler(clock movableClock, loop stepper, flush func(context.Context)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by, err := time.ParseDuration(r.URL.Query().Get("by"))
		if err != nil || by < 0 {
			http.Error(
				w,
				fmt.Sprintf(
					"by=%q: expected a duration such as 1s or 10m",
					r.URL.Query().Get("by"),
				),
				http.StatusBadRequest,
			)

			return
		}

		// The clock moves between two polls, so that all readings of a poll have one time.
		err = loop.Poll(r.Context(), func() error {
			if err := clock.Advance(by); err != nil {
				return err
			}

			clock.AwaitHandled(r.Context()) // so that the loop gets all events before it polls

			return nil
		})
		switch {
		case errors.Is(err, poll.ErrStopped) || r.Context().Err() != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}

		flush(r.Context())
		s := loop.Current()
		fmt.Fprintf(w, "generation %d at %s\n", s.Generation, s.Time.UTC().Format(time.RFC3339Nano))
	})
}
