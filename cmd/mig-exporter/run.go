package main

import (
	"cmp"
	"context"
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

// minFresh is the shortest time for which scrapers share the fresh metrics, those of this process.
const minFresh = time.Second

// loopMargin is how long a cycle of the poll loop may take besides the wait for readings. If it takes
// longer, systemd's watchdog restarts the program.
const loopMargin = 30 * time.Second

// errAnswered is what askLoop returns from the function that begins a poll, to prevent the poll.
var errAnswered = errors.New("the loop has answered")

// run serves until ctx ends. It returns why it could not start or continue; nil if ctx ended.
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
			defer x.state.Close() // ends the streams of partition control, even if we cannot serve

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

// askLoop returns nil once the poll loop has come to the end of a cycle: then systemd's watchdog gets
// a ping. A driver call that hangs does not stop the loop.
func (x *exporter) askLoop(ctx context.Context) error {
	err := x.poller.Poll(ctx, func() error { return errAnswered })
	if errors.Is(err, errAnswered) {
		return nil
	}

	return err
}

// exporter is the program without its command line and its sockets. The parts in node.parts are not
// started yet.
type exporter struct {
	node        *node
	source      *nvmlsource.Source
	metricsBase collector.Options   // newCollector adds the rest
	counters    []collector.Counter // in force; only the reloader uses them once it runs
	files       []*reloadable
	metrics     *servedMetrics
	fresh       *prometheus.Registry // the metrics of this process
	poller      *poll.Poller
	health      *health.Tracker
	state       *web.Node // the handlers of the node's state, for all listeners
	handler     http.Handler
	control     *controller // nil if it is off
	releaser    *gpuReleaser
	releases    *releaseServer
	activity    *activityNote
	persistence *persistenceNote
	layouts     *layoutFollower    // nil if we write no node conditions
	nodeEvents  *nodestatus.Events // nil if we create none
	logger      log.Logger

	advises bool // right-sizing is on, which needs readings that metrics may not need

	findings func() *[]web.Finding // the failed checks of the node; nil if there is no status page

	// flush blocks until everything that follows from the last Snapshot is served, and written to the
	// Node object.
	flush func(context.Context)

	// Right-sizing sets these. Without it they are nil.
	recommendations func(gpu.UUID) any
	advice          func() []collector.Advice

	// Partition control sets these. Without it, audit is the program's log, and the functions do
	// nothing.
	audit          io.Writer
	holdOperations func(context.Context) (release func(), err error)
	controlNotes   func() []string

	labelNotes func() []string // lines of the readiness answer about the node's labels
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

	x.metricsBase = collectorOptions(&cfg.Metrics, &cfg.Kubernetes, cfg.JobDir != "")
	if err := x.openMetrics(cfg.Metrics.CountersFile); err != nil {
		x.close()
		return nil, err
	}

	var pollSeconds prometheus.Histogram

	x.fresh, pollSeconds = newProcessRegistry()
	if node.differs() {
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

// openState creates the node's history and its health, and the handlers that serve them with the
// node's state.
func (x *exporter) openState(polls *PollConfig) {
	past := history.New(2 * poll.LongestInterval(polls.Interval) * x.node.speed)
	x.node.observers = append(x.node.observers, past.Observe)
	x.health = health.New(polls.readyMaxAge(x.node.speed), x.node.now())
	x.state = web.NewNode(x.poller, past, x.reportHealth, x.logger)
}

// openClusterParts opens partition control, and the reader or follower of the node's labels, if they
// are on.
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

// newPoller creates the poller. It passes each Snapshot to x.observe, and the duration of each poll
// to pollSeconds.
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

// observe passes a Snapshot to everything that follows the node.
func (x *exporter) observe(s *gpu.Snapshot) {
	x.metrics.Observe(s)
	x.activity.observe(s)
	x.persistence.observe(s)
	x.health.Observe(s)

	if s.BetweenPolls {
		return // the observers count whole polls
	}

	for _, observe := range x.node.observers {
		observe(s)
	}
}

// reportHealth returns the health of the GPUs now.
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

	if countersFile != "" && x.metricsBase.Names != collector.NamesNative {
		x.files = append(
			x.files,
			&reloadable{flag: "--dcgm.counters", path: countersFile, broken: keepsOld,
				read: func() (applyFunc, error) { return x.readCounters(countersFile) }},
		)
	}

	return nil
}

// newCollector creates a collector, which takes over the counts of a former one if that is not nil.
func (x *exporter) newCollector(
	counters []collector.Counter, former *collector.Collector,
) (*collector.Collector, error) {
	opts := x.metricsBase
	opts.Counters = counters
	opts.DriverUse = x.source.DriverUse
	opts.ProfilerCalls = x.node.dcgm.calls
	opts.Former = former
	opts.Advice = x.advice

	return collector.New(opts)
}

// collectorOptions returns the collector's options by the configuration, without the counters file.
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

// maxScrapes limits the scrapes that are gathered and encoded at the same time; it is node_exporter's
// default, too. Each takes milliseconds, and scrapers of one Snapshot share the work: only far more
// clients than any node has would reach the limit.
const maxScrapes = 40

func (x *exporter) webOptions(cfg *WebConfig, polls *PollConfig) web.Options {
	return web.Options{
		Notes: func() []string {
			return slices.Concat(x.activity.notes(), x.controlNotes(), x.labelNotes())
		},
		MaxScrapes:     maxScrapes,
		FreshFor:       polls.freshFor(),
		FreshCollector: collector.ExporterGroup,
		ReadyMaxAge:    polls.readyMaxAge(x.node.speed),
		State:          cfg.State,
		Node:           x.state,
		Hosts:          hostNames(cfg.Addresses, x.node.hostname),
		Pprof:          cfg.Pprof,
		NoOpenMetrics:  x.metricsBase.Names != collector.NamesNative,

		Simulated: x.node.isSimulated(),
		Version:   version.Version,
		Now:       x.node.now,
		Register:  x.fresh,

		Recommendations: x.recommendations,
		Findings:        x.findings,
		Extra:           x.node.handlers(x.poller, x.flush),
	}
}

// hostNames lists the host names that requests may use: the names of the node and of this machine,
// and those in the addresses on which we listen.
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

// close closes everything that the exporter has opened, in reverse order.
func (x *exporter) close() { x.node.close() }

// runTogether runs parts of the program. When one of them returns, it ends the others.
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

// followSource connects a poll loop with the driver calls of a source: the loop judges by them
// whether a reading hangs, and what it costs.
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

// newSimulatedClock returns a metric with the value 1, which we serve only if the times in the metrics
// are not those of this machine.
func newSimulatedClock() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "mig_exporter_simulated_clock",
		Help: "1 while times in the metrics are those of a clock that is stepped or sped up (--sim.clock).",
	})
	g.Set(1)

	return g
}

// closeSource closes a source. After shutdownTimeout it abandons driver calls that hang.
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
	err := level.Info(a.logger).Log("msg", "audit", "entry", string(line[:len(line)-1]))
	if err != nil {
		return 0, err
	}

	return len(line), nil
}
