package dcgmsource

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
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
		if u := s.units[g.UUID]; u.located {
			if err := s.mapInstances(u, g, hasHierarchy, now); err != nil {
				return nil, err
			}
		}
	}

	if err := s.watchGPUs(); err != nil {
		return nil, err
	}

	profiles := make(map[gpu.UUID]gpu.Profiling, len(s.wanted))
	for _, g := range s.wanted {
		u := s.units[g.UUID]
		if !u.located {
			continue
		}

		p, ok, err := s.profileGPU(u, now)
		if err != nil {
			return nil, err
		}

		if ok {
			profiles[u.id] = p
		}
	}

	return profiles, nil
}

// chooseGPUs lists the GPUs to profile, and adds the missing ones to units. releaseLeftover drops
// the units that are no longer wanted.
func (s *Source) chooseGPUs(snapshot *gpu.Snapshot) {
	s.wanted = s.wanted[:0]
	for _, u := range s.units {
		u.wanted = false
	}

	for i := range snapshot.GPUs {
		g := &snapshot.GPUs[i]
		if g.UUID == "" || !g.Up || g.ActivitySource == gpu.ActivityGPM && !s.opts.Everything {
			continue
		}

		s.wanted = append(s.wanted, g)

		u := s.units[g.UUID]
		if u == nil {
			u = &profiledGPU{id: g.UUID}
			s.units[g.UUID] = u
		}

		u.wanted = true
	}
}

// locateGPUs finds the engine's numbers of the GPUs. It searches with a backoff for GPUs that the
// engine does not know.
func (s *Source) locateGPUs(now time.Time) error {
	missing := false

	for _, g := range s.wanted {
		u := s.units[g.UUID]
		u.device.ID, u.located = s.devices[u.id]
		missing = missing || !u.located
	}

	if !missing || !s.search.IsDue(now) {
		return nil
	}

	s.search.Postpone(now, minBackoff, maxBackoff)

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
		u := s.units[g.UUID]
		u.device.ID, u.located = s.devices[u.id]

		if !u.located {
			s.logFailure(u, cmp.Or(err, fmt.Errorf("find GPU: %w", gpu.ErrNotFound)))
		}
	}

	return nil
}

// readHierarchy reads the instances of all GPUs, and reports whether it could. treeErr is set if it
// should have been able to.
func (s *Source) readHierarchy() (bool, error) {
	tree, err := s.countedSession().Hierarchy(s.tree[:0])
	s.treeErr = nil

	switch {
	case err == nil:
		s.tree = tree
	case isLost(err):
		return false, err
	default:
		s.tree = s.tree[:0]
		if !errors.Is(err, gpu.ErrNotSupported) {
			s.treeErr = err
		}
	}

	return err == nil, nil
}

// watchGPUs keeps one watch for all GPUs: a GPU outlives its layouts, and the engine has few
// groups. If the engine refuses to watch them together, each gets a watch of its own, so that a GPU
// that cannot be profiled does not cost the others their series.
func (s *Source) watchGPUs() error {
	s.refused = false
	if s.split {
		return nil
	}

	s.ids = s.ids[:0]
	for _, g := range s.wanted {
		if u := s.units[g.UUID]; u.located {
			s.ids = append(s.ids, u.device)
		}
	}

	// A GPU that is not wanted now stays in the group: to create the group again would cost the
	// others their values.
	missing := func(w *watch) bool {
		return slices.ContainsFunc(s.ids, func(e Entity) bool {
			return !slices.Contains(w.entities, e)
		})
	}
	if w := s.shared; w != nil && (w.forgotten() || missing(w)) {
		s.shared = nil
		if err := s.release(w); err != nil {
			return err
		}
	}

	if s.shared != nil || len(s.ids) == 0 {
		return nil
	}

	w, err := s.createWatch(LevelGPU, s.ids)
	if err != nil {
		if isLost(err) {
			return err
		}

		if s.refused = errors.Is(err, ErrPaused); s.refused {
			return nil
		}

		s.split = true
		level.Debug(s.opts.Logger).Log(
			"msg", "DCGM does not watch the GPUs together; watching each on its own",
			"err", err,
		)

		return nil
	}

	s.shared = w

	return nil
}

// logFailure logs why a GPU cannot be profiled, once until the reason changes or ends. A reason
// that all GPUs share is logged once, with what to do.
func (s *Source) logFailure(u *profiledGPU, err error) {
	text := err.Error()
	if text == u.logged {
		return
	}

	u.logged = text
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

		if !errors.Is(s.advised, common.err) {
			s.advised = common.err
			level.Error(s.opts.Logger).Log("msg", common.text, "gpu", u.id, "err", err)
		}

		return
	}

	level.Warn(s.opts.Logger).Log("msg", "DCGM does not profile a GPU", "gpu", u.id, "err", err)
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
