package hostengine

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// tree is the hierarchy of one GPU as the engine sees it.
type tree struct {
	members []Member
	known   bool            // whether the engine has read it yet
	seen    int             // the number of the GPU's next event when the driver last had the same tree
	changed time.Time       // since when the driver has another tree; zero if it has the same
	gone    map[Entity]bool // members that the driver no longer has
}

// Hierarchy lists the GPU instances, each followed by its compute instances.
func (s *Session) Hierarchy() ([]Member, error) {
	if err := s.beginCall(); err != nil {
		return nil, err
	}

	e := s.engine
	defer e.mu.Unlock()

	e.followAll()

	var list []Member
	for i := range e.trees {
		list = append(list, e.trees[i].members...)
	}

	return list, nil
}

func (e *Engine) followAll() {
	for i := range e.trees {
		e.follow(i)
	}

	e.noteStall() // reading a GPU that hangs has blocked
}

// follow brings a GPU's hierarchy up to date, once the driver's change is older than lag.
func (e *Engine) follow(index int) {
	t := &e.trees[index]
	_, next := e.node.History(index, math.MaxInt)

	s, err := e.node.Read(index, gpu.ReadingMIG)
	if err != nil {
		return
	}

	// NVIDIA documents that DCGM must be restarted after a change of the MIG mode: until then an
	// embedded engine keeps the old hierarchy.
	if e.kind == Embedded && s.MIGEnabled != e.migModes[index] {
		return
	}

	switch {
	case t.known && sameTree(t.members, &s):
		t.seen = next
		t.changed = time.Time{}
		t.gone = nil

		return
	case !t.known:
		e.adopt(index, &s)
		t.seen = next

		return
	case t.changed.IsZero() || s.Time.Before(t.changed):
		t.changed = e.firstChange(index, t.seen, s.Time)
	}

	if s.Time.Sub(t.changed) >= lag {
		e.adopt(index, &s)
		t.seen = next

		return
	}

	t.gone = make(map[Entity]bool)
	for i := range t.members {
		t.gone[t.members[i].Entity] = !t.members[i].isIn(&s)
	}
}

// isIn reports whether the driver still has the instance.
func (m *Member) isIn(s *sim.GPUState) bool {
	i, ok := s.Instance(m.Instance)
	switch {
	case !ok || i.Profile.ID != m.giProfile || i.Placement != m.giPlacement:
		return false
	case m.Entity.Level == GPUInstance:
		return true
	}

	c, ok := i.Compute(m.Compute)

	return ok && c.Placement == m.placement
}

// firstChange returns the time of the first MIG change among a GPU's events from a number on; now if
// there is none.
func (e *Engine) firstChange(index, from int, now time.Time) time.Time {
	events, _ := e.node.History(index, from)
	for _, event := range events {
		if event.Kind == gpu.EventMIGChange {
			return event.Time
		}
	}

	return now
}

// sameTree reports whether the driver has the same instances, by ids, profiles and placements. An
// instance that has replaced an equal one counts as the same.
func sameTree(members []Member, s *sim.GPUState) bool {
	var current []Member

	for i := range s.Instances {
		gi := &s.Instances[i]
		current = append(
			current,
			Member{Instance: gi.ID, ProfileID: gi.Profile.ID, placement: gi.Placement},
		)

		for _, c := range gi.ComputeInstances {
			current = append(current, Member{Instance: gi.ID, Compute: c.ID, placement: c.Placement})
		}
	}

	return slices.EqualFunc(members, current, func(m, c Member) bool {
		return m.Instance == c.Instance && m.placement == c.placement && m.Compute == c.Compute &&
			(m.Entity.Level != GPUInstance || m.ProfileID == c.ProfileID)
	})
}

// adopt takes over the driver's tree. It gives all instances of the GPU new entity ids, the lowest
// free ids first. So, as in DCGM, an id soon stands for another instance.
func (e *Engine) adopt(index int, s *sim.GPUState) {
	t := &e.trees[index]
	for _, m := range t.members {
		e.freeIDs[m.Entity.Level] = append(e.freeIDs[m.Entity.Level], m.Entity.ID)
		delete(e.samples, m.Entity)
	}

	*t = tree{known: true}
	device := Entity{GPU, uint32(index)}

	for i := len(s.Instances) - 1; i >= 0; i-- { // the last first, so that ids move to other instances
		gi := &s.Instances[i]
		m := Member{
			Entity:      e.newEntity(GPUInstance),
			Parent:      device,
			GPU:         index,
			UUID:        s.UUID,
			Instance:    gi.ID,
			ProfileID:   gi.Profile.ID,
			Slices:      gi.Profile.ComputeSlices,
			placement:   gi.Placement,
			giPlacement: gi.Placement,
			giProfile:   gi.Profile.ID,
		}
		members := []Member{m}

		for _, c := range gi.ComputeInstances {
			profile, _ := sim.ComputeProfileID(c.Placement.Size)
			members = append(members, Member{
				Entity:      e.newEntity(ComputeInstance),
				Parent:      m.Entity,
				GPU:         index,
				UUID:        s.UUID,
				Instance:    gi.ID,
				Compute:     c.ID,
				ProfileID:   profile,
				Slices:      c.Placement.Size,
				placement:   c.Placement,
				giPlacement: gi.Placement,
				giProfile:   gi.Profile.ID,
			})
		}

		t.members = append(members, t.members...)
	}
}

func (e *Engine) newEntity(level Level) Entity {
	if free := e.freeIDs[level]; len(free) > 0 {
		slices.Sort(free)
		e.freeIDs[level] = free[1:]

		return Entity{level, free[0]}
	}

	e.nextID[level]++

	return Entity{level, e.nextID[level] - 1}
}

// member finds an instance in the hierarchy.
func (e *Engine) member(entity Entity) (Member, bool) {
	for i := range e.trees {
		for _, m := range e.trees[i].members {
			if m.Entity == entity {
				return m, true
			}
		}
	}

	return Member{}, false
}

func (e *Engine) exists(entity Entity) bool {
	if entity.Level == GPU {
		return int(entity.ID) < e.node.Count()
	}

	_, ok := e.member(entity)

	return ok
}
