package dcgmsource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// cycle reads all GPUs once. An error means that the connection is lost; the errors of one GPU are
// logged.
func (s *Source) cycle(snapshot *gpu.Snapshot, now time.Time) (map[gpu.UUID]gpu.Profiling, error) {
	s.chooseGPUs(snapshot)

	if err := s.releaseLeftover(); err != nil {
		return nil, err
	}

	if err := s.locateGPUs(now); err != nil {
		return nil, err
	}

	hasHierarchy, err := s.readHierarchy()
	if err != nil {
		return nil, err
	}

	for _, g := range s.wanted {
		if p := s.profiled[g.UUID]; p.located {
			if err := s.mapInstances(p, g, hasHierarchy, now); err != nil {
				return nil, err
			}
		}
	}

	if err := s.watchGPUs(); err != nil {
		return nil, err
	}

	activities := make(map[gpu.UUID]gpu.Profiling, len(s.wanted))

	for _, g := range s.wanted {
		p := s.profiled[g.UUID]
		if !p.located {
			continue
		}

		activity, ok, err := s.profileGPU(p, now)
		if err != nil {
			return nil, err
		}

		if ok {
			activities[p.uuid] = activity
		}
	}

	return activities, nil
}

// chooseGPUs lists the GPUs to profile, and adds those that are new to profiled. releaseLeftover drops
// those that are no longer wanted.
func (s *Source) chooseGPUs(snapshot *gpu.Snapshot) {
	s.wanted = s.wanted[:0]
	for _, p := range s.profiled {
		p.wanted = false
	}

	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		if g.UUID == "" || !g.Up {
			continue
		}

		if g.ActivitySource == gpu.ActivityGPM && !s.opts.IncludeGPM {
			continue
		}

		s.wanted = append(s.wanted, g)

		p := s.profiled[g.UUID]
		if p == nil {
			p = &profiledGPU{uuid: g.UUID}
			s.profiled[g.UUID] = p
		}

		p.wanted = true
	}
}

// locateGPUs finds the engine's numbers of the GPUs. While the engine does not know a GPU, it searches
// with a backoff: each GPU has its own, so that one that never comes does not delay another one.
func (s *Source) locateGPUs(now time.Time) error {
	isDue := false

	for _, g := range s.wanted {
		p := s.profiled[g.UUID]
		s.locate(p)
		isDue = isDue || !p.located && p.search.IsDue(now)
	}

	if !isDue {
		return nil
	}

	list, err := s.countedSession().Devices()
	if err != nil && isLost(err) {
		return err
	}

	if err == nil { // a list that fails says nothing of GPUs that were found before
		clear(s.devices)
	}

	for _, d := range list {
		s.devices[d.UUID] = d.ID
	}

	for _, g := range s.wanted {
		p := s.profiled[g.UUID]
		s.locate(p)

		if !p.located && p.search.IsDue(now) {
			p.search.Postpone(now, minBackoff, maxBackoff)
			s.logFailure(p, cmp.Or(err, fmt.Errorf("find GPU: %w", gpu.ErrNotFound)))
		}
	}

	return nil
}

// locate looks up a GPU among those that the engine has listed.
func (s *Source) locate(p *profiledGPU) {
	p.device.ID, p.located = s.devices[p.uuid]
	if p.located {
		p.search = retry.Backoff{}
	}
}

// readHierarchy reads the instances of all GPUs, and reports whether it could. If it could not, it sets
// hierarchyErr, unless the engine has no hierarchy to read. An error means that the connection is lost.
func (s *Source) readHierarchy() (bool, error) {
	list, err := s.countedSession().Hierarchy(s.hierarchy[:0])
	if err != nil && isLost(err) {
		return false, err
	}

	if err != nil {
		s.hierarchy = s.hierarchy[:0]
		s.hierarchyErr = nil

		if !errors.Is(err, gpu.ErrNotSupported) {
			s.hierarchyErr = err
		}

		return false, nil
	}

	s.hierarchy = list
	s.hierarchyErr = nil

	return true, nil
}

// watchGPUs keeps one watch for all GPUs: a GPU outlives its layouts, and the engine has few
// groups. If the engine refuses to watch them together, each gets a watch of its own, so that a GPU
// that cannot be profiled does not cost the others their series.
func (s *Source) watchGPUs() error {
	s.pausedInCycle = false
	if s.cannotShare {
		return nil
	}

	s.entities = s.entities[:0]
	for _, g := range s.wanted {
		if p := s.profiled[g.UUID]; p.located {
			s.entities = append(s.entities, p.device)
		}
	}

	// A GPU that is not wanted now stays in the group: to create the group again would cost the
	// others their values.
	missing := func(w *watch) bool {
		return slices.ContainsFunc(s.entities, func(e Entity) bool {
			return !slices.Contains(w.entities, e)
		})
	}

	if w := s.shared; w != nil && (w.forgotten() || missing(w)) {
		s.shared = nil

		if err := s.release(w); err != nil {
			return err
		}
	}

	if s.shared != nil || len(s.entities) == 0 {
		return nil
	}

	w, err := s.createWatch(LevelGPU, s.entities)

	switch {
	case err == nil:
		s.shared = w
	case isLost(err):
		return err
	case errors.Is(err, ErrPaused):
		s.pausedInCycle = true // the next cycle tries again
	default:
		s.cannotShare = true
		level.Debug(s.opts.Logger).Log(
			"msg", "DCGM does not watch the GPUs together; watching each on its own",
			"err", err,
		)
	}

	return nil
}

// logFailure logs why a GPU cannot be profiled, once until the reason changes or ends. A reason
// that all GPUs share is logged once, with what to do.
func (s *Source) logFailure(p *profiledGPU, err error) {
	text := err.Error()
	if text == p.loggedFailure {
		return
	}

	p.loggedFailure = text

	for _, common := range []struct {
		err  error
		text string
	}{
		{ErrRequiresRoot, "DCGM has no permission to profile: " + s.rootAdvice()},
		{ErrNoModule, "DCGM cannot profile GPUs without GPM: install the package " +
			"datacenter-gpu-manager-4-proprietary " + s.hostText() + " and restart it"},
	} {
		if !errors.Is(err, common.err) {
			continue
		}

		if !errors.Is(s.loggedCause, common.err) {
			s.loggedCause = common.err
			level.Error(s.opts.Logger).Log("msg", common.text, "gpu", p.uuid, "err", err)
		}

		return
	}

	level.Warn(s.opts.Logger).Log("msg", "DCGM does not profile a GPU", "gpu", p.uuid, "err", err)
}

// hostText says where the engine runs.
func (s *Source) hostText() string {
	if s.opts.Mode == ModeEmbedded {
		return "where this program runs"
	}

	return "where the nv-hostengine at " + s.opts.Address + " runs"
}

func (s *Source) rootAdvice() string {
	if s.opts.Mode == ModeEmbedded {
		return "run this program as root, or connect it to an nv-hostengine that runs as " +
			"root by --dcgm.address=HOST:PORT"
	}

	return "run the nv-hostengine at " + s.opts.Address + " as root"
}
