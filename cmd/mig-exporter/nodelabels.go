package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/cluster"
	"github.com/mig-exporter/mig-exporter/internal/control/nodelabels"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// What the exporter does with the node's label nvidia.com/mig.config.
const (
	nodeLabelsOff    = "off"
	nodeLabelsRead   = "read"
	nodeLabelsFollow = "follow"
)

// NodeLabelsConfig says what we do with the label, and where the layouts of mig-manager are.
type NodeLabelsConfig struct {
	Mode      string // nodeLabelsOff, nodeLabelsRead or nodeLabelsFollow
	ConfigMap string // NAMESPACE/NAME of mig-manager's layouts
}

// defaultMIGConfig is the ConfigMap in which the GPU operator has mig-manager's layouts.
// https://github.com/NVIDIA/gpu-operator, assets/state-mig-manager/0400_configmap.yaml
const defaultMIGConfig = "gpu-operator/default-mig-parted-config"

func declareNodeLabelsFlag(app *kingpin.Application, cfg *NodeLabelsConfig) {
	const name = "kubernetes.node-labels"

	app.Flag(name, "What is done with the node's label nvidia.com/mig.config: off, read (metrics say "+
		"whether that layout stands, also where mig-manager applies it) or follow (in the place of mig-manager, "+
		"partition control applies it and reports nvidia.com/mig.config.state; "+
		"docs/node-labels.md). With :NAMESPACE/NAME the ConfigMap of mig-manager's layouts is "+
		"another than "+defaultMIGConfig+".").
		Default(nodeLabelsOff).
		HintOptions(nodeLabelsOff, nodeLabelsRead, nodeLabelsFollow).
		SetValue(flagValue(
			name,
			"off, read or follow, and the last two perhaps with :NAMESPACE/NAME",
			func(s string) (ok bool) {
				*cfg, ok = parseNodeLabels(s)
				return ok
			},
		))
}

func parseNodeLabels(text string) (NodeLabelsConfig, bool) {
	mode, configMap, named := strings.Cut(text, ":")
	c := NodeLabelsConfig{Mode: mode, ConfigMap: defaultMIGConfig}

	if named {
		c.ConfigMap = configMap
	}

	namespace, name, _ := strings.Cut(c.ConfigMap, "/")
	ok := namespace != "" && name != "" && !strings.Contains(name, "/")

	switch mode {
	case nodeLabelsOff:
		return c, !named
	case nodeLabelsRead, nodeLabelsFollow:
		return c, ok
	}

	return c, false
}

// asksCluster reports whether we ask the API server for anything besides the pods' metadata.
func (c *Config) asksCluster() bool {
	return c.Control.Enabled && c.Kubernetes.NodeName != "" || c.Kubernetes.NodeLabels.Mode != nodeLabelsOff
}

// openCluster opens the API server for partition control and the node's labels, if they need it and
// the node has one.
func (n *node) openCluster(cfg *Config) error {
	if !cfg.asksCluster() {
		return nil
	}

	server, err := n.kind.apiServer()
	if err == nil && server.address == "" {
		return nil
	}

	client, err := n.openAPIServer(server, err, &cfg.Kubernetes)
	if err != nil {
		return err
	}

	n.cluster, err = cluster.New(cluster.Options{
		API:           client,
		Node:          cfg.Kubernetes.NodeName,
		Audiences:     cfg.Control.Audiences,
		FollowsLabels: cfg.Kubernetes.NodeLabels.Mode == nodeLabelsFollow,
		OwnPod:        server.ownPod,
		Now:           time.Now,
	})

	return err
}

// openAPIServer returns a client of the node's API server, which the node closes. server and err are
// the results of kind.apiServer.
func (n *node) openAPIServer(
	server apiServer, err error, cfg *KubernetesConfig,
) (*kubeapi.Client, error) {
	if err != nil {
		return nil, fmt.Errorf("--kubernetes.node-name=%s: %w", cfg.NodeName, err)
	}

	client, err := kubeapi.New(kubeapi.Options{
		Server: server.address, CredentialsDir: server.credentials, UserAgent: userAgent(),
	})
	if err != nil {
		return nil, err
	}

	n.onClose(client.Close)

	return client, nil
}

// apiServer says where a node's API server is.
type apiServer struct {
	address     string // empty: there is none
	credentials string // the folder of the service account's credentials
	ownPod      string // NAMESPACE/NAME of this process's pod; empty if it is unknown
}

// openNodeLabels opens the reader or follower of the label nvidia.com/mig.config.
func (x *exporter) openNodeLabels(cfg *Config) error {
	mode := cfg.Kubernetes.NodeLabels.Mode
	if mode == nodeLabelsOff {
		x.watchPausedClients()
		return nil
	}

	if x.node.cluster == nil {
		return fmt.Errorf("--kubernetes.node-labels=%s: expected a Kubernetes cluster around this process",
			mode)
	}

	metrics := collector.NewNodeConfig()
	if err := x.fresh.Register(metrics); err != nil {
		return err
	}

	named := &layoutSources{apply: func(map[string][]api.LayoutRule) {}}

	if x.control != nil {
		named = x.control.named
	}

	opts := nodelabels.Options{
		Cluster:    x.node.cluster,
		Layout:     named.find,
		SetLayouts: named.setConfigMap,
		ReadGPUs:   x.readLayoutsOfGPUs,
		Current:    x.poller.Current,
		Audit:      func(nodelabels.AuditEntry) error { return nil },
		Report: func(s nodelabels.Status) {
			reportNodeConfig(metrics, s)

			if x.layouts != nil {
				x.layouts.setLabel(s)
			}
		},
		Logger: log.With(x.logger, "component", "node-labels"),
	}
	opts.Namespace, opts.ConfigMap, _ = strings.Cut(cfg.Kubernetes.NodeLabels.ConfigMap, "/")

	if x.node.isSimulated() {
		opts.Interval = simulatedLabelsInterval
	}

	if mode == nodeLabelsFollow {
		x.followLabels(&opts, cfg)
	}

	follower := nodelabels.New(opts)
	x.node.parts = append(x.node.parts, follower.Run)
	x.node.states = append(x.node.states, func() (gpu.SourceState, bool) { return follower.Source(), true })
	x.labelNotes = follower.Notes

	return nil
}

// watchPausedClients reports clients of the GPUs that are still paused: an exporter that followed the
// label has paused them and was then started without following it. Without partition control we do
// not ask the API server, and cannot know.
func (x *exporter) watchPausedClients() {
	if x.node.cluster == nil {
		return
	}

	var last atomic.Pointer[string]

	x.labelNotes = func() []string {
		if note := last.Load(); note != nil && *note != "" {
			return []string{*note}
		}

		return nil
	}

	report := func(note string) {
		if before := last.Swap(&note); note != "" && (before == nil || *before != note) {
			level.Warn(x.logger).Log("msg", note)
		}
	}

	x.node.parts = append(x.node.parts, func(ctx context.Context) error {
		return nodelabels.WatchPaused(ctx, x.node.cluster, report)
	})
}

// simulatedLabelsInterval is how often we read the labels of a simulated node. Its API server has no
// other node, so it can be asked often.
const simulatedLabelsInterval = 200 * time.Millisecond

// followLabels adds the options to apply the layout that the label names.
func (x *exporter) followLabels(opts *nodelabels.Options, cfg *Config) {
	opts.Engine = x.control.engine
	opts.Apply = cfg.Control.Mode == controlApply
	opts.Boot = x.node.control.BootID
	opts.KeepsPlugin = cfg.Control.DevicePlugin != ""

	audited := observer{metrics: x.control.metrics, status: x.control.status}.Audited
	changes := server.NewChangeLog(x.audit, audited)

	opts.Audit = func(e nodelabels.AuditEntry) error {
		return changes.Write(server.Change{
			Began:     e.Began,
			Now:       time.Now(),
			Ended:     e.Ended,
			Actor:     e.Actor,
			Method:    "label",
			Request:   e.Request,
			Plan:      e.Plan,
			Operation: e.Operation,
			Err:       e.Err,
		})
	}

	if argv := x.control.reboot; argv != nil {
		opts.Reboot = func(context.Context) error { return startReboot(argv, opts.Logger) }
	}
}

// rebootGrace is how long we wait for the command that reboots the node. If it fails, it does so
// within that time; if it works, this process ends.
const rebootGrace = 5 * time.Second

// startReboot starts the command that reboots the node, which can outlive this process. The error says
// that it failed within rebootGrace.
func startReboot(argv []string, logger log.Logger) error {
	command := exec.Command(argv[0], argv[1:]...) //nolint:noctx // it goes on while this process stops
	if err := command.Start(); err != nil {
		return err
	}

	ended := make(chan error, 1)
	go func() {
		err := command.Wait()
		level.Info(logger).Log("msg", "the command that reboots the node has ended", "err", err)
		ended <- err
	}()

	select {
	case err := <-ended:
		return err
	case <-time.After(rebootGrace):
		return nil
	}
}

// readLayoutsOfGPUs reads the layouts of all GPUs except released ones. It returns an error if one
// cannot be read.
func (x *exporter) readLayoutsOfGPUs(ctx context.Context) ([]mig.GPULayout, error) {
	ctx, cancel := context.WithTimeout(ctx, readGPUsTimeout)
	defer cancel()

	list, unreadable, err := x.source.Actuator().Layouts(ctx)
	for id, failed := range unreadable {
		if !errors.Is(failed, gpu.ErrReleased) {
			err = errors.Join(err, fmt.Errorf("%s: %w", id, failed))
		}
	}

	return list, err
}

// readGPUsTimeout bounds readLayoutsOfGPUs.
const readGPUsTimeout = 30 * time.Second

// reportNodeConfig sets the metrics of the layout that the node's label names.
func reportNodeConfig(metrics *collector.NodeConfig, s nodelabels.Status) {
	paused := gpu.None[int]()
	if s.Read {
		paused = gpu.Some(len(s.Paused))
	}

	metrics.SetPaused(paused)

	if s.Config == "" {
		metrics.Clear()
		return
	}

	state := string(s.State)

	switch s.State {
	case nodelabels.Pending, nodelabels.Rebooting, nodelabels.Success, nodelabels.Failed:
	default:
		state = "unknown"
	}

	metrics.Set(s.Config, cmp.Or(state, "unknown"), s.Applied)
}

// layoutSources are the named layouts: from a file (--control.layouts), from mig-manager's ConfigMap,
// and built in, in this order of precedence. It is safe for concurrent use.
type layoutSources struct {
	apply func(map[string][]api.LayoutRule) // called with all but the built-in layouts when they change

	mu              sync.Mutex
	file, configMap map[string][]api.LayoutRule
}

func (l *layoutSources) setFile(layouts map[string][]api.LayoutRule) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.file = layouts
	l.apply(l.merged())
}

func (l *layoutSources) setConfigMap(layouts map[string][]api.LayoutRule) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.configMap = layouts
	l.apply(l.merged())
}

// merged returns all but the built-in layouts. The caller holds l.mu.
func (l *layoutSources) merged() map[string][]api.LayoutRule {
	all := map[string][]api.LayoutRule{}
	maps.Copy(all, l.configMap)
	maps.Copy(all, l.file)

	return all
}

// find returns the rules of a layout, and whether they are from the file; nil if no layout has the
// name.
func (l *layoutSources) find(name string) (rules []api.LayoutRule, fromFile bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if rules, ok := l.file[name]; ok {
		return rules, true
	}

	if rules, ok := l.configMap[name]; ok {
		return rules, false
	}

	return spec.BuiltIn()[name], false
}
