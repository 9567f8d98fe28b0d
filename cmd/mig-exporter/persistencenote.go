package main

import (
	"fmt"
	"strings"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// persistenceNote warns of GPUs in confidential-computing mode that are open without persistence
// mode. We open them only while another process has them open (see openingGuard), but that may be a
// job that ends before us. The poll loop owns it.
type persistenceNote struct {
	confidential func() bool // whether the GPUs are in that mode, as far as we know
	logger       log.Logger
	logged       string // the indexes of the GPUs in the last warning: "0,3"
}

// observe looks for such GPUs in a Snapshot, and logs them if they are others than before.
func (n *persistenceNote) observe(s *gpu.Snapshot) {
	if !n.confidential() {
		return
	}

	var without []string

	for i := range s.GPUs {
		if g := &s.GPUs[i]; g.Up && g.Readings.PersistenceMode == gpu.Some(false) {
			without = append(without, fmt.Sprint(g.Index))
		}
	}

	indexes := strings.Join(without, ",")
	if indexes == n.logged {
		return
	}

	n.logged = indexes
	if indexes == "" {
		return
	}

	level.Warn(n.logger).Log(
		"msg", "GPUs in confidential-computing mode are open without persistence mode: they can "+
			"become unusable until a reset when the last process that has them open ends",
		"gpus", indexes,
		"remedy", "run nvidia-persistenced --persistence-mode",
	)
}
