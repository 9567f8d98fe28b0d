package dcgmsource

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// watch is a group of entities of one level whose fields the engine measures. An engine has 64
// groups for all its clients. A Source uses one for all GPUs and, until the layout changes, two for
// each MIG GPU: its GPU instances and its compute instances. That makes 17 for 8 MIG GPUs and 61
// for 30.
type watch struct {
	level     Level
	group     Group
	entities  []Entity
	watching  bool
	createdAt int64 // in microseconds since 1970

	// read is how many values the last cycle read, and notWatched for how many of them the engine
	// answered that it does not watch them.
	read, notWatched int
}

// forgotten reports whether the engine has forgotten the watch, as an engine that was restarted
// without losing the connection has. It resets the counts of values.
func (w *watch) forgotten() bool {
	forgotten := w.read > 0 && w.read == w.notWatched
	w.read = 0
	w.notWatched = 0

	return forgotten
}

// createWatch creates a group and watches it. If that fails, it destroys the group again.
func (s *Source) createWatch(l Level, entities []Entity) (*watch, error) {
	fields, err := s.fieldGroup(l)
	if err != nil {
		return nil, err
	}

	w := &watch{level: l, entities: slices.Clone(entities)}

	if w.group, err = s.countedSession().CreateGroup(s.newName(l)); err != nil {
		return nil, err
	}

	for _, e := range entities {
		if err = s.countedSession().AddToGroup(w.group, e); err != nil {
			break
		}
	}

	if err == nil {
		w.watching = true
		err = s.countedSession().Watch(w.group, fields, s.opts.Interval)
	}

	if err != nil {
		if !isLost(err) {
			err = errors.Join(err, s.release(w))
		}

		return nil, err
	}

	w.createdAt = s.opts.Now().UnixMicro()

	return w, nil
}

// newName returns a name that no other client of the engine uses.
func (s *Source) newName(l Level) string {
	s.groupNames++
	return fmt.Sprintf("mig-exporter-%s-%d-%d", l, os.Getpid(), s.groupNames)
}

// fieldGroup returns the group of the fields of a level, which is created with its first use in a
// session.
func (s *Source) fieldGroup(l Level) (FieldGroup, error) {
	if s.hasFieldGroup[l] {
		return s.fieldGroups[l], nil
	}

	f, err := s.countedSession().CreateFieldGroup(s.newName(l), s.fields[l])
	if err != nil {
		return 0, err
	}

	s.fieldGroups[l] = f
	s.hasFieldGroup[l] = true

	return f, nil
}

// release ends a watch. If the engine does not destroy its group now, the next cycle tries again;
// an error means that the connection is lost.
func (s *Source) release(w *watch) error {
	if w.watching {
		// An error means that the engine does not know the watch, or drops it with the group.
		if err := s.countedSession().Unwatch(w.group, s.fieldGroups[w.level]); err != nil && isLost(err) {
			return err
		}

		w.watching = false
	}

	err := s.countedSession().DestroyGroup(w.group)
	if err == nil || errors.Is(err, ErrGone) {
		return nil
	}

	if isLost(err) {
		return err
	}

	s.leftover = append(s.leftover, w)

	return nil
}

// releaseInstances ends the watches of a GPU's instances.
func (s *Source) releaseInstances(p *profiledGPU) error {
	for l, w := range p.watches {
		if w == nil {
			continue
		}

		p.watches[l] = nil

		if err := s.release(w); err != nil {
			return err
		}
	}

	return nil
}

// releaseLeftover ends the watches of GPUs that are no longer profiled and those that the engine
// has forgotten, and retries those that could not be destroyed.
func (s *Source) releaseLeftover() error {
	retried := s.leftover
	s.leftover = nil

	for _, w := range retried {
		if err := s.release(w); err != nil {
			return err
		}
	}

	for id, p := range s.profiled {
		for _, w := range [...]**watch{&p.own, &p.watches[LevelInstance], &p.watches[LevelCompute]} {
			if *w == nil || p.wanted && !(*w).forgotten() {
				continue
			}

			ended := *w
			*w = nil

			if err := s.release(ended); err != nil {
				return err
			}
		}

		if !p.wanted {
			delete(s.profiled, id)
		}
	}

	return nil
}

// releaseAll ends every watch.
func (s *Source) releaseAll() error {
	for _, p := range s.profiled {
		p.wanted = false
	}

	if w := s.shared; w != nil {
		s.shared = nil

		if err := s.release(w); err != nil {
			return err
		}
	}

	return s.releaseLeftover()
}
