package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/capture"
	"github.com/mig-exporter/mig-exporter/internal/control/server"
	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kernellog"
	"github.com/mig-exporter/mig-exporter/internal/poll"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// recording is the nodeKind of a recording: it replays captured answers of a driver. It has no pods
// and no DCGM, and cannot be repartitioned.
type recording struct{ *capture.Replay }

// openRecording opens a recording that takes the place of the driver.
func (n *node) openRecording(cfg *DriverConfig) error {
	if cfg.Clock == sim.ClockX60 {
		return fmt.Errorf(
			"--sim.clock=%s: expected real or step with %s, which is a recording",
			cfg.Clock,
			cfg.Scenario,
		)
	}

	file, err := capture.Load(cfg.Scenario)
	if err != nil {
		return err
	}

	replay := capture.NewReplay(file, n.stepped)
	n.kind = recording{replay}
	n.hostname = file.Node.Hostname
	n.now = replay.Now
	n.library = replay.Library()
	n.processesHidden = file.ProcessesHidden()
	n.log.Open = func() (kernellog.Device, error) {
		return nil, fmt.Errorf(
			"a recording has nothing of its kernel's log: %w",
			gpu.ErrNotSupported,
		)
	}

	n.closers = append(n.closers, replay.Close)
	if !n.stepped {
		n.polled = replay.Next
	}

	level.Info(n.logger).Log(
		"msg", "serving a recording: another node's GPUs, at an earlier time",
		"file", cfg.Scenario,
		"start", file.Recorded.Start.Format(time.RFC3339),
		"polls", len(file.Recorded.Polls),
	)

	return nil
}

func (recording) openPods(*node, *KubernetesConfig, string) error { return nil }

// openProcessTable returns nil: a recording has no names of processes.
func (recording) openProcessTable(bool) poll.ProcessTable { return nil }

func (recording) hostEngine(*ProfilingConfig) (dcgmsource.Connector, func() int) { return nil, nil }

func (recording) openDependencies(*node, *ControlConfig) (server.Reviewer, error) {
	return nil, errors.New(
		"--control.enabled: a recording cannot be repartitioned; expected a scenario or this node's driver",
	)
}

func (recording) apiServer() (apiServer, error) { return apiServer{}, nil }
