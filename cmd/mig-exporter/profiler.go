package main

import (
	"context"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
)

// leastProfilingInterval is the shortest interval at which DCGM profiles.
const leastProfilingInterval = 100 * time.Millisecond

// openProfiler opens DCGM, if the configuration asks for activity from it and the node has it.
func (n *node) openProfiler(cfg *ProfilingConfig, interval time.Duration) {
	if cfg.dcgmMode() == dcgmOff || cfg.Source == profilingOff || cfg.Source == profilingGPM {
		return
	}

	engine, user := n.kind.hostEngine(cfg)
	if engine == nil {
		return
	}

	source := dcgmsource.New(engine, dcgmsource.Options{
		Mode:       dcgmsource.Mode(cfg.dcgmMode()),
		Address:    cfg.hostEngine(),
		Interval:   max(interval, leastProfilingInterval),
		IncludeGPM: cfg.Source == profilingDCGM,
		Now:        n.now,
		User:       user,
		Logger:     n.logger,
	})
	n.poll.Profiler = source
	n.dcgm.calls = source.Calls
	n.dcgm.retry = source.Retry
	n.control.Profiling = source

	if cfg.dcgmMode() == dcgmEmbedded {
		n.dcgm.end = source.Release
	}

	n.closers = append(n.closers, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()

		return source.Close(ctx)
	})
}
