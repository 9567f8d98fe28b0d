package hostengine

import (
	"fmt"
	"slices"
)

// The groups that an engine has by itself (dcgm_structs.h).
const (
	AllGPUs       uintptr = 0x7fffffff
	AllNVSwitches uintptr = 0x7ffffffe
)

// ownSession is the session of the engine's own groups, which no session's end removes.
const ownSession = -1

// ownGroups returns the groups that the engine has by itself. They count towards maxGroups: clients
// can have 62.
func (e *Engine) ownGroups() map[uintptr]*group {
	all := &group{session: ownSession, name: "DCGM_ALL_SUPPORTED_GPUS"}
	for i := range e.node.Count() {
		all.entities = append(all.entities, Entity{GPU, uint32(i)})
	}

	return map[uintptr]*group{
		AllGPUs:       all,
		AllNVSwitches: {session: ownSession, name: "DCGM_ALL_SUPPORTED_NVSWITCHES"},
	}
}

// CreateGroup creates an empty group.
func (s *Session) CreateGroup(name string) (uintptr, error) {
	if err := s.beginCall(); err != nil {
		return 0, err
	}

	e := s.engine
	defer e.mu.Unlock()

	if len(e.groups) >= maxGroups || e.node.HostEngine().Taken {
		return 0, MaxLimit
	}

	e.lastID++
	e.groups[e.lastID] = &group{session: s.number, name: name}

	return e.lastID, nil
}

// AddEntity adds an entity to a group.
func (s *Session) AddEntity(id uintptr, entity Entity) error {
	if err := s.beginCall(); err != nil {
		return err
	}

	e := s.engine
	defer e.mu.Unlock()

	g := e.groups[id]
	if g == nil || g.session == ownSession || !e.exists(entity) ||
		slices.Contains(g.entities, entity) {
		return BadParam
	}

	g.entities = append(g.entities, entity)

	return nil
}

// DestroyGroup ends a group and its watches.
func (s *Session) DestroyGroup(id uintptr) error {
	if err := s.beginCall(); err != nil {
		return err
	}

	defer s.engine.mu.Unlock()

	switch g := s.engine.groups[id]; {
	case g == nil:
		return NotConfigured
	case g.session == ownSession:
		return BadParam
	}

	s.engine.dropGroup(id)

	return nil
}

func (e *Engine) dropGroup(id uintptr) {
	delete(e.groups, id)
	delete(e.health, id)

	for key := range e.watches {
		if key.group == id {
			delete(e.watches, key)
		}
	}
}

// CreateFieldGroup creates a set of fields.
func (s *Session) CreateFieldGroup(fields []uint16) (uintptr, error) {
	if err := s.beginCall(); err != nil {
		return 0, err
	}

	e := s.engine
	defer e.mu.Unlock()

	switch {
	case len(fields) == 0:
		return 0, BadParam
	case len(e.fields) >= maxGroups:
		return 0, MaxLimit
	}

	for _, f := range fields {
		if _, known := e.meta[f]; !known {
			return 0, UnknownField
		}
	}

	e.lastID++
	e.fields[e.lastID] = &fieldGroup{session: s.number, ids: slices.Clone(fields)}

	return e.lastID, nil
}

// DestroyFieldGroup ends a set of fields; its watches go on.
func (s *Session) DestroyFieldGroup(id uintptr) error {
	if err := s.beginCall(); err != nil {
		return err
	}

	defer s.engine.mu.Unlock()

	if s.engine.fields[id] == nil {
		return NotConfigured
	}

	delete(s.engine.fields, id)

	return nil
}

// Counts returns how many groups, field groups and watches clients have, for tests.
func (e *Engine) Counts() string {
	e.mu.Lock()
	defer e.mu.Unlock()

	return fmt.Sprintf(
		"%d groups, %d field groups, %d watches",
		len(e.groups)-len(e.ownGroups()),
		len(e.fields),
		len(e.watches),
	)
}
