package hostengine

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// watchKey is what is watched: the fields of a field group on the entities of a group.
type watchKey struct{ group, fields uintptr }

// watch keeps the values of some fields up to date.
type watch struct {
	entities []Entity
	fields   []uint16
	interval time.Duration
}

// sampled is the profiling of one entity: counters, and the mean over the last interval.
type sampled struct {
	last   sim.Counters
	from   sim.Counters // the counters before those
	filled bool         // there is an interval
	at     time.Time    // its end
}

// Value is dcgmFieldValue_v2: one value of one field. Text is that of a string field.
type Value struct {
	Entity Entity
	Field  uint16
	Type   byte // 'i', 'd' or 's', DCGM_FT_*
	Status Code
	Micros int64 // when it was sampled
	Int    int64
	Float  float64
	Text   string
}

// The blanks of DCGM (dcgm_structs.h): values that say that there is none.
const (
	IntBlank          = 0x7ffffffffffffff0
	IntNotSupported   = IntBlank + 2
	FloatBlank        = 140737488355328.0
	FloatNotFound     = FloatBlank + 1
	FloatNotSupported = FloatBlank + 2
)

// Watch begins to sample. Profiling needs rights, and the GPUs' support.
func (s *Session) Watch(groupID, fieldsID uintptr, interval time.Duration) error {
	if err := s.enter(); err != nil {
		return err
	}
	e := s.engine
	defer e.mu.Unlock()
	g, fields := e.groups[groupID], e.fields[fieldsID]
	switch {
	case g == nil || fields == nil:
		return NotConfigured
	}
	if slices.ContainsFunc(fields.ids, isProfiling) {
		switch {
		case interval < minInterval:
			return BadParam
		case e.node.HostEngine().NonRoot:
			return RequiresRoot
		}
	}
	e.watches[watchKey{groupID, fieldsID}] = &watch{entities: g.entities, fields: fields.ids, interval: interval}
	e.update()
	return nil
}

// Unwatch ends what Watch began.
func (s *Session) Unwatch(groupID, fieldsID uintptr) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.engine.mu.Unlock()
	delete(s.engine.watches, watchKey{groupID, fieldsID})
	return nil
}

// Update samples what is due.
func (s *Session) Update() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.engine.mu.Unlock()
	s.engine.followAll()
	s.engine.update()
	return nil
}

// update samples every watched entity whose interval has passed. A real engine does so by itself; time moves here only
// when somebody looks, so that a stepped run gives the same values each time.
func (e *Engine) update() {
	for _, w := range e.watches {
		if !slices.ContainsFunc(w.fields, isProfiling) {
			continue
		}
		for _, of := range w.entities {
			e.sample(of, w.interval)
		}
	}
}

func (e *Engine) sample(of Entity, interval time.Duration) {
	if s := e.samples[of]; s != nil && s.filled && e.lagging(of) {
		s.at = e.node.Now() // what it had last, of an instance that is gone, under a new time
		return
	}
	c, err := e.counters(of)
	if err != nil {
		delete(e.samples, of)
		return
	}
	s := e.samples[of]
	if s == nil {
		e.samples[of] = &sampled{last: c}
		return
	}
	switch since := c.Time.Sub(s.last.Time); {
	case since < 0:
		*s = sampled{last: c}
	case since >= interval:
		*s = sampled{last: c, from: s.last, filled: true, at: c.Time}
	}
}

// lagging tells whether an entity is one of a hierarchy that has passed.
func (e *Engine) lagging(of Entity) bool {
	m, ok := e.member(of)
	return ok && !e.trees[m.GPU].changed.IsZero()
}

// counters reads an entity's, through the ids that the hierarchy has for it: while that lags behind they may be another
// instance's by now.
func (e *Engine) counters(of Entity) (sim.Counters, error) {
	if of.Level == GPU {
		return e.node.BoardCounters(int(of.ID))
	}
	m, ok := e.member(of)
	switch {
	case !ok:
		return sim.Counters{}, gpu.ErrNotFound
	case of.Level == GPUInstance:
		return e.node.InstanceCounters(m.GPU, m.Instance)
	}
	return e.node.ComputeCounters(m.GPU, m.Instance, m.Compute)
}

// Latest gives the newest value of every field of every entity, by entity. One that is not watched has a status that says
// so; what an entity does not have is a blank whose status is good.
func (s *Session) Latest(entities []Entity, fields []uint16) ([]Value, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	e := s.engine
	defer e.mu.Unlock()
	e.followAll()
	e.update()
	list := make([]Value, 0, len(entities)*len(fields))
	for _, of := range entities {
		for _, f := range fields {
			list = append(list, e.value(of, f))
		}
	}
	return list, nil
}

// Live asks the driver, which takes no watch (DCGM_FV_FLAG_LIVE_DATA). Profiling has nothing to say that way.
func (s *Session) Live(entities []Entity, fields []uint16) ([]Value, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	e := s.engine
	defer e.mu.Unlock()
	e.followAll()
	list := make([]Value, 0, len(entities)*len(fields))
	for _, of := range entities {
		for _, f := range fields {
			v := blank(of, f)
			if isProfiling(f) {
				v.Status = NotSupported
			} else {
				e.readDevice(&v)
			}
			list = append(list, v)
		}
	}
	return list, nil
}

// blank is the value of a field that has none.
func blank(of Entity, field uint16) Value {
	if field >= fieldPCIeSent && field <= fieldNVLinkReceived {
		return Value{Entity: of, Field: field, Type: 'i', Int: IntBlank}
	}
	return Value{Entity: of, Field: field, Type: 'd', Float: FloatBlank}
}

// setBlank makes a value a blank of its type, by the number of the sentinel: 0 BLANK, 1 NOT_FOUND, 2 NOT_SUPPORTED.
func (v *Value) setBlank(sentinel int64) {
	if v.Type == 'i' {
		v.Int = IntBlank + sentinel
	} else {
		v.Float = FloatBlank + float64(sentinel)
	}
}

func (e *Engine) value(of Entity, field uint16) Value {
	v := blank(of, field)
	if !e.watched(of, field) {
		v.Status = NotWatched
		return v
	}
	if !isProfiling(field) {
		e.readDevice(&v)
		return v
	}
	s := e.samples[of]
	switch {
	case e.node.HostEngine().Paused:
		v.Micros = e.node.Now().UnixMicro()
		return v
	case s == nil || !s.filled || e.empty(of):
		v.Status = NoData
		return v
	}
	v.Micros = s.at.UnixMicro()
	v.setBlank(2)
	if metric, scale, ok := metricOf(field); ok {
		value, has := sim.GPM(s.from, s.last, metric)
		switch {
		case !has:
		case v.Type == 'i' && math.IsNaN(value):
			v.setBlank(0)
		case v.Type == 'i':
			v.Int = int64(math.Round(value * scale))
		default:
			v.Float = math.Round(value*scale*1e8) / 1e8
		}
	}
	return v
}

// empty tells whether an entity is a GPU instance that nothing can run on: it gives no data.
func (e *Engine) empty(of Entity) bool {
	if of.Level != GPUInstance {
		return false
	}
	for i := range e.trees {
		for _, m := range e.trees[i].members {
			if m.Parent == of {
				return false
			}
		}
	}
	return true
}

func (e *Engine) watched(of Entity, field uint16) bool {
	for _, w := range e.watches {
		for _, entity := range w.entities {
			if entity != of {
				continue
			}
			for _, f := range w.fields {
				if f == field {
					return true
				}
			}
		}
	}
	return false
}

// The traffic among the profiling fields, which DCGM has as whole numbers of bytes per second.
const (
	fieldPCIeSent       = 1009
	fieldNVLinkReceived = 1012
)

func isProfiling(field uint16) bool { return field >= 1001 && field <= 1012 }

func known(field uint16) bool { return isProfiling(field) || deviceField(field) }

// metricOf is the metric of GPM that a profiling field (dcgm_fields.h, DCGM_FI_PROF_*) corresponds to, and the unit of the
// one in that of the other: ratio for percent, bytes for MiB.
func metricOf(field uint16) (metric uint32, scale float64, ok bool) {
	const mebi = 1 << 20
	m := map[uint16]struct {
		metric uint32
		scale  float64
	}{
		1001: {1, 0.01}, 1002: {2, 0.01}, 1003: {3, 0.01}, 1004: {5, 0.01}, 1005: {10, 0.01},
		1006: {11, 0.01}, 1007: {12, 0.01}, 1008: {13, 0.01},
		1009: {20, mebi}, 1010: {21, mebi}, 1011: {61, mebi}, 1012: {60, mebi},
	}[field]
	return m.metric, m.scale, m.metric != 0
}
