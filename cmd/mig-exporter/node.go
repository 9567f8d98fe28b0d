package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/capture"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/hpcjobs"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// node is what the program reads: this machine, or a simulated one behind the same interfaces.
type node struct {
	hostname   string
	now        func() time.Time
	library    nvmlsource.Library
	pods       poll.Pods       // nil: holders are not known
	containers poll.Containers // nil with it
	profiler   poll.Profiler   // nil: DCGM is not asked
	jobs       poll.Jobs       // nil: there are no batch jobs

	// What partition control asks and needs; each may be nil.
	devices  control.Assignments
	handles  control.Handles
	cluster  control.Cluster
	releaser control.Profiling
	reviewer server.Reviewer

	profilerCalls func() uint64        // nil with it
	retryProfiler func()               // nil with it
	simulated     *sim.Node            // nil for this machine and a replay
	clock         movable              // nil for this machine
	polled        func()               // nil, or to be called after each poll
	inCluster     bool                 // in a pod of a Kubernetes cluster: there is a kubelet
	kubelet       *podresources.Client // nil where it is not asked
	metadata      metadata             // nil where the API server is not asked
	running       runningContainers
	closers       []func() error
	logger        log.Logger
}

// movable is a clock that may be a stepped one.
type movable interface {
	Advance(by time.Duration) error
	Settle(ctx context.Context)
}

// openNode opens a node with who holds its devices.
func openNode(cfg *Config, logger log.Logger) (*node, error) {
	n, err := openDriver(cfg, logger)
	if err != nil {
		return nil, err
	}
	if err := n.openPods(cfg); err != nil {
		n.close()
		return nil, err
	}
	n.openProfiler(cfg)
	if cfg.JobDir != "" {
		n.jobs = hpcjobs.New(cfg.JobDir, logger)
	}
	return n, nil
}

// openDriver opens a node without a source of holders.
func openDriver(cfg *Config, logger log.Logger) (*node, error) {
	switch {
	case cfg.Driver == driverSim && capture.IsRecording(cfg.SimScenario):
		return openRecording(cfg, logger)
	case cfg.Driver == driverSim:
		return openSimulated(cfg, logger)
	case cfg.SimScenario != "":
		return nil, fmt.Errorf("--sim.scenario=%s: expected --driver=sim with it", cfg.SimScenario)
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("host name: %w", err)
	}
	return &node{
		hostname: name, now: time.Now, library: nvmlsource.Open(cfg.NVMLLibrary), logger: logger,
		inCluster: os.Getenv("KUBERNETES_SERVICE_HOST") != "",
	}, nil
}

// openSimulated starts the simulated node of a scenario.
func openSimulated(cfg *Config, logger log.Logger) (*node, error) {
	scenario, err := sim.Load(cfg.SimScenario)
	if err != nil {
		return nil, err
	}
	simulated, err := startSimulated(scenario, cfg.SimClock)
	if err != nil {
		return nil, err
	}
	level.Info(logger).Log("msg", "This is a simulated node: its GPUs and pods do not exist", "scenario", cfg.SimScenario)
	return &node{
		hostname:  scenario.Node.Hostname,
		now:       simulated.Now,
		library:   simnvml.New(simulated),
		simulated: simulated,
		clock:     simulated,
		closers:   []func() error{simulated.Close},
		logger:    logger,
	}, nil
}

// openRecording opens a recording in the place of a driver.
func openRecording(cfg *Config, logger log.Logger) (*node, error) {
	if cfg.SimClock == sim.ClockX60 {
		return nil, fmt.Errorf("--sim.clock=%s: expected real or step with %s, which is a recording", cfg.SimClock, cfg.SimScenario)
	}
	recording, err := capture.Load(cfg.SimScenario)
	if err != nil {
		return nil, err
	}
	replay := capture.NewReplay(recording, cfg.stepped())
	n := &node{
		hostname: recording.Node.Hostname, now: replay.Now, library: replay.Library(), clock: replay,
		closers: []func() error{replay.Close}, logger: logger,
	}
	if !cfg.stepped() {
		n.polled = replay.Next
	}
	level.Info(logger).Log("msg", "This is a recording: another node's GPUs, as they were", "file", cfg.SimScenario,
		"start", recording.Recorded.Start.Format(time.RFC3339), "polls", len(recording.Recorded.Polls))
	return n, nil
}

// onClose notes what has nothing to say when it is closed.
func (n *node) onClose(f func()) {
	n.closers = append(n.closers, func() error {
		f()
		return nil
	})
}

// close ends what the node started, the last first.
func (n *node) close() {
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		errs = append(errs, n.closers[i]())
	}
	if err := errors.Join(errs...); err != nil {
		level.Warn(n.logger).Log("msg", "Closing", "err", err)
	}
}

// handlers are those that only a simulated node has.
func (n *node) handlers(poller *poll.Poller) map[string]http.Handler {
	if n.clock == nil {
		return nil
	}
	return map[string]http.Handler{"POST /-/sim/advance": advance(n.clock, poller)}
}
