package dcgmsource

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// watch is a group of entities of one level whose fields the engine keeps. An engine holds 64 groups, of all its clients:
// one for all GPUs, and for each MIG GPU one of its GPU instances and one of its compute instances, which pass with
// its layout. 8 MIG GPUs come to 17, 30 to 61.
type watch struct {
	level    Level
	group    Group
	entities []Entity
	watching bool
	since    int64 // when it was made: microseconds since 1970

	asked, unwatched int // values of the last cycle, and those that the engine does not watch
}

// forgotten reports whether the engine has forgotten the watch, as one that was restarted behind the connection, and
// begins to count anew.
func (w *watch) forgotten() bool {
	forgotten := w.asked > 0 && w.asked == w.unwatched
	w.asked, w.unwatched = 0, 0
	return forgotten
}

// watch makes a group and watches it. What it made is destroyed again where it fails.
func (s *Source) watch(l Level, entities []Entity) (*watch, error) {
	fields, err := s.fieldGroup(l)
	if err != nil {
		return nil, err
	}
	w := &watch{level: l, entities: slices.Clone(entities)}
	s.calls.Add(1)
	if w.group, err = s.session.CreateGroup(s.name(l)); err != nil {
		return nil, err
	}
	for _, e := range entities {
		s.calls.Add(1)
		if err = s.session.AddToGroup(w.group, e); err != nil {
			break
		}
	}
	if err == nil {
		s.calls.Add(1)
		w.watching = true
		err = s.session.Watch(w.group, fields, s.opts.Interval)
	}
	if err != nil {
		if !lost(err) {
			err = errors.Join(err, s.release(w))
		}
		return nil, err
	}
	w.since = s.opts.Now().UnixMicro()
	return w, nil
}

// name is one that no other client of the engine has.
func (s *Source) name(l Level) string {
	s.made++
	return fmt.Sprintf("mig-exporter-%s-%d-%d", l, os.Getpid(), s.made)
}

// fieldGroup makes the group of the fields of a level with its first use in a session.
func (s *Source) fieldGroup(l Level) (FieldGroup, error) {
	if s.named[l] {
		return s.fields[l], nil
	}
	s.calls.Add(1)
	f, err := s.session.CreateFieldGroup(s.name(l), s.sets[l])
	if err != nil {
		return 0, err
	}
	s.fields[l], s.named[l] = f, true
	return f, nil
}

// release ends a watch. What the engine won't destroy now is tried again in the next cycle; an error means that the
// connection is lost.
func (s *Source) release(w *watch) error {
	if w.watching {
		s.calls.Add(1)
		// A watch that the engine does not know is gone; with the group goes what else is left of it.
		if err := s.session.Unwatch(w.group, s.fields[w.level]); err != nil && lost(err) {
			return err
		}
		w.watching = false
	}
	s.calls.Add(1)
	err := s.session.DestroyGroup(w.group)
	switch {
	case err == nil || errors.Is(err, ErrGone):
	case lost(err):
		return err
	default:
		s.leftover = append(s.leftover, w)
	}
	return nil
}

// releaseInstances ends the watches of a GPU's instances.
func (s *Source) releaseInstances(u *unit) error {
	for l, w := range u.watches {
		if w == nil {
			continue
		}
		u.watches[l] = nil
		if err := s.release(w); err != nil {
			return err
		}
	}
	return nil
}

// releaseLeftover ends the watches of GPUs that are no longer profiled, and those that the engine has forgotten, and
// tries again what could not be destroyed.
func (s *Source) releaseLeftover() error {
	again := s.leftover
	s.leftover = nil
	for _, w := range again {
		if err := s.release(w); err != nil {
			return err
		}
	}
	for id, u := range s.units {
		for _, w := range [...]**watch{&u.board, &u.watches[LevelInstance], &u.watches[LevelCompute]} {
			if *w == nil || u.wanted && !(*w).forgotten() {
				continue
			}
			gone := *w
			*w = nil
			if err := s.release(gone); err != nil {
				return err
			}
		}
		if !u.wanted {
			delete(s.units, id)
		}
	}
	return nil
}

// releaseAll ends every watch.
func (s *Source) releaseAll() error {
	for _, u := range s.units {
		u.wanted = false
	}
	if w := s.boards; w != nil {
		s.boards = nil
		if err := s.release(w); err != nil {
			return err
		}
	}
	return s.releaseLeftover()
}
