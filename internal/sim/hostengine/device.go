package hostengine

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// The fields of a device beside profiling (dcgm_fields.h).
const (
	fieldUUID        = 54
	fieldSMClock     = 100
	fieldMemoryClock = 101
	fieldMemoryTemp  = 140
	fieldGPUTemp     = 150
	fieldPower       = 155
	fieldEnergy      = 156
	fieldGPUUtil     = 203
	fieldCopyUtil    = 204
	fieldFBTotal     = 250
	fieldFBFree      = 251
	fieldFBUsed      = 252
	fieldFBReserved  = 253
)

func deviceField(field uint16) bool {
	switch field {
	case fieldUUID, fieldSMClock, fieldMemoryClock, fieldMemoryTemp, fieldGPUTemp, fieldPower, fieldEnergy, fieldGPUUtil,
		fieldCopyUtil, fieldFBTotal, fieldFBFree, fieldFBUsed, fieldFBReserved:
		return true
	}
	return false
}

// deviceValue is a field of the GPU. An instance silently gets its GPU's, but for the memory, which is its own.
func (e *Engine) deviceValue(v Value) Value {
	index := int(v.Entity.ID)
	var of *Member
	if v.Entity.Level != GPU {
		m, ok := e.member(v.Entity)
		if !ok {
			v.Status = NoData
			return v
		}
		index, of = m.GPU, &m
	}
	if !e.watched(v.Entity, v.Field) {
		v.Status = NotWatched
		return v
	}
	s, err := e.node.Read(index, gpu.ReadingDevice)
	if err != nil {
		v.Status = NoData
		return v
	}
	v.Micros = s.Time.UnixMicro()
	fillDevice(&v, &s)
	if of != nil {
		fillInstance(&v, &s, of)
	}
	return v
}

func fillDevice(v *Value, s *sim.State) {
	whole := func(n uint64) { v.Type, v.Int, v.Float = 'i', int64(n), 0 }
	const mebi = 1 << 20
	switch v.Field {
	case fieldUUID:
		v.Type, v.Text, v.Float = 's', string(s.UUID), 0
	case fieldSMClock:
		whole(uint64(s.SMMHz))
	case fieldMemoryClock:
		whole(uint64(s.MemoryMHz))
	case fieldGPUTemp:
		whole(uint64(s.Celsius))
	case fieldMemoryTemp:
		if t, ok := s.MemoryCelsius.Get(); ok {
			whole(uint64(t))
		} else {
			whole(IntNotSupported)
		}
	case fieldPower:
		v.Float = s.Watts
	case fieldEnergy:
		whole(uint64(math.Round(s.Joules * 1000)))
	case fieldGPUUtil, fieldCopyUtil:
		u, ok := s.Utilization.Get()
		switch {
		case !ok:
			whole(IntNotSupported)
		case v.Field == fieldGPUUtil:
			whole(uint64(u.GPU))
		default:
			whole(uint64(u.Memory))
		}
	case fieldFBTotal:
		whole(s.MemoryTotal / mebi)
	case fieldFBFree:
		whole((s.MemoryTotal - s.MemoryUsed - s.MemoryReserved) / mebi)
	case fieldFBUsed:
		whole(s.MemoryUsed / mebi)
	case fieldFBReserved:
		whole(s.MemoryReserved / mebi)
	}
}

func fillInstance(v *Value, s *sim.State, of *Member) {
	i, ok := s.Instance(of.Instance)
	if !ok {
		return
	}
	const mebi = 1 << 20
	switch v.Field {
	case fieldFBTotal:
		v.Int = int64(i.Profile.MemoryBytes / mebi)
	case fieldFBFree:
		v.Int = int64((i.Profile.MemoryBytes - i.MemoryUsed) / mebi)
	case fieldFBUsed:
		v.Int = int64(i.MemoryUsed / mebi)
	}
}
