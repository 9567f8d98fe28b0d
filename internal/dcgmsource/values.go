package dcgmsource

import (
	"math"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Blanks are numbers that mean that there is no value (DCGM_FP64_BLANK and so on): each type has
// the blank itself, then "not found", "not supported" and "not permissioned". They come with any
// status, and are compared exactly: larger numbers are values.
const (
	blankDouble       = 140737488355328.0
	blankInt32  int64 = 0x7ffffff0
	blankInt64  int64 = 0x7ffffffffffffff0
	blanks            = 4
)

// isBlank reports whether a value is the blank itself, which paused profiling gives, and none of
// the blanks with a reason.
func (v *Value) isBlank() bool {
	switch v.Type {
	case TypeDouble:
		return v.Double == blankDouble
	case TypeInt64:
		return v.Int64 == blankInt32 || v.Int64 == blankInt64
	}

	return false
}

// number returns a value as a float64. A blank, or a value of another type, is not known; NaN and
// infinite values are invalid.
func (v *Value) number() (x float64, known, invalid bool) {
	switch v.Type {
	case TypeDouble:
		x = v.Double
		switch x {
		case blankDouble, blankDouble + 1, blankDouble + 2, blankDouble + 3:
			return 0, false, false
		}

		if math.IsNaN(x) || math.IsInf(x, 0) {
			return 0, false, true
		}

		return x, true, false
	case TypeInt64:
		i := v.Int64
		if i >= blankInt32 && i < blankInt32+blanks || i >= blankInt64 && i < blankInt64+blanks {
			return 0, false, false
		}

		return float64(i), true, false
	}

	return 0, false, false
}

// reading is what one cycle reads of one GPU.
type reading struct {
	unit   *profiledGPU
	into   *gpu.Profiling
	oldest int64 // values measured before it are not used; microseconds since 1970
	newest int64 // when the newest value was measured; 0: there is none
	last   int   // index of the node of the last value: the next value is likely of it or of the next node
	ratio  bool  // a ratio has a value
	mature bool  // a watch of ratios has had the time to bring values
	// blank is when the newest blank of a ratio was sampled, in microseconds since 1970; 0: there
	// is none. Those of a watch that has not had the time to bring values do not count.
	blank int64
}

// oldestValue returns when a value must have been measured, at the earliest, to be served at a
// time, in microseconds since 1970: older ones are from before profiling stopped.
func (s *Source) oldestValue(at time.Time) int64 {
	return at.Add(-staleIntervals*s.opts.Interval - updateLag).UnixMicro()
}

// readWatch reads the latest values of the GPU's entities in a watch.
func (s *Source) readWatch(r *reading, w *watch) error {
	entities := w.entities
	if w.level == LevelGPU { // perhaps of several GPUs
		s.ids = append(s.ids[:0], r.unit.device)
		entities = s.ids
	}

	fields := s.sets[w.level]
	if w.level == LevelGPU && r.unit.rolled {
		fields = fields[s.ratios:]
	} else {
		r.mature = r.mature || w.since < r.oldest
	}

	atOnce := maxValues / len(fields)

	for len(entities) > 0 {
		part := entities[:min(atOnce, len(entities))]
		entities = entities[len(part):]

		values, err := s.countedSession().Latest(s.values[:0], part, fields)
		if err != nil {
			return err
		}

		s.values = values
		// The call may have hung: what it returns may be from before that.
		r.oldest = max(r.oldest, s.oldestValue(s.opts.Now()))
		for i := range values {
			r.storeValue(&values[i], w)
		}
	}

	return nil
}

// storeValue stores a value with its GPU or instance if the watch brought it: it is newer than the
// watch, which is newer than the layout, and it is not from before profiling was paused.
func (r *reading) storeValue(v *Value, w *watch) {
	w.asked++
	if v.Status == statusNotWatched {
		w.unwatched++
	}

	if v.Status != 0 || v.Micros <= w.since || v.Micros < r.oldest {
		return
	}

	a := r.activityOf(v.Entity)
	if a == nil {
		return
	}

	x, known, invalid := v.number()
	if invalid {
		r.into.Invalid++
	}

	if !known {
		if v.isBlank() && ratio(a, v.Field) != nil && w.since < r.oldest {
			r.blank = max(r.blank, v.Micros)
		}

		return
	}

	if field := ratio(a, v.Field); field != nil {
		*field = gpu.Some(x)
		r.ratio = true
	} else if field := rate(&r.into.Rates, v.Field); field != nil && v.Entity.Level == LevelGPU {
		*field = gpu.Some(x)
	} else {
		return
	}

	r.newest = max(r.newest, v.Micros)
}

// activityOf returns where the values of an entity belong; nil if it is not of this GPU.
func (r *reading) activityOf(e Entity) *gpu.Activity {
	u := r.unit
	if e.Level == LevelGPU {
		if e == u.device {
			return &r.into.GPU
		}

		return nil
	}

	for range u.nodes {
		if r.last >= len(u.nodes) {
			r.last = 0
		}

		if u.nodes[r.last].entity == e {
			return &u.read[r.last]
		}

		r.last++
	}

	return nil
}

// finish stores what was read of the instances.
func (r *reading) finish() {
	if r.newest > 0 {
		r.into.Time = time.UnixMicro(r.newest)
	}

	u := r.unit
	p := r.into

	if u.watches[LevelInstance] != nil {
		p.Instances = make(map[gpu.InstanceID]gpu.Activity, len(u.byLevel[LevelInstance]))
	}

	if p.Instances != nil || u.watches[LevelCompute] != nil {
		p.ComputeInstances = make(
			map[[2]uint32]gpu.Activity,
			len(u.nodes)-len(u.byLevel[LevelInstance]),
		)
	}

	for i, n := range u.nodes { // GPU instances come first
		a := u.read[i]
		if n.whole {
			a = p.Instances[gpu.InstanceID(n.instance)]
			a.DRAM = gpu.None[float64]()
		}

		switch {
		case a == gpu.Activity{}:
		case n.entity.Level == LevelInstance:
			p.Instances[gpu.InstanceID(n.instance)] = a
		case n.entity.Level == LevelCompute:
			p.ComputeInstances[[2]uint32{n.instance, n.compute}] = a
		}
	}
}

// ratio returns where a field belongs; nil if it is no ratio.
func ratio(a *gpu.Activity, field uint16) *gpu.Opt[float64] {
	switch field {
	case fieldGraphicsEngine:
		return &a.GraphicsEngine
	case fieldSM:
		return &a.SM
	case fieldOccupancy:
		return &a.SMOccupancy
	case fieldTensor:
		return &a.Tensor
	case fieldDRAM:
		return &a.DRAM
	case fieldFP64:
		return &a.FP64
	case fieldFP32:
		return &a.FP32
	case fieldFP16:
		return &a.FP16
	}

	return nil
}

// rate returns where a field of traffic belongs; nil if it is none.
func rate(r *gpu.LinkRates, field uint16) *gpu.Opt[float64] {
	switch field {
	case fieldPCIeTransmit:
		return &r.PCIeTransmit
	case fieldPCIeReceive:
		return &r.PCIeReceive
	case fieldNVLinkTransmit:
		return &r.NVLinkTransmit
	case fieldNVLinkReceive:
		return &r.NVLinkReceive
	}

	return nil
}
