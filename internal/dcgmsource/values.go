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
	blankKinds        = 4 // of each type, as consecutive numbers
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
		isBlank32 := i >= blankInt32 && i < blankInt32+blankKinds
		isBlank64 := i >= blankInt64 && i < blankInt64+blankKinds

		if isBlank32 || isBlank64 {
			return 0, false, false
		}

		return float64(i), true, false
	}

	return 0, false, false
}

// reading is what one cycle reads of one GPU.
type reading struct {
	gpu      *profiledGPU
	result   *gpu.Profiling
	oldest   int64 // values measured before it are not used; microseconds since 1970
	newest   int64 // when the newest value was measured; 0: there is none
	lastNode int   // index of the node of the last value: the next value is likely of it or of the next node
	hasRatio bool  // a ratio has a value
	mature   bool  // a watch of ratios has had the time to bring values
	// newestBlank is when the newest blank of a ratio was sampled, in microseconds since 1970; 0: there
	// is none. Those of a watch that has not had the time to bring values do not count.
	newestBlank int64
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
		s.entities = append(s.entities[:0], r.gpu.device)
		entities = s.entities
	}

	fields := s.fields[w.level]
	if w.level == LevelGPU && r.gpu.ratiosFromInstances {
		fields = fields[s.firstRate:]
	} else {
		r.mature = r.mature || w.createdAt < r.oldest
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
	w.read++
	if v.Status == statusNotWatched {
		w.notWatched++
	}

	if v.Status != 0 || v.Micros <= w.createdAt || v.Micros < r.oldest {
		return
	}

	a := r.activityOf(v.Entity)
	if a == nil {
		return
	}

	x, known, invalid := v.number()
	if invalid {
		r.result.Invalid++
	}

	if !known {
		// While a watch is new, its blanks say nothing of a pause.
		if v.isBlank() && ratioField(a, v.Field) != nil && w.createdAt < r.oldest {
			r.newestBlank = max(r.newestBlank, v.Micros)
		}

		return
	}

	if field := ratioField(a, v.Field); field != nil {
		*field = gpu.Some(x)
		r.hasRatio = true
	} else if field := rateField(&r.result.Rates, v.Field); field != nil && v.Entity.Level == LevelGPU {
		*field = gpu.Some(x)
	} else {
		return
	}

	r.newest = max(r.newest, v.Micros)
}

// activityOf returns where the values of an entity belong; nil if it is not of this GPU.
func (r *reading) activityOf(e Entity) *gpu.Activity {
	p := r.gpu
	if e.Level == LevelGPU {
		if e == p.device {
			return &r.result.GPU
		}

		return nil
	}

	for range p.nodes {
		if r.lastNode >= len(p.nodes) {
			r.lastNode = 0
		}

		if p.nodes[r.lastNode].entity == e {
			return &p.activities[r.lastNode]
		}

		r.lastNode++
	}

	return nil
}

// finish stores what was read of the instances.
func (r *reading) finish() {
	if r.newest > 0 {
		r.result.Time = time.UnixMicro(r.newest)
	}

	p := r.gpu
	if p.watches[LevelInstance] != nil {
		r.result.Instances = make(map[gpu.InstanceID]gpu.Activity, len(p.byLevel[LevelInstance]))
	}

	if r.result.Instances != nil || p.watches[LevelCompute] != nil {
		r.result.ComputeInstances = make(
			map[[2]uint32]gpu.Activity,
			len(p.nodes)-len(p.byLevel[LevelInstance]),
		)
	}

	for i, n := range p.nodes {
		a := p.activities[i]

		// GPU instances come first, so the one that it fills is stored. It has the same values, except
		// those of the memory, which no compute instance has.
		if n.fillsInstance {
			a = r.result.Instances[gpu.InstanceID(n.instance)]
			a.DRAM = gpu.None[float64]()
		}

		switch {
		case a == gpu.Activity{}:
		case n.entity.Level == LevelInstance:
			r.result.Instances[gpu.InstanceID(n.instance)] = a
		case n.entity.Level == LevelCompute:
			r.result.ComputeInstances[[2]uint32{n.instance, n.compute}] = a
		}
	}
}

// ratioField returns where a field belongs; nil if it is no ratio.
func ratioField(a *gpu.Activity, field uint16) *gpu.Opt[float64] {
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

// rateField returns where a field of traffic belongs; nil if it is none.
func rateField(r *gpu.LinkRates, field uint16) *gpu.Opt[float64] {
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
