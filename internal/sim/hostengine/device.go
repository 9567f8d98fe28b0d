package hostengine

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// The fields of a device beside profiling (dcgm_fields.h).
const (
	fieldUUID        = 54
	fieldAffinity0   = 70 // to 73: which processors are near
	fieldAffinity3   = 73
	fieldSMClock     = 100
	fieldMemoryClock = 101
	fieldMemoryTemp  = 140
	fieldGPUTemp     = 150
	fieldPower       = 155
	fieldEnergy      = 156
	fieldReplays     = 202
	fieldGPUUtil     = 203
	fieldCopyUtil    = 204
	fieldEncoderUtil = 206
	fieldDecoderUtil = 207
	fieldXID         = 230
	fieldLinkMaxGen  = 235
	fieldLinkMaxWide = 236
	fieldFBTotal     = 250
	fieldFBFree      = 251
	fieldFBUsed      = 252
	fieldFBReserved  = 253
	fieldECC         = 310 // single, double bit since the driver was loaded; single, double bit ever
	fieldECCLast     = 313
	fieldRemapped    = 393 // uncorrectable, correctable, failure, pending
	fieldRemapLast   = 396
)

func deviceField(field uint16) bool {
	switch field {
	case fieldUUID, fieldSMClock, fieldMemoryClock, fieldMemoryTemp, fieldGPUTemp, fieldPower, fieldEnergy, fieldGPUUtil,
		fieldReplays, fieldEncoderUtil, fieldDecoderUtil, fieldXID, fieldLinkMaxGen, fieldLinkMaxWide,
		fieldCopyUtil, fieldFBTotal, fieldFBFree, fieldFBUsed, fieldFBReserved:
		return true
	}
	return field >= fieldAffinity0 && field <= fieldAffinity3 || field >= fieldECC && field <= fieldECCLast ||
		field >= fieldRemapped && field <= fieldRemapLast
}

// readDevice reads a field of the GPU. An instance silently gets its GPU's, but for the memory, which is its own.
func (e *Engine) readDevice(v *Value) {
	index := int(v.Entity.ID)
	var of *Member
	if v.Entity.Level != GPU {
		m, ok := e.member(v.Entity)
		if !ok {
			v.Status = NoData
			return
		}
		index, of = m.GPU, &m
	}
	if !deviceField(v.Field) {
		v.Status = UnknownField
		return
	}
	s, err := e.node.Read(index, gpu.ReadingDevice)
	if err != nil {
		v.Status = NoData
		return
	}
	v.Micros = s.Time.UnixMicro()
	fillDevice(v, &s)
	if of != nil {
		fillInstance(v, &s, of)
	}
}

func fillDevice(v *Value, s *sim.State) {
	whole := func(n uint64) { v.Type, v.Int, v.Float = 'i', int64(n), 0 }
	if v.Field >= fieldECC {
		whole(errorCount(v.Field, s))
		return
	}
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
	case fieldLinkMaxGen:
		whole(uint64(s.PCI.MaxGeneration))
	case fieldLinkMaxWide:
		whole(uint64(s.PCI.Width))
	case fieldXID: // none has happened that this engine has seen; it gets no events
		whole(IntBlank)
	default: // no replays, no video engines in use, no processors to be near: not simulated
		whole(IntNotSupported)
	}
}

// errorCount is one of the error counts, or a blank.
func errorCount(field uint16, s *sim.State) uint64 {
	if field <= fieldECCLast {
		return [...]uint64{
			s.ECC.CorrectedVolatile, s.ECC.UncorrectedVolatile, s.ECC.CorrectedAggregate, s.ECC.UncorrectedAggregate,
		}[field-fieldECC]
	}
	r, ok := s.Remapped.Get()
	if !ok {
		return IntNotSupported
	}
	flag := map[bool]uint64{true: 1}
	return [...]uint64{r.Uncorrectable, r.Correctable, flag[r.Failure], flag[r.Pending]}[field-fieldRemapped]
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

// Device reads what an engine tells of a GPU.
func (s *Session) Device(index int) (sim.State, error) {
	if err := s.enter(); err != nil {
		return sim.State{}, err
	}
	e := s.engine
	defer e.mu.Unlock()
	if index < 0 || index >= len(e.trees) {
		return sim.State{}, BadParam
	}
	e.followAll()
	state, err := e.node.Read(index, gpu.ReadingDevice)
	if err != nil {
		return sim.State{}, NVMLError
	}
	return state, nil
}
