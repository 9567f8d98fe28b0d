// Package dcgmsource profiles GPUs, GPU instances and compute instances by DCGM. It is the only
// importer of go-dcgm, behind the interfaces of this file: what we ask a host engine for, in plain
// types.
package dcgmsource

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Level is what kind of device an Entity is.
type Level uint8

// The levels, from the GPU down.
const (
	LevelGPU Level = iota
	LevelInstance
	LevelCompute
	levels = int(LevelCompute) + 1
)

// String names the level in names of groups and in errors.
func (l Level) String() string { return [levels]string{"gpu", "gi", "ci"}[l] }

// Entity is a device by DCGM's own number, which is neither NVML's index nor an instance id.
type Entity struct {
	Level Level
	ID    uint32
}

// MIGEntity is an instance in DCGM's hierarchy: DCGM's number and NVML's ids. Only a compute
// instance has Compute. Slices are its profile's compute slices, 0 if the engine does not report
// them.
type MIGEntity struct {
	Entity            Entity
	GPU               gpu.UUID
	Instance, Compute uint32
	Slices            int
}

// GPUEntity is a physical GPU in DCGM.
type GPUEntity struct {
	ID   uint32
	UUID gpu.UUID
}

// Group is the handle of a group of entities, valid for one Session.
type Group uintptr

// FieldGroup is the handle of a set of fields, valid for one Session.
type FieldGroup uintptr

// The types of a Value (DCGM_FT_*) that is a number.
const (
	TypeDouble byte = 'd'
	TypeInt64  byte = 'i'
)

// Value is the latest value of one field of one entity.
type Value struct {
	Entity Entity
	Field  uint16
	Type   byte
	Status int   // DCGM_ST_*; a blank may have 0, too
	Micros int64 // when the engine measured it, in microseconds since 1970 by the engine's clock
	Double float64
	Int64  int64
}

// Connector connects to a DCGM host engine. (A call of libdcgm before a successful dcgmInit ends
// the process.)
type Connector interface {
	Connect() (Session, error)
}

// Session is a connection to a host engine. Its errors wrap the sentinels of this package. It is
// not safe for concurrent use, and no method may be called after Close.
type Session interface {
	Devices() ([]GPUEntity, error)
	// Hierarchy appends the instances of all GPUs to a list, and returns it.
	Hierarchy(to []MIGEntity) ([]MIGEntity, error)
	CreateFieldGroup(name string, fields []uint16) (FieldGroup, error)
	DestroyFieldGroup(f FieldGroup) error
	CreateGroup(name string) (Group, error)
	AddToGroup(g Group, e Entity) error
	DestroyGroup(g Group) error
	Watch(g Group, f FieldGroup, every time.Duration) error
	Unwatch(g Group, f FieldGroup) error
	// Latest appends the latest values of the fields of the entities, which are all of one level,
	// to a list and returns it. It reads at most maxValues.
	Latest(to []Value, entities []Entity, fields []uint16) ([]Value, error)
	// Close disconnects. The engine drops what was created in the Session.
	Close() error
}

// maxValues is how many values we read at once. go-dcgm allocates 4 KiB for each, in a pool that
// keeps up to that many.
const maxValues = 256

// The fields by their numbers (DCGM_FI_PROF_*), which stay the same when names change.
const (
	fieldGraphicsEngine uint16 = 1001 + iota
	fieldSM
	fieldOccupancy
	fieldTensor
	fieldDRAM
	fieldFP64
	fieldFP32
	fieldFP16
	fieldPCIeTransmit
	fieldPCIeReceive
	fieldNVLinkTransmit
	fieldNVLinkReceive
)

// fieldsOf lists the fields that entities of a level have. Others would come as blanks, or with the
// values of the parent.
func fieldsOf(l Level) []uint16 {
	ratios := []uint16{
		fieldGraphicsEngine,
		fieldSM,
		fieldOccupancy,
		fieldTensor,
		fieldFP64,
		fieldFP32,
		fieldFP16,
	}

	switch l {
	case LevelGPU:
		return append(
			ratios,
			fieldDRAM,
			fieldPCIeTransmit,
			fieldPCIeReceive,
			fieldNVLinkTransmit,
			fieldNVLinkReceive,
		)
	case LevelInstance:
		return append(ratios, fieldDRAM)
	default:
		return ratios
	}
}
