package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/common/version"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/health"
	"github.com/mig-exporter/mig-exporter/internal/health/nodestatus"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/sdnotify"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

// shutdownTimeout bounds each part of the shutdown: requests in flight, driver calls under way.
const shutdownTimeout = 5 * time.Second

// minFresh is the shortest time for which scrapers share the metrics of the process.
const minFresh = time.Second

// loopMargin is what a cycle of the poll loop may take at most besides the wait for readings.
const loopMargin = 30 * time.Second

// errAnswered ends a request to the poll loop before it polls.
var errAnswered = errors.New("the loop has answered")

// run serves until ctx ends. It returns nil then, or why it could not start or continue.
func run(ctx context.Context, cfg *Config, logger log.Logger) error {
	level.Info(logger).Log(
		"msg", "starting mig-exporter",
		"version", version.Info(),
		"build", version.BuildContext(),
	)

	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	// This runs after the driver was shut down: from then on SIGHUP ends the process.
	defer signal.Stop(hangups)

	x, err := newExporter(cfg, logger)
	if err != nil {
		return err
	}
	defer x.close()

	listening := make(chan struct{})
	manager := sdnotify.New(sdnotify.Options{
		Listening:    listening,
		AskLoop:      x.askLoop,
		AnswerWithin: cfg.Poll.grace(cfg.Driver.stepped()) + loopMargin,
		Logger:       logger,
	})

	files := newReloader(x, manager)

	parts := []func(context.Context) error{
		x.poller.Run,
		manager.Run,
		func(ctx context.Context) error {
			defer x.state.Close() // also if it cannot serve: partition control waits for its streams

			return web.Serve(ctx, web.ServerOptions{
				OnShutdown:      x.state.Close,
				Addresses:       cfg.Web.Addresses,
				ConfigFile:      cfg.Web.ConfigFile,
				SystemdSocket:   cfg.Web.SystemdSocket,
				ShutdownTimeout: shutdownTimeout,
				OnListening:     func() { close(listening) },
			}, x.handler, logger)
		},
		func(ctx context.Context) error { return files.run(ctx, hangups) },
	}

	return runTogether(ctx, append(parts, x.node.parts...))
}

// askLoop returns nil once the poll loop has come to the end of a cycle. A driver call that hangs
// does not stop the loop, so it stops neither this nor the pings of systemd's watchdog.
func (x *exporter) askLoop(ctx context.Context) error {
	err := x.poller.Poll(ctx, func() error { return errAnswered })
	if errors.Is(err, errAnswered) {
		return nil
	}

	return err
}

// exporter is the program without its command line and its sockets. Its parts are not started.
type exporter struct {
	node        *node
	source      *nvmlsource.Source
	collected   collector.Options   // without what newCollector adds
	counters    []collector.Counter // in force; owned by the reloader once it runs
	files       []*reloadable
	metrics     *servedMetrics
	fresh       *prometheus.Registry
	poller      *poll.Poller
	health      *health.Tracker
	state       *web.Node // the handlers of the node's state, for all listeners
	handler     http.Handler
	control     *controller // nil if it is off
	releaser    *gpuReleaser
	releases    *releaseServer
	activity    *activityNote
	persistence *persistenceNote
	layouts     *layoutFollower    // nil without partition control, or if no condition is written
	nodeEvents  *nodestatus.Events // nil if none are created
	logger      log.Logger

	advises bool // right-sizing is on, and needs readings that may not be served

	findings func() *[]web.Finding // what check-node says of the node; nil if the page is off

	// flush blocks until what follows from the last Snapshot is served, and written to the Node.
	flush func(context.Context)

	// Right-sizing sets these. Without it they are nil.
	recommendations func(gpu.UUID) any
	advice          func() []collector.Advice

	// Partition control sets these. Without it the log has the audit of releases.
	audit          io.Writer
	holdOperations func(context.Context) (release func(), err error)
	controlNotes   func() []string

	labelNotes func() []string // what follows the node's labels sets it
}

// newExporter opens the node and creates the parts of the program. The caller closes the result.
func newExporter(cfg *Config, logger log.Logger) (*exporter, error) {
	node, err := openNode(cfg, logger)
	if err != nil {
		return nil, err
	}

	return newExporterOf(node, cfg, logger)
}

// newExporterOf creates the parts of the program that serve a node, and takes the node over.
func newExporterOf(node *node, cfg *Config, logger log.Logger) (*exporter, error) {
	x := &exporter{
		node:        node,
		activity:    newActivityNote(cfg.Profiling.Source, node, logger),
		persistence: &persistenceNote{confidential: node.confidential.Load, logger: logger},
		advises:     cfg.Advise.Enabled,
		logger:      logger,

		flush:          func(context.Context) {},
		audit:          logAudit{logger},
		holdOperations: func(context.Context) (func(), error) { return func() {}, nil },
		controlNotes:   func() []string { return nil },
		labelNotes:     func() []string { return nil },
	}

	if cfg.Advise.Enabled {
		x.openRightsizing(&cfg.Advise, cfg.Poll.Interval, cfg.Kubernetes.NodeName != "")
	}

	x.source = x.newSource(&cfg.Profiling, &cfg.Metrics, &cfg.Poll)
	node.onClose(func() { closeSource(x.source, logger) })

	x.collected = collectorOptions(&cfg.Metrics, &cfg.Kubernetes, cfg.JobDir != "")
	if err := x.openMetrics(cfg.Metrics.CountersFile); err != nil {
		x.close()
		return nil, err
	}

	var pollSeconds prometheus.Histogram

	x.fresh, pollSeconds = newProcessRegistry()
	if node.isOwn() {
		x.fresh.MustRegister(newSimulatedClock())
	}

	x.openFindings(cfg)

	node.poll.ReplaceProfiler = cfg.Profiling.Source == profilingDCGM
	x.poller = x.newPoller(&cfg.Poll, cmp.Or(cfg.Hostname, node.hostname), pollSeconds)
	x.releaser = newGPUReleaser(x.source, func(ctx context.Context) error { return x.poller.Poll(ctx, nil) })
	node.running.current = x.poller.Current
	x.openState(&cfg.Poll)
	x.openHealthMemory(cfg.stateDir())

	if err := x.openNodeReports(&cfg.Kubernetes, cfg.Control.Enabled); err != nil {
		x.close()
		return nil, err
	}

	if err := x.openClusterParts(cfg); err != nil {
		x.close()
		return nil, err
	}

	x.releases = newReleaseServer(releaseSocket(cfg.ReleaseSocket, node.isSimulated()), x)
	node.parts = append(node.parts, x.releases.run)
	x.handler = web.NewHandler(x.webOptions(&cfg.Web, &cfg.Poll), x.poller, x.metrics, x.fresh, logger)

	return x, nil
}

// openState creates what keeps the node's past and its health, and serves them with its state.
func (x *exporter) openState(polls *PollConfig) {
	past := history.New(2 * poll.LongestInterval(polls.Interval) * x.node.speed)
	x.node.observers = append(x.node.observers, past.Observe)
	x.health = health.New(polls.readyMaxAge(x.node.speed), x.node.now())
	x.state = web.NewNode(x.poller, past, x.reportHealth, x.logger)
}

// openClusterParts opens partition control and what follows the node's labels, if they are on.
func (x *exporter) openClusterParts(cfg *Config) error {
	if err := x.node.openCluster(cfg); err != nil {
		return err
	}

	if cfg.Control.Enabled {
		if err := openControl(&cfg.Control, x); err != nil {
			return err
		}
	}

	return x.openNodeLabels(cfg)
}

// newSource creates the source of readings.
func (x *exporter) newSource(
	profiling *ProfilingConfig, metrics *MetricsConfig, polls *PollConfig,
) *nvmlsource.Source {
	opts := x.node.sourceOptions(profiling, metrics)
	opts.HangsAfter = polls.Timeout
	opts.LongReading = poll.LongestInterval(polls.Interval)
	opts.Opening = x.opening()

	return nvmlsource.New(x.node.library, opts)
}

// newPoller creates the poller. It hands each snapshot of the host to observe, and the duration of
// each poll to pollSeconds.
func (x *exporter) newPoller(
	cfg *PollConfig, hostname string, pollSeconds prometheus.Observer,
) *poll.Poller {
	opts := x.node.pollOptions(cfg)
	opts.Hostname = hostname
	opts.Observe = func(s *gpu.Snapshot, took time.Duration) {
		x.observe(s)

		if !s.BetweenPolls {
			pollSeconds.Observe(took.Seconds())
			x.node.polled()
		}
	}
	followSource(&opts, cfg, x.source)
	opts.Extras = neededExtras(x.advises, x.metrics.current.Load())

	return poll.New(x.source, opts)
}

// observe hands a snapshot to all that follow the node.
func (x *exporter) observe(s *gpu.Snapshot) {
	x.metrics.Observe(s)
	x.activity.observe(s)
	x.persistence.observe(s)
	x.health.Observe(s)

	if s.BetweenPolls {
		return // evidence and durations go by whole polls
	}

	for _, observe := range x.node.observers {
		observe(s)
	}
}

// reportHealth returns how the node is now.
func (x *exporter) reportHealth() *health.Report { return x.health.Report(x.node.now()) }

// openMetrics reads the counters file and creates the collector.
func (x *exporter) openMetrics(countersFile string) error {
	counters, err := loadCounters(countersFile, x.logger)
	if err != nil {
		return err
	}

	c, err := x.newCollector(counters, nil)
	if err != nil {
		return err
	}

	x.counters = counters
	x.metrics = newServedMetrics(c)

	if countersFile != "" && x.collected.Names != collector.NamesNative {
		x.files = append(
			x.files,
			&reloadable{flag: "--dcgm.counters", path: countersFile, broken: keepsOld,
				read: func() (applyFunc, error) { return x.readCounters(countersFile) }},
		)
	}

	return nil
}

// newCollector creates a collector of what the exporter reads, in the place of a former one if that
// is not nil.
func (x *exporter) newCollector(
	counters []collector.Counter, former *collector.Collector,
) (*collector.Collector, error) {
	opts := x.collected
	opts.Counters = counters
	opts.DriverUse = x.source.DriverUse
	opts.ProfilerCalls = x.node.dcgm.calls
	opts.Former = former
	opts.Advice = x.advice

	return collector.New(opts)
}

// collectorOptions returns what the configuration asks for, without the counters file.
func collectorOptions(cfg *MetricsConfig, pods *KubernetesConfig, jobs bool) collector.Options {
	return collector.Options{
		PodLabels:         pods.PodLabels,
		PodLabelNames:     pods.PodLabelNames,
		Jobs:              jobs,
		Disabled:          cfg.Disabled,
		Now:               time.Now,
		Names:             cfg.Names,
		RepeatGPUFields:   cfg.RepeatGPUFields,
		HostnameLabel:     cfg.HostnameLabel,
		NodeName:          cfg.NodeName,
		XIDWindow:         cfg.XIDWindow,
		ClockEventsWindow: cfg.ClockEventsWindow,
	}
}

func (x *exporter) webOptions(cfg *WebConfig, polls *PollConfig) web.Options {
	return web.Options{
		Notes: func() []string {
			return slices.Concat(x.activity.notes(), x.controlNotes(), x.labelNotes())
		},
		MaxScrapes:     cfg.MaxScrapes,
		FreshFor:       polls.freshFor(),
		FreshCollector: collector.ExporterGroup,
		ReadyMaxAge:    polls.readyMaxAge(x.node.speed),
		State:          cfg.State,
		Node:           x.state,
		Hosts:          hostNames(cfg.Addresses, x.node.hostname),
		Pprof:          cfg.Pprof,
		NoOpenMetrics:  x.collected.Names != collector.NamesNative,

		Simulated: x.node.isSimulated(),
		Version:   version.Version,
		Now:       x.node.now,
		Register:  x.fresh,

		Recommendations: x.recommendations,
		Findings:        x.findings,
		Extra:           x.node.handlers(x.poller, x.flush),
	}
}

// hostNames lists the host names that requests may have: those of the node and of the addresses
// that the program listens on.
func hostNames(addresses []string, node string) []string {
	names := []string{node}
	if own, err := os.Hostname(); err == nil {
		names = append(names, own)
	}

	for _, address := range addresses {
		if host, _, err := net.SplitHostPort(address); err == nil && host != "" {
			names = append(names, host)
		}
	}

	return names
}

// close closes partition control, then the driver, then the node that it belongs to.
func (x *exporter) close() { x.node.close() }

// runTogether runs the parts of the program until the first of them returns, which ends all.
func runTogether(ctx context.Context, parts []func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	ends := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			defer cancel()
			ends <- part(ctx)
		}()
	}

	var errs []error
	for range parts {
		errs = append(errs, <-ends)
	}

	return errors.Join(errs...)
}

// followSource makes a loop judge readings by the calls that a source makes for them.
func followSource(opts *poll.Options, cfg *PollConfig, source *nvmlsource.Source) {
	opts.Progress = source.Progress
	opts.HungElsewhere = source.Actuator().HungCalls
	opts.Budget = poll.Budget{
		Seconds:   cfg.DriverBudget,
		Interval:  cfg.Interval,
		SlowEvery: nvmlsource.DefaultSlowEvery,
		Costs:     source.ReadCosts,
	}
}

// newProcessRegistry returns the registry of the metrics of the process itself, and the histogram
// of the duration of polls.
func newProcessRegistry() (*prometheus.Registry, prometheus.Histogram) {
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "mig_exporter_poll_duration_seconds",
		Help:    "Duration of a poll: reading all GPUs and their holders, and building the Snapshot.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},

		NativeHistogramBucketFactor: 1.1,
	})
	r := prometheus.NewRegistry()
	r.MustRegister(
		took,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		versioncollector.NewCollector("mig_exporter"),
	)

	return r, took
}

// newSimulatedClock returns the metric that marks times that are not those of this machine. It is
// served with the value 1 or not at all.
func newSimulatedClock() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "mig_exporter_simulated_clock",
		Help: "1 while times in the metrics are those of a clock that is stepped or sped up (--sim.clock).",
	})
	g.Set(1)

	return g
}

// closeSource gives the driver time to finish; a call that hangs is abandoned.
func closeSource(source *nvmlsource.Source, logger log.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()

	if err := source.Close(ctx); err != nil {
		level.Warn(logger).Log("msg", "cannot shut NVML down", "err", err)
	}
}

// logAudit writes the audit log to the program's log.
type logAudit struct{ logger log.Logger }

func (a logAudit) Write(line []byte) (int, error) {
	entry := json.RawMessage(line)

	err := level.Info(a.logger).Log("msg", "audit", "entry", string(entry[:len(entry)-1]))
	if err != nil {
		return 0, err
	}

	return len(line), nil
}
