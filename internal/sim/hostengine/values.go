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
	since    time.Time // when it began
}

// sampled is the profiling of one entity: counters, and the mean over the last interval.
type sampled struct {
	last   sim.Counters
	from   sim.Counters // the counters before those
	taken  int          // samples so far, up to those that a value needs
	filled bool         // there is an interval that gives values
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

	TextBlank        = "<<<NULL>>>"
	TextNotFound     = "<<<NOT_FOUND>>>"
	TextNotSupported = "<<<NOT_SUPPORTED>>>"
)

// The blanks by their number, which is how much they are above the first of them.
const (
	noValue      = 0
	notSupported = 2
)

// Watch begins to sample. Profiling needs rights, and the GPUs' support.
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

		for _, of := range g.entities {
			if err := e.profiles(of); err != nil {
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

// profiles returns why an entity cannot be profiled. The module that profiles GPUs without GPM can be missing.
func (e *Engine) profiles(of Entity) error {
	state := e.node.HostEngine()

	index, _, ok := e.gpuOf(of)
	switch {
	case state.NonRoot:
		return RequiresRoot
	case state.NoModule && ok && !e.node.HasGPM(index):
		return ModuleNotLoaded
	}

	return nil
}

// MetricGroups returns why a GPU cannot be profiled; nil if it can.
func (s *Session) MetricGroups(index int) error {
	if _, err := s.Device(index); err != nil {
		return err
	}

	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()

	return s.engine.profiles(Entity{GPU, uint32(index)})
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

// Update samples what is due.
func (s *Session) Update() error {
	if err := s.beginCall(); err != nil {
		return err
	}

	defer s.engine.mu.Unlock()

	s.engine.followAll()
	s.engine.update()

	return nil
}

// update samples every watched entity whose interval has passed. A real engine does so by itself; time moves here only
// when they are read, so that a stepped run gives the same values each time.
func (e *Engine) update() {
	for _, w := range e.watches {
		profiling := slices.ContainsFunc(w.fields, isProfiling)
		links := slices.Contains(w.fields, fieldLinkTraffic)

		for _, of := range w.entities {
			if profiling {
				e.sample(of, w.interval)
			}

			if index, _, ok := e.gpuOf(of); links && ok && !(profiling && of.Level == GPU) {
				e.sample(Entity{GPU, uint32(index)}, w.interval)
			}
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
		e.samples[of] = &sampled{last: c, taken: 1}
		return
	}

	switch since := c.Time.Sub(s.last.Time); {
	case since < 0, e.outdated(s, c.Time, interval):
		*s = sampled{last: c, taken: 1}
	case since >= interval:
		// This counts samples that no call has asked for.
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

// samplesForValue is how many samples there must be before there is a value: the first one is never what another is
// compared with (GetLatestSample: DcgmGpmManager.cpp of DCGM 4; what the closed module for GPUs without GPM does is not
// known).
const samplesForValue = 3

// noteStall notes a stop of the engine, and that the call has waited until now, as for a GPU that hangs.
func (e *Engine) noteStall() {
	now := e.node.Now()
	if now.Sub(e.entered) >= maxSampleAge(0) {
		e.stalled = sim.Stop{From: e.entered, Until: now}
	}

	if stop := e.node.HostEngine().Stopped; stop.Until.After(e.stalled.Until) {
		e.stalled = stop
	}
}

// outdated reports whether the engine has just been stopped or blocked for so long that the last sample is too old to
// be compared with. DCGM drops it then, and its first new samples give blanks with status 0 and a timestamp of the
// present, as those of a new watch do (PruneOldSamples, GetLatestSample: DcgmGpmManager.cpp of DCGM 4). If the engine
// went on two intervals or more before it is asked, it has sampled again.
func (e *Engine) outdated(s *sampled, now time.Time, interval time.Duration) bool {
	stop := e.stalled

	from := stop.From
	if s.last.Time.After(from) {
		from = s.last.Time
	}

	return stop.Until.Sub(from) >= maxSampleAge(interval) && now.Sub(stop.Until) < 2*interval
}

// lagging reports whether an entity is an instance that is gone and that the hierarchy still shows.
func (e *Engine) lagging(of Entity) bool {
	m, ok := e.member(of)
	return ok && e.trees[m.GPU].gone[of]
}

// counters reads an entity's, through the ids that the hierarchy has for it: while that lags behind they may be another
// instance's by now.
func (e *Engine) counters(of Entity) (sim.Counters, error) {
	if of.Level == GPU {
		return e.node.GPUCounters(int(of.ID))
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

// isLinkTraffic reports whether a field of profiling is the traffic over PCIe, of which DCGM has that of GPUs alone.
func isLinkTraffic(field uint16) bool { return field == 1009 || field == 1010 }

// Latest gives the newest value of every field of every entity, by entity. One that is not watched has a status that
// says so; what an entity does not have is a blank whose status is good.
func (s *Session) Latest(entities []Entity, fields []uint16) ([]Value, error) {
	if err := s.beginCall(); err != nil {
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
	if err := s.beginCall(); err != nil {
		return nil, err
	}

	e := s.engine
	defer e.mu.Unlock()

	e.followAll()

	list := make([]Value, 0, len(entities)*len(fields))
	for _, of := range entities {
		for _, f := range fields {
			v := e.blank(of, f)
			if isProfiling(f) || f == fieldXID { // the one is sampled, the other comes by events
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
func (e *Engine) blank(of Entity, field uint16) Value {
	v := Value{Entity: of, Field: field, Type: 'i'}
	if f, known := e.meta[field]; known {
		v.Type = f.Type
	}

	v.setBlank(noValue)

	return v
}

// setBlank makes a value one of the blanks of its type.
func (v *Value) setBlank(number int) {
	switch v.Type {
	case 'd':
		v.Float = FloatBlank + float64(number)
	case 's':
		v.Text = [...]string{TextBlank, TextNotFound, TextNotSupported}[number]
	default:
		v.Int = IntBlank + int64(number)
	}
}

func (e *Engine) value(of Entity, field uint16) Value {
	v := e.blank(of, field)
	if !e.watched(of, field) {
		v.Status = NotWatched
		return v
	}

	switch {
	case field == fieldXID:
		e.readXID(&v)
		return v
	case field == fieldLinkTraffic:
		e.readLinkTraffic(&v)
		return v
	case !isProfiling(field):
		e.readDevice(&v)
		return v
	}

	s := e.samples[of]
	switch {
	case e.node.HostEngine().Paused:
		v.Micros = e.node.Now().UnixMicro()
		return v
	case s == nil || e.empty(of):
		v.Status = NoData
		return v
	case !s.filled:
		v.Micros = s.last.Time.UnixMicro()
		return v
	}

	v.Micros = s.at.UnixMicro()
	v.setBlank(notSupported)

	if metric, scale, ok := metricOf(field); ok {
		value, has := sim.GPM(s.from, s.last, metric)
		switch {
		case !has || of.Level != GPU && isLinkTraffic(field):
		case v.Type == 'i' && math.IsNaN(value):
			v.setBlank(noValue)
		case v.Type == 'i':
			v.Int = int64(math.Round(value * scale))
		default:
			v.Float = math.Round(value*scale*1e8) / 1e8
		}
	}

	return v
}

// empty reports whether an entity is a GPU instance that nothing can run on: it gives no data.
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

// watched reports whether a field of an entity is watched.
func (e *Engine) watched(of Entity, field uint16) bool { return e.watchOf(of, field) != nil }

// watchOf returns the oldest watch of a field of an entity; those of the node are watched with any.
func (e *Engine) watchOf(of Entity, field uint16) *watch {
	var oldest *watch
	for _, w := range e.watches {
		if oldest != nil && !w.since.Before(oldest.since) || !slices.Contains(w.fields, field) {
			continue
		}

		if e.meta[field].Level == NoEntity || slices.Contains(w.entities, of) {
			oldest = w
		}
	}

	return oldest
}

func isProfiling(field uint16) bool { return field >= 1001 && field <= 1012 }

// metricOf is the metric of GPM that a profiling field (dcgm_fields.h, DCGM_FI_PROF_*) corresponds to, and the unit
// of the one in that of the other: ratio for percent, bytes for MiB.
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
