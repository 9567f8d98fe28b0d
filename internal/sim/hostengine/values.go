package hostengine

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// watchKey identifies a watch by the ids of its group and of its field group.
type watchKey struct{ group, fields uintptr }

// watch keeps the values of some fields up to date.
type watch struct {
	entities []Entity
	fields   []uint16
	interval time.Duration
	since    time.Time // when it began
}

// sampled holds the last two profiling samples of one entity. Values are means over the interval
// between them.
type sampled struct {
	last   sim.Counters
	from   sim.Counters // the counters before last
	taken  int          // how many samples were taken, at most samplesForValue
	filled bool         // whether there are values
	at     time.Time    // the time of the values: the end of their interval
}

// Value is dcgmFieldValue_v2: one value of one field.
type Value struct {
	Entity Entity
	Field  uint16
	Type   byte // 'i', 'd' or 's', DCGM_FT_*
	Status Code
	Micros int64 // when it was sampled
	Int    int64
	Float  float64
	Text   string // of a string field
}

// The blanks of DCGM (dcgm_structs.h), which stand for a value that DCGM doesn't have.
const (
	IntBlank          = 0x7ffffffffffffff0
	IntNotSupported   = IntBlank + 2
	FloatBlank        = 140737488355328.0
	FloatNotFound     = FloatBlank + 1
	FloatNotSupported = FloatBlank + 2

	TextBlank        = "<<<NULL>>>"
	TextNotFound     = "<<<NOT_FOUND>>>"
	TextNotSupported = "<<<NOT_SUPPORTED>>>"
)

// The kinds of blanks, for setBlank: each adds its number to the first blank.
const (
	noValue      = 0
	notSupported = 2
)

// Watch begins to sample fields of a group's entities. It returns an error if one of them cannot be
// profiled.
func (s *Session) Watch(groupID, fieldsID uintptr, interval time.Duration) error {
	if err := s.beginCall(); err != nil {
		return err
	}

	e := s.engine
	defer e.mu.Unlock()

	g := e.groups[groupID]
	fields := e.fields[fieldsID]

	if g == nil || fields == nil {
		return NotConfigured
	}

	if slices.ContainsFunc(fields.ids, isProfiling) {
		if interval < minInterval {
			return BadParam
		}

		for _, entity := range g.entities {
			if err := e.checkProfiling(entity); err != nil {
				return err
			}
		}
	}

	e.watches[watchKey{groupID, fieldsID}] = &watch{
		entities: g.entities,
		fields:   fields.ids,
		interval: interval,
		since:    e.node.Now(),
	}
	e.update()

	return nil
}

// checkProfiling returns an error if an entity cannot be profiled. Profiling needs root's rights and,
// for GPUs without GPM, a module of DCGM that can be missing.
func (e *Engine) checkProfiling(entity Entity) error {
	state := e.node.HostEngine()
	if state.NonRoot {
		return RequiresRoot
	}

	index, _, ok := e.gpuOf(entity)
	if ok && state.NoModule && !e.node.HasGPM(index) {
		return ModuleNotLoaded
	}

	return nil
}

// MetricGroups returns an error if a GPU cannot be profiled.
func (s *Session) MetricGroups(index int) error {
	if _, err := s.Device(index); err != nil {
		return err
	}

	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()

	return s.engine.checkProfiling(Entity{GPU, uint32(index)})
}

// Unwatch ends what Watch began.
func (s *Session) Unwatch(groupID, fieldsID uintptr) error {
	if err := s.beginCall(); err != nil {
		return err
	}

	defer s.engine.mu.Unlock()

	delete(s.engine.watches, watchKey{groupID, fieldsID})

	return nil
}

// Update samples every watched entity whose interval has passed.
func (s *Session) Update() error {
	if err := s.beginCall(); err != nil {
		return err
	}

	defer s.engine.mu.Unlock()

	s.engine.followAll()
	s.engine.update()

	return nil
}

// update samples every watched entity whose interval has passed. A real engine does so by itself.
// Ours samples only when a client calls, so that a stepped run gives the same values each time.
func (e *Engine) update() {
	for _, w := range e.watches {
		profiling := slices.ContainsFunc(w.fields, isProfiling)
		links := slices.Contains(w.fields, fieldLinkTraffic)

		for _, entity := range w.entities {
			if profiling {
				e.sample(entity, w.interval)
			}

			// We take the NVLink traffic from the profiling counters of the entity's GPU.
			if index, _, ok := e.gpuOf(entity); links && ok && !(profiling && entity.Level == GPU) {
				e.sample(Entity{GPU, uint32(index)}, w.interval)
			}
		}
	}
}

func (e *Engine) sample(entity Entity, interval time.Duration) {
	if s := e.samples[entity]; s != nil && s.filled && e.isGone(entity) {
		s.at = e.node.Now() // the instance is gone: we repeat its last values with a new time
		return
	}

	c, err := e.counters(entity)
	if err != nil {
		delete(e.samples, entity)
		return
	}

	s := e.samples[entity]
	if s == nil {
		e.samples[entity] = &sampled{last: c, taken: 1}
		return
	}

	switch since := c.Time.Sub(s.last.Time); {
	case since < 0, e.isOutdated(s, c.Time, interval):
		*s = sampled{last: c, taken: 1}
	case since >= interval:
		// A real engine takes a sample each interval, whether or not a client calls.
		taken := min(s.taken+int(since/interval), samplesForValue)
		*s = sampled{
			last:   c,
			from:   s.last,
			taken:  taken,
			filled: taken == samplesForValue,
			at:     c.Time,
		}
	}
}

// samplesForValue is how many samples DCGM takes before it has a value: it never uses the first
// sample (GetLatestSample: DcgmGpmManager.cpp of DCGM 4). We do not know whether the closed module
// for GPUs without GPM does the same.
const samplesForValue = 3

// noteStall records a period in which the engine could not sample: it was stopped, or the current
// call waited for a GPU that hangs.
func (e *Engine) noteStall() {
	now := e.node.Now()
	if now.Sub(e.entered) >= maxSampleAge(0) {
		e.stalled = sim.Stop{From: e.entered, Until: now}
	}

	if stop := e.node.HostEngine().Stopped; stop.Until.After(e.stalled.Until) {
		e.stalled = stop
	}
}

// isOutdated reports whether the engine has just been stopped or blocked for so long that DCGM drops
// the last sample. As after a new watch, the next samples then give blanks with status 0 and the
// present time (PruneOldSamples, GetLatestSample: DcgmGpmManager.cpp of DCGM 4). Two intervals later
// the engine has values again.
func (e *Engine) isOutdated(s *sampled, now time.Time, interval time.Duration) bool {
	stop := e.stalled
	from := stop.From

	if s.last.Time.After(from) {
		from = s.last.Time
	}

	return stop.Until.Sub(from) >= maxSampleAge(interval) && now.Sub(stop.Until) < 2*interval
}

// isGone reports whether an entity is an instance that no longer exists but that the hierarchy, which
// lags, still shows.
func (e *Engine) isGone(entity Entity) bool {
	m, ok := e.member(entity)
	return ok && e.trees[m.GPU].gone[entity]
}

// counters reads the counters of the instance that has the entity's ids now. While the hierarchy
// lags behind the driver, that may be another instance.
func (e *Engine) counters(entity Entity) (sim.Counters, error) {
	if entity.Level == GPU {
		return e.node.GPUCounters(int(entity.ID))
	}

	m, ok := e.member(entity)
	if !ok {
		return sim.Counters{}, gpu.ErrNotFound
	}

	if entity.Level == GPUInstance {
		return e.node.InstanceCounters(m.GPU, m.Instance)
	}

	return e.node.ComputeCounters(m.GPU, m.Instance, m.Compute)
}

// isPCIeTraffic reports whether a profiling field is bytes sent or received over PCIe, which DCGM
// only has for whole GPUs.
func isPCIeTraffic(field uint16) bool { return field == 1009 || field == 1010 }

// Latest returns the newest value of every field of every entity, by entity. A field that is not
// watched has the status NotWatched. A field that the entity does not have is a blank with the status
// OK.
func (s *Session) Latest(entities []Entity, fields []uint16) ([]Value, error) {
	if err := s.beginCall(); err != nil {
		return nil, err
	}

	e := s.engine
	defer e.mu.Unlock()

	e.followAll()
	e.update()

	list := make([]Value, 0, len(entities)*len(fields))
	for _, entity := range entities {
		for _, f := range fields {
			list = append(list, e.value(entity, f))
		}
	}

	return list, nil
}

// Live reads fields from the driver, watched or not (DCGM_FV_FLAG_LIVE_DATA). It does not support
// profiling fields and XIDs, because DCGM only has them from samples and events.
func (s *Session) Live(entities []Entity, fields []uint16) ([]Value, error) {
	if err := s.beginCall(); err != nil {
		return nil, err
	}

	e := s.engine
	defer e.mu.Unlock()

	e.followAll()

	list := make([]Value, 0, len(entities)*len(fields))
	for _, entity := range entities {
		for _, f := range fields {
			v := e.blank(entity, f)
			if isProfiling(f) || f == fieldXID {
				v.Status = NotSupported
			} else {
				e.readDevice(&v)
			}

			list = append(list, v)
		}
	}

	return list, nil
}

// blank returns a blank of the field's type.
func (e *Engine) blank(entity Entity, field uint16) Value {
	v := Value{Entity: entity, Field: field, Type: 'i'}
	if f, known := e.meta[field]; known {
		v.Type = f.Type
	}

	v.setBlank(noValue)

	return v
}

// setBlank sets a value to the blank of its type that has a kind: noValue or notSupported.
func (v *Value) setBlank(kind int) {
	switch v.Type {
	case 'd':
		v.Float = FloatBlank + float64(kind)
	case 's':
		v.Text = [...]string{TextBlank, TextNotFound, TextNotSupported}[kind]
	default:
		v.Int = IntBlank + int64(kind)
	}
}

// value returns the newest value of a field of an entity.
func (e *Engine) value(entity Entity, field uint16) Value {
	v := e.blank(entity, field)
	if !e.watched(entity, field) {
		v.Status = NotWatched
		return v
	}

	switch {
	case field == fieldXID:
		e.readXID(&v)
	case field == fieldLinkTraffic:
		e.readLinkTraffic(&v)
	case isProfiling(field):
		e.readProfiling(&v)
	default:
		e.readDevice(&v)
	}

	return v
}

// readProfiling reads a profiling field. While profiling is paused, and until there are enough
// samples, it leaves the blank with the status OK.
func (e *Engine) readProfiling(v *Value) {
	s := e.samples[v.Entity]
	switch {
	case e.node.HostEngine().Paused:
		v.Micros = e.node.Now().UnixMicro()
		return
	case s == nil || e.isEmpty(v.Entity):
		v.Status = NoData
		return
	case !s.filled:
		v.Micros = s.last.Time.UnixMicro()
		return
	}

	v.Micros = s.at.UnixMicro()
	v.setBlank(notSupported)

	metric, scale, ok := metricOf(v.Field)
	if !ok || v.Entity.Level != GPU && isPCIeTraffic(v.Field) {
		return
	}

	value, ok := sim.GPM(s.from, s.last, metric)
	switch {
	case !ok:
	case v.Type == 'i' && math.IsNaN(value):
		v.setBlank(noValue)
	case v.Type == 'i':
		v.Int = int64(math.Round(value * scale))
	default:
		v.Float = math.Round(value*scale*1e8) / 1e8
	}
}

// isEmpty reports whether an entity is a GPU instance without compute instances, for which DCGM has
// no data.
func (e *Engine) isEmpty(entity Entity) bool {
	if entity.Level != GPUInstance {
		return false
	}

	for i := range e.trees {
		for _, m := range e.trees[i].members {
			if m.Parent == entity {
				return false
			}
		}
	}

	return true
}

// watched reports whether a field of an entity is watched.
func (e *Engine) watched(entity Entity, field uint16) bool { return e.watchOf(entity, field) != nil }

// watchOf returns the oldest watch of a field of an entity; nil if there is none. A watch of a field
// of the node counts for every entity.
func (e *Engine) watchOf(entity Entity, field uint16) *watch {
	var oldest *watch
	for _, w := range e.watches {
		if oldest != nil && !w.since.Before(oldest.since) || !slices.Contains(w.fields, field) {
			continue
		}

		if e.meta[field].Level == NoEntity || slices.Contains(w.entities, entity) {
			oldest = w
		}
	}

	return oldest
}

func isProfiling(field uint16) bool { return field >= 1001 && field <= 1012 }

// metricOf returns the GPM metric that a profiling field (dcgm_fields.h, DCGM_FI_PROF_*)
// corresponds to, and the factor from GPM's unit to DCGM's: from percent to ratios, from MiB to
// bytes.
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
