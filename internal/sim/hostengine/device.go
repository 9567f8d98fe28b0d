package hostengine

import (
	"fmt"
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

const mebi = 1 << 20

// gpuOf returns the index of an entity's GPU and, if the entity is an instance, its member of the
// hierarchy.
func (e *Engine) gpuOf(entity Entity) (index int, member *Member, ok bool) {
	if entity.Level == GPU {
		return int(entity.ID), nil, int(entity.ID) < e.node.Count()
	}

	m, ok := e.member(entity)

	return m.GPU, &m, ok
}

// Device reads the state of a GPU.
func (s *Session) Device(index int) (sim.GPUState, error) {
	if err := s.beginCall(); err != nil {
		return sim.GPUState{}, err
	}

	e := s.engine
	defer e.mu.Unlock()

	if index < 0 || index >= len(e.trees) {
		return sim.GPUState{}, BadParam
	}

	e.followAll()

	state, err := e.node.Read(index, gpu.ReadingDevice)
	if err != nil {
		return sim.GPUState{}, NVMLError
	}

	return state, nil
}

// readDevice reads a field of the node or of a GPU. For an instance DCGM answers with the value of
// its GPU, without saying so, except for name and memory.
func (e *Engine) readDevice(v *Value) {
	f, known := e.meta[v.Field]
	if !known {
		v.Status = UnknownField
		return
	}

	v.Micros = e.node.Now().UnixMicro()
	if f.Level == NoEntity {
		e.fillNode(v)
		return
	}

	index, member, ok := e.gpuOf(v.Entity)
	if !ok {
		v.Status = NoData
		v.Micros = 0

		return
	}

	s, err := e.node.Read(index, gpu.ReadingDevice)
	if err != nil {
		v.Status = NoData
		v.Micros = 0

		return
	}

	v.Micros = s.Time.UnixMicro()
	v.setBlank(notSupported) // remains if we don't simulate the field

	if member == nil || !v.fillInstance(&s, member) {
		v.fillDevice(&s)
	}
}

func (v *Value) setInt(n uint64) { v.Int = int64(n) }

func (v *Value) setFlag(on bool) {
	v.Int = 0
	if on {
		v.Int = 1
	}
}

// BusID returns a GPU's PCI bus id as DCGM writes it.
func BusID(p sim.PCI) string { return fmt.Sprintf("%08X:%02X:%02X.0", p.Domain, p.Bus, p.Device) }

// Brand is the brand of all simulated GPUs.
const Brand = "NVIDIA"

func (e *Engine) fillNode(v *Value) {
	node := &e.node.Scenario().Node

	switch v.Field {
	case 1:
		v.Text = node.Driver
	case 2:
		v.Text = fmt.Sprintf("%d.%s", node.CUDAVersion()/1000, node.Driver)
	case 4:
		v.setInt(uint64(e.node.Count()))
	case 5:
		v.setInt(uint64(node.CUDAVersion()))
	}
}

// fillDevice sets v to a GPU's value of the field, if we simulate the field. Here and below, numbers
// are the field ids of dcgm_fields.h; fields.txt has their names.
func (v *Value) fillDevice(s *sim.GPUState) {
	switch {
	case v.Field < 100:
		v.fillIdentity(s)
	case v.Field < 200:
		v.fillClocks(s)
	case v.Field < 300:
		v.fillUsage(s)
	case v.Field <= 313:
		v.fillECC(s)
	case v.Field <= 396:
		v.fillRemapped(s)
	case v.Field <= 439: // NVLink errors, which we don't simulate
		if s.NVLinks > 0 {
			v.setInt(0)
		}

	case v.Field == 500, v.Field == 526: // virtualization mode and license: none
		v.setInt(0)
	}
}

func (v *Value) fillIdentity(s *sim.GPUState) {
	switch v.Field {
	case 50:
		v.Text = s.Name
	case 51:
		v.Text = Brand
	case 52:
		v.setInt(uint64(s.Index))
	case 53:
		v.Text = s.Serial
	case 54:
		v.Text = string(s.UUID)
	case 55:
		v.setInt(uint64(s.Minor))
	case 57:
		v.Text = BusID(s.PCI)
	case 58:
		v.setInt(uint64(s.PCI.DeviceID))
	case 59:
		v.setInt(uint64(s.PCI.Subsystem))
	case 63:
		v.setInt(uint64(s.Capability[0])<<16 | uint64(s.Capability[1]))
	case 65: // 2: exclusive to a process
		v.setInt(0)

		if s.ExclusiveProcess {
			v.setInt(2)
		}
	case 66:
		v.setFlag(true)
	case 67:
		v.setFlag(s.MIGEnabled)
	case 69:
		v.setInt(uint64(s.MaxMIGDevices))
	case 85:
		v.Text = s.VBIOS
	}
}

func (v *Value) fillClocks(s *sim.GPUState) {
	switch v.Field {
	case 100:
		v.setInt(uint64(s.SMMHz))
	case 101, 114:
		v.setInt(uint64(s.MemoryMHz))
	case 102:
		v.setInt(uint64(s.VideoMHz))
	case 112:
		v.setInt(uint64(s.ClockEvents))
	case 113:
		v.setInt(uint64(s.MaxSMMHz))

	case 140:
		if t, ok := s.MemoryCelsius.Get(); ok {
			v.setInt(uint64(t))
		}
	case 150:
		v.setInt(uint64(s.Celsius))

	case 155:
		if watts, ok := s.ReportedWatts.Get(); ok {
			v.Float = watts
		}
	case 156:
		v.setInt(uint64(math.Round(s.Joules * 1000)))
	case 160, 162, 163, 164:
		v.Float = s.LimitWatts

	case 190:
		v.setInt(uint64(s.PerformanceState))
	case 191:
		if len(s.Fans) > 0 {
			v.setInt(uint64(s.Fans[0]))
		}
	}
}

func (v *Value) fillUsage(s *sim.GPUState) {
	utilization, hasUtilization := s.Utilization.Get()
	media, hasMedia := s.Media.Get()

	switch {
	case v.Field == 202:
		v.setInt(0)
	case v.Field == 203 && hasUtilization:
		v.setInt(uint64(utilization.GPU))
	case v.Field == 204 && hasUtilization:
		v.setInt(uint64(utilization.Memory))
	case v.Field == 206 && hasMedia:
		v.setInt(uint64(media[sim.MediaEncoder]))
	case v.Field == 207 && hasMedia:
		v.setInt(uint64(media[sim.MediaDecoder]))
	case v.Field == 235:
		v.setInt(uint64(s.PCI.MaxGeneration))
	case v.Field == 237:
		v.setInt(uint64(s.PCI.Generation))
	case v.Field == 236, v.Field == 238:
		v.setInt(uint64(s.PCI.Width))
	case v.Field == fieldPowerViolation: // in ns
		v.setInt(uint64(s.PowerViolation))
	case v.Field == fieldThermalViolation:
		v.setInt(uint64(s.ThermalViolation))
	case v.Field >= 250:
		v.fillMemory(s.MemoryTotal, s.MemoryUsed, s.MemoryReserved)
	}
}

// fillMemory sets v to a framebuffer field in MiB, or to the used ratio; its arguments are in
// bytes.
func (v *Value) fillMemory(total, used, reserved uint64) {
	switch v.Field {
	case 250:
		v.setInt(total / mebi)
	case 251:
		v.setInt((total - used - reserved) / mebi)
	case 252:
		v.setInt(used / mebi)
	case 253:
		v.setInt(reserved / mebi)
	case 254:
		v.Float = float64(used) / float64(total-reserved)
	}
}

func (v *Value) fillECC(s *sim.GPUState) {
	switch v.Field {
	case 300, 301:
		v.setFlag(true)
		return
	case 310, 311:
		if !s.HasVolatileECC() {
			return
		}
	}

	v.setInt([...]uint64{
		s.ECC.CorrectedVolatile, s.ECC.UncorrectedVolatile, s.ECC.CorrectedAggregate, s.ECC.UncorrectedAggregate,
	}[v.Field-310])
}

func (v *Value) fillRemapped(s *sim.GPUState) {
	r, ok := s.Remapped.Get()
	if !ok {
		return
	}

	switch v.Field {
	case 393:
		v.setInt(r.Uncorrectable)
	case 394:
		v.setInt(r.Correctable)
	case 395:
		v.setFlag(r.Failure)
	case 396:
		v.setFlag(r.Pending)
	}
}

// fillInstance sets v if instances have their own value of the field, and reports whether they do:
// they have a name and memory. DCGM reads memory through the handle of a compute instance, so a GPU
// instance without one has a blank. No memory is reserved (seen on DCGM 4.5.3).
func (v *Value) fillInstance(s *sim.GPUState, member *Member) bool {
	isName := v.Field == 50
	if !isName && (v.Field < 250 || v.Field > 254) {
		return false
	}

	v.setBlank(noValue)

	i, ok := s.Instance(member.Instance)
	if !ok {
		return true
	}

	if !isName {
		if len(i.ComputeInstances) > 0 {
			v.fillMemory(i.Profile.MemoryBytes, i.MemoryUsed, 0)
		}

		return true
	}

	if member.Entity.Level != ComputeInstance {
		v.Text = i.Profile.Name
	} else if c, ok := i.Compute(member.Compute); ok {
		v.Text = c.Profile
	}

	return true
}

const (
	fieldXID              = 230
	fieldPowerViolation   = 240
	fieldThermalViolation = 241
	fieldLinkTraffic      = 449 // sent and received, over all links, in MB/s
)

// readXID reads the last XID since the field was first watched. Before the first XID the status is
// NoData, because DCGM gets XIDs from events and takes no samples (NVIDIA/DCGM#141,
// NVIDIA/dcgm-exporter#646 and #700; exporters that ignored the status served 0). DCGM reports an XID
// of a GPU instance for that instance, not for its GPU (seen on 4.5.3).
func (e *Engine) readXID(v *Value) {
	v.Status = NoData

	index, member, ok := e.gpuOf(v.Entity)
	if !ok {
		return
	}

	since := e.watchOf(v.Entity, fieldXID).since
	for _, event := range e.xids(index, member, since.UnixMicro()) {
		v.Status = OK
		v.Micros = event.Micros
		v.Int = event.Int
	}
}

// xids lists the XIDs of a GPU, or of an instance if member is not nil, from a time on.
func (e *Engine) xids(index int, member *Member, sinceMicros int64) []Value {
	entity := Entity{GPU, uint32(index)}
	instance := gpu.None[gpu.InstanceID]()

	if member != nil {
		entity = member.Entity
		instance = gpu.Some(member.Instance)
	}

	var list []Value

	events, _ := e.node.History(index, 0)
	for _, event := range events {
		if event.Kind != gpu.EventXID || event.Time.UnixMicro() < sinceMicros ||
			event.Instance != instance ||
			entity.Level == ComputeInstance {
			continue
		}

		list = append(list, Value{Entity: entity, Field: fieldXID, Type: 'i', Int: int64(event.XID),
			Micros: event.Time.UnixMicro()})
	}

	return list
}

// readLinkTraffic reads the mean NVLink traffic of the last interval: KiB/s divided by 1000, which
// DCGM calls MB/s (DcgmCacheManager.cpp). It is 0 before the first interval has passed. A GPU without
// links has no value.
func (e *Engine) readLinkTraffic(v *Value) {
	index, _, ok := e.gpuOf(v.Entity)

	state, err := e.node.Read(index, gpu.ReadingDevice)
	if !ok || err != nil || state.NVLinks == 0 {
		v.Status = NoData
		return
	}

	v.setInt(0)
	v.Micros = state.Time.UnixMicro()

	if s := e.samples[Entity{GPU, uint32(index)}]; s != nil && s.taken > 1 {
		received, _ := sim.GPM(s.from, s.last, 60) // NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC
		sent, _ := sim.GPM(s.from, s.last, 61)     // and TX, both in MiB/s

		v.Micros = s.at.UnixMicro()
		v.setBlank(noValue)

		if total := received + sent; !math.IsNaN(total) {
			v.setInt(uint64(total * 1024 / 1000))
		}
	}
}
