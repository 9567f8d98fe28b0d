package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/hooks"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/control/store"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// auditFile is the name of the audit log in the state folder.
const auditFile = "audit.jsonl"

// controller is partition control: the engine, and the API that run serves.
type controller struct {
	engine  *control.Engine
	server  server.Options
	layouts map[string][]api.LayoutRule // from --control.layouts; only the reloader uses it once it runs
	named   *layoutSources
	reboot  []string // the command that reboots the node; nil if there is none
	metrics *collector.Control
	status  *controlStatus
	logger  log.Logger

	layoutsWanted *layoutFollower // nil if we write no node condition
}

// openControl adds partition control to the exporter. It opens neither the state folder nor a socket,
// because we still serve metrics if that fails.
func openControl(cfg *ControlConfig, x *exporter) error {
	c := &controller{logger: log.With(x.logger, "component", "control")}

	if cfg.ConfigFile != "" {
		if err := server.CheckConfig(cfg.ConfigFile); err != nil {
			return err
		}
	}

	reviewer, err := x.node.kind.openDependencies(x.node, cfg)
	if err != nil {
		return err
	}

	opts, err := c.engineOptions(cfg, x)
	if err != nil {
		return err
	}

	folder := store.New(cfg.StateDir)
	audit := server.NewAudit(filepath.Join(cfg.StateDir, auditFile), c.logger)
	x.node.closers = append(x.node.closers, folder.Close, audit.Close)

	opts.Store = folder
	if c.engine, err = control.New(opts); err != nil {
		return err
	}

	c.named = &layoutSources{file: c.layouts, apply: c.engine.SetLayouts}

	c.server = server.Options{
		Releaser:        x.servedReleaser(),
		Socket:          cfg.Socket,
		AllowGID:        cfg.AllowGID,
		ListenAddress:   cfg.ListenAddress,
		ConfigFile:      cfg.ConfigFile,
		Reloader:        &server.Reloader{},
		Reviewer:        reviewer,
		Node:            x.state.State,
		NodeStream:      x.state.Stream,
		NodeHistory:     x.state.History,
		Health:          x.state.Health,
		Current:         x.poller.Current,
		Recommendations: x.recommendations,
		Audit:           audit,
		Observer:        observer{c.metrics, c.status, nil},
		ShutdownTimeout: shutdownTimeout,
		Now:             time.Now,
	}
	x.control = c
	x.audit = audit
	x.holdOperations = c.engine.HoldOperations
	x.controlNotes = c.notes
	x.files = append(x.files, c.files(cfg)...)
	x.node.parts = append(x.node.parts, c.run)

	return nil
}

// files lists the files that are read again while the program runs.
func (c *controller) files(cfg *ControlConfig) []*reloadable {
	var list []*reloadable

	if cfg.LayoutsFile != "" {
		list = append(list, &reloadable{flag: "--control.layouts", path: cfg.LayoutsFile, broken: keepsOld,
			read: func() (applyFunc, error) { return c.readLayouts(cfg) }})
	}

	if cfg.ConfigFile != "" {
		list = append(list, &reloadable{
			flag: "--control.config.file",
			path: cfg.ConfigFile,
			broken: "cannot use a file; TLS keeps its certificate, but partition control " +
				"refuses all TCP clients until the file is valid",
			read: func() (applyFunc, error) {
				apply := c.server.Reloader.Read(cfg.ConfigFile)
				return func(context.Context) ([]string, error) { return apply() }, nil
			},
		})
	}

	return list
}

func (c *controller) engineOptions(cfg *ControlConfig, x *exporter) (control.Options, error) {
	layouts, err := cfg.layouts()
	if err != nil {
		return control.Options{}, err
	}

	c.layouts = layouts

	programs, reboot, err := cfg.hooks()
	if err != nil {
		return control.Options{}, fmt.Errorf("--control.hook: %w", err)
	}

	c.reboot = reboot
	c.metrics = newControlMetrics(x.node.now)
	// The engine begins with finishing the operation that the last run has left.
	c.status = &controlStatus{metrics: c.metrics, engine: "running"}

	if err := x.fresh.Register(c.metrics); err != nil {
		return control.Options{}, err
	}

	opts := x.node.control
	opts.Hostname = x.node.hostname
	opts.Apply = cfg.Mode == controlApply
	opts.Restore = cfg.Restore
	opts.Layouts = layouts
	opts.Actuator = x.source.Actuator()
	opts.Poller = x.poller
	opts.Cordon = cfg.Cordon
	opts.Observer = observer{c.metrics, c.status, x.layouts}
	opts.Unsettled = c.metrics.SetUnsettled
	opts.Unrestored = c.setUnrestored

	if x.layouts != nil {
		c.layoutsWanted = x.layouts
		opts.Wanted = x.layouts.setWanted
	}

	if x.nodeEvents != nil {
		opts.Ended = x.addEvent
	}

	opts.CallTimeout = cmp.Or(opts.CallTimeout, callTimeout) // a test may have set one
	opts.IdleFor = cfg.IdleFor
	opts.SettleTimeout = settleTimeout
	opts.RunHook = hooks.New(c.logger).Run
	opts.Hooks = programs
	opts.Now = x.node.now
	opts.Logger = c.logger

	return opts, nil
}

// layouts reads the file of named layouts, if one is configured.
func (c *ControlConfig) layouts() (map[string][]api.LayoutRule, error) {
	if c.LayoutsFile == "" {
		return nil, nil
	}

	list, err := spec.LoadLayouts(c.LayoutsFile)
	if err != nil {
		return nil, fmt.Errorf("--control.layouts: %w", err)
	}

	return list, nil
}

// hooks parses --control.hook: programs to run after a change, as in ["systemctl", "restart", "x"],
// and the command that reboots the node, as in {"reboot": ["reboot"]}; nil if there is none.
func (c *ControlConfig) hooks() (list []control.Hook, reboot []string, err error) {
	for _, text := range c.Hooks {
		var object struct {
			Reboot json.RawMessage `json:"reboot"`
		}

		isReboot := strings.HasPrefix(strings.TrimSpace(text), "{") &&
			json.Unmarshal([]byte(text), &object) == nil && object.Reboot != nil
		if isReboot {
			text = string(object.Reboot)
		}

		h, err := hooks.Parse(text, hookTimeout)
		if err != nil {
			return nil, nil, err
		}

		if isReboot {
			reboot = h.Argv
		} else {
			list = append(list, h)
		}
	}

	return list, reboot, nil
}

// retryServing is the time after which partition control tries again to serve its API.
const retryServing = 5 * time.Second

// run finishes an operation that a crash has interrupted, and serves the API until ctx ends. Errors do
// not end the program: they become the state of partition control.
func (c *controller) run(ctx context.Context) error {
	return runTogether(ctx, []func(context.Context) error{c.engine.Run, c.serveAPI})
}

// serveAPI serves the API. If that fails, it tries again every retryServing.
func (c *controller) serveAPI(ctx context.Context) error {
	opts := c.server

	opts.Ready = func(addresses []net.Addr) {
		c.status.setOff("")

		if c.server.Ready != nil {
			c.server.Ready(addresses)
		}
	}
	for {
		err := server.Serve(ctx, opts, c.engine, c.logger)
		if ctx.Err() != nil {
			return err
		}

		if c.status.setOff(err.Error()) {
			level.Error(c.logger).Log(
				"msg", "cannot serve the API of partition control, which is off; trying again",
				"err", err,
			)
		}

		if retry.Sleep(ctx, retryServing) != nil {
			return nil //nolint:nilerr // the program stops
		}
	}
}

// notes returns why partition control does not work, or not fully, as lines of the readiness answer.
func (c *controller) notes() []string {
	var list []string
	if off := c.status.offReason(); off != "" {
		list = append(list, "partition control is off: "+off)
	}

	reason := c.engine.Reason()
	if reason == "" {
		reason = c.status.auditFailure()
	}

	if reason != "" {
		list = append(list, "partition control is read-only: "+reason)
	}

	return list
}

// setUnrestored reports GPUs whose layouts were not restored, in metrics and the node condition.
func (c *controller) setUnrestored(list []api.Unrestored) {
	gpus := make([]collector.UnrestoredGPU, 0, len(list))
	for _, u := range list {
		gpus = append(gpus, collector.UnrestoredGPU{UUID: string(u.GPU), Reason: string(u.Reason)})
	}

	c.metrics.SetUnrestored(gpus)

	if c.layoutsWanted != nil {
		c.layoutsWanted.setUnrestored(list)
	}
}

// observer counts the engine's operations in metrics.
type observer struct {
	metrics *collector.Control
	status  *controlStatus
	layouts *layoutFollower // nil if we write no node condition
}

func (o observer) Operation(verb api.Verb, result string, took time.Duration) {
	o.metrics.Ended(string(verb), result, took, !api.OperationState(result).Committed())
}

func (o observer) State(state string) {
	o.status.setEngine(state)

	if o.layouts != nil {
		o.layouts.setState(state)
	}
}

func (o observer) Read() { o.metrics.Read() }

func (o observer) Audited(err error) { o.status.setAudit(err) }

// controlStatus combines the state of the engine, its API and its audit log.
type controlStatus struct {
	metrics *collector.Control

	mu     sync.Mutex
	engine string // the engine's state: "idle", "running", ...
	off    string // why the API is not served; empty if it is
	audit  string // why the audit log cannot be written, so that we refuse changes; empty if it can
}

func (s *controlStatus) setAudit(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.audit = ""; err != nil {
		s.audit = server.AuditFailure(err)
	}

	s.updateMetric()
}

func (s *controlStatus) auditFailure() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.audit
}

func (s *controlStatus) setEngine(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.engine = state
	s.updateMetric()
}

// setOff sets why the API is not served, and reports whether that has changed.
func (s *controlStatus) setOff(reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	changed := s.off != reason
	s.off = reason
	s.updateMetric()

	return changed
}

func (s *controlStatus) updateMetric() {
	switch {
	case s.off != "":
		s.metrics.SetState("off")
	case s.audit != "" && s.engine == "idle":
		s.metrics.SetState("read-only")
	default:
		s.metrics.SetState(s.engine)
	}
}

func (s *controlStatus) offReason() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.off
}

func newControlMetrics(now func() time.Time) *collector.Control {
	return collector.NewControl(collector.ControlOptions{
		Verbs: []string{
			string(api.VerbApply),
			string(api.VerbRollback),
			string(api.VerbMode),
			string(api.VerbRestore),
			string(api.VerbRecovery),
		},

		Results: []string{
			string(api.Succeeded),
			string(api.Unsettled),
			string(api.RolledBack),
			string(api.Failed),
			string(api.Interrupted),
			string(api.Accepted),
			string(api.Degraded),
			string(api.Stuck),
		},

		States: []string{"idle", "running", "degraded", "stuck", "read-only", "off"},
		Now:    now,
	})
}
