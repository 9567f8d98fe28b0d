package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// activityNote tells the operator that GPUs have no activity, because their driver does not measure
// it and we do not ask DCGM. It is safe for concurrent use.
type activityNote struct {
	remedy string // what to do about it; empty: nothing is reported
	logger log.Logger

	mu     sync.Mutex
	logged bool
	gpus   string // indexes of the GPUs without activity: "0,3"
}

// newActivityNote returns a note for a node whose activity comes from source (--profiling.source). It
// reports nothing if source is off, DCGM is asked or the node is a recording.
func newActivityNote(source string, node *node, logger log.Logger) *activityNote {
	n := &activityNote{logger: logger}

	_, recorded := node.kind.(recording)
	switch {
	case node.poll.Profiler != nil || source == profilingOff || recorded:
	case source == profilingGPM:
		n.remedy = "ask DCGM: --profiling.source=auto with --dcgm.address=HOST:PORT, or with " +
			"--dcgm.address=embedded; or accept it: --profiling.source=off"
	default:
		n.remedy = "ask DCGM: --dcgm.address=HOST:PORT, or --dcgm.address=embedded; or accept it: " +
			"--profiling.source=off"
	}

	return n
}

// observe looks for GPUs without activity in a Snapshot. It logs a warning when it first finds some.
func (n *activityNote) observe(s *gpu.Snapshot) {
	if n.remedy == "" {
		return
	}

	var without []string

	for i := range s.GPUs {
		if lacksActivity(&s.GPUs[i]) {
			without = append(without, strconv.Itoa(s.GPUs[i].Index))
		}
	}

	n.mu.Lock()
	defer n.mu.Unlock()

	n.gpus = strings.Join(without, ",")
	if n.gpus == "" || n.logged {
		return
	}

	n.logged = true
	level.Warn(n.logger).Log(
		"msg", "GPUs have no activity: their driver has no GPM (Hopper or later), "+
			"and DCGM is not used",
		"gpus", n.gpus,
		"remedy", n.remedy,
	)
}

// lacksActivity reports whether the driver answers for a GPU but does not measure its activity.
func lacksActivity(g *gpu.GPU) bool {
	if !g.Up || g.ActivitySource != gpu.ActivityUnknown {
		return false
	}

	for _, e := range g.Errors {
		if e.Reading == gpu.ReadingActivity && !errors.Is(e.Err, gpu.ErrNotSupported) {
			return false // the driver failed to answer: it may measure activity
		}
	}

	return true
}

// notes returns what the note reports, as lines of the readiness answer.
func (n *activityNote) notes() []string {
	n.mu.Lock()
	defer n.mu.Unlock()

	if n.gpus == "" {
		return nil
	}

	return []string{
		fmt.Sprintf(
			"no activity of GPUs %s: their driver has no GPM and DCGM is not asked; %s",
			n.gpus,
			n.remedy,
		),
	}
}
