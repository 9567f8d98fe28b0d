package main

import (
	"context"
	"os"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/sim/simdcgm"
)

// leastProfilingInterval is DCGM's for profiling.
const leastProfilingInterval = 100 * time.Millisecond

// openProfiler makes DCGM the one that is asked for the activity of what the driver does not profile. A simulated node has
// a host engine of its own, which is what embedded means there; a recording has none.
func (n *node) openProfiler(cfg *Config) {
	replay := n.clock != nil && n.simulated == nil
	if cfg.DCGMMode == dcgmOff || cfg.Profiling == profilingOff || cfg.Profiling == profilingGPM || replay {
		return
	}
	mode := dcgmsource.Mode(cfg.DCGMMode)
	engine, user := dcgmsource.Open(mode, cfg.DCGMAddress), os.Geteuid
	if n.simulated != nil && mode == dcgmsource.ModeEmbedded {
		engine, user = simdcgm.New(n.simulated), n.simulatedUser
	}
	source := dcgmsource.New(engine, dcgmsource.Options{
		Mode:       mode,
		Address:    cfg.DCGMAddress,
		Interval:   max(cfg.PollInterval, leastProfilingInterval),
		Everything: cfg.Profiling == profilingDCGM,
		Now:        n.now,
		User:       user,
		Logger:     n.logger,
	})
	n.profiler, n.profilerCalls, n.retryProfiler, n.releaser = source, source.Calls, source.Retry, source
	n.closers = append(n.closers, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		return source.Close(ctx)
	})
}

// unprivilegedUID is the id of a user that is not root.
const unprivilegedUID = 65534

// simulatedUser is the user that the program runs as on a simulated node.
func (n *node) simulatedUser() int {
	if n.simulated.HostEngine().NonRoot {
		return unprivilegedUID
	}
	return 0
}
