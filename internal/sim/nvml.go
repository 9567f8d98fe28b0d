package sim

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// This file has the answers that both simulated NVML libraries give: the one in Go (simnvml) and the
// one in C (cmd/nvml-sim). Numbers are those of nvml.h.

// ReturnCode returns the nvmlReturn_t for an error of the node.
func ReturnCode(err error) int32 {
	const success, unknown = 0, 999
	if err == nil {
		return success
	}

	for _, known := range []struct {
		err  error
		code int32
	}{
		{ErrClosed, 1}, // NVML_ERROR_UNINITIALIZED
		{gpu.ErrInvalidArgument, 2},
		{gpu.ErrNotSupported, 3},
		{gpu.ErrNoPermission, 4},
		{gpu.ErrNotFound, 6},
		{gpu.ErrNoDriver, 9},
		{gpu.ErrTimeout, 10},
		{gpu.ErrLost, 15},
		{gpu.ErrResetRequired, 16},
		{gpu.ErrVersionMismatch, 18}, // NVML_ERROR_LIB_RM_VERSION_MISMATCH
		{gpu.ErrInUse, 19},
		{gpu.ErrInsufficientResources, 23},
	} {
		if errors.Is(err, known.err) {
			return known.code
		}
	}

	return unknown
}

// Milli returns a value in thousandths of its unit: NVML has milliwatts and millijoules.
func Milli(value float64) uint64 { return uint64(math.Round(value * 1000)) }

// LowestLimit returns the lowest power limit in watts, about a quarter of the highest on most GPUs.
func (s *GPUState) LowestLimit() float64 { return s.LimitWatts / 4 }

// Threshold returns a temperature threshold in Celsius by its nvmlTemperatureThresholds_t. GPUs from
// Ada on do not support it: see Margin.
func (s *GPUState) Threshold(which uint32) (uint32, error) {
	const count = 8 // NVML_TEMPERATURE_THRESHOLD_COUNT

	celsius, ok := s.thresholds()[which]
	switch {
	case which >= count:
		return 0, gpu.ErrInvalidArgument
	case !ok || s.Margin().Present():
		return 0, gpu.ErrNotSupported
	}

	return celsius, nil
}

const (
	thresholdShutdown uint32 = iota
	thresholdSlowdown
	thresholdMemoryMax
	thresholdGPUMax
)

func (s *GPUState) thresholds() map[uint32]uint32 {
	t := s.Thresholds()

	all := map[uint32]uint32{
		thresholdShutdown: t.Shutdown,
		thresholdSlowdown: t.Slowdown,
		thresholdGPUMax:   t.GPUMax,
	}
	if memory, ok := t.MemoryMax.Get(); ok {
		all[thresholdMemoryMax] = memory
	}

	return all
}

// Clock returns the present and the highest frequency of an nvmlClockType_t, in MHz.
func (s *GPUState) Clock(clock uint32) (now, highest uint32, err error) {
	switch clock {
	case 0, 1: // graphics, SM
		return s.SMMHz, s.MaxSMMHz, nil
	case 2: // memory
		return s.MemoryMHz, s.MemoryMHz, nil
	case 3: // video
		return s.VideoMHz, s.MaxSMMHz * 9 / 10, nil
	}

	return 0, 0, gpu.ErrInvalidArgument
}

// ECCErrors counts the errors of an nvmlMemoryErrorType_t and an nvmlEccCounterType_t.
func (s *GPUState) ECCErrors(severity, lifetime uint32) (uint64, error) {
	counts := [][]uint64{
		{s.ECC.CorrectedVolatile, s.ECC.CorrectedAggregate},
		{s.ECC.UncorrectedVolatile, s.ECC.UncorrectedAggregate},
	}

	switch {
	case lifetime == 0 && !s.HasVolatileECC():
		return 0, gpu.ErrNotSupported
	case severity > 1 || lifetime > 1:
		return 0, gpu.ErrInvalidArgument
	}

	return counts[severity][lifetime], nil
}

// ProfileByNumber finds a profile by its number in nvml.h (NVML_GPU_INSTANCE_PROFILE_*). Profiles
// that this GPU does not have are not supported.
func (s *GPUState) ProfileByNumber(number uint32) (gpu.Profile, error) {
	const count = 18 // NVML_GPU_INSTANCE_PROFILE_COUNT
	if number >= count {
		return gpu.Profile{}, gpu.ErrInvalidArgument
	}

	return s.findProfile(gpu.ErrNotSupported, func(f gpu.Profile) bool { return f.Enum == int(number) })
}

// ProfileByID finds a profile by the driver's id.
func (s *GPUState) ProfileByID(id uint32) (gpu.Profile, error) {
	return s.findProfile(gpu.ErrInvalidArgument, func(f gpu.Profile) bool { return f.ID == id })
}

// findProfile returns a profile as the driver reports it, or the error missing. On an A30 the driver
// reports too high a maximum of instances for at least one profile; that it is 2g is our guess.
func (s *GPUState) findProfile(missing error, wanted func(f gpu.Profile) bool) (gpu.Profile, error) {
	k := slices.IndexFunc(s.Profiles, wanted)
	if k < 0 {
		return gpu.Profile{}, missing
	}

	f := s.Profiles[k]

	const twoSlices = 1 // NVML_GPU_INSTANCE_PROFILE_2_SLICE
	if s.Name == "NVIDIA A30" && f.Enum == twoSlices {
		f.MaxInstances = 4
	}

	return f, nil
}

// ComputeProfile is a kind of compute instance that a GPU instance can have.
type ComputeProfile struct {
	ID         uint32 // also NVML's number for the profile
	Size       int    // compute slices
	Name       string // "1c.3g.20gb", or "3g.20gb" if it has all slices
	Placements []gpu.Placement
}

// ComputeProfile finds a compute profile of a GPU instance by its id. Profiles that are larger than
// the instance are not supported.
func (i *Instance) ComputeProfile(id uint32) (ComputeProfile, error) {
	const count = 9 // NVML_COMPUTE_INSTANCE_PROFILE_COUNT
	if id >= count {
		return ComputeProfile{}, gpu.ErrInvalidArgument
	}

	for size := 1; size <= i.Profile.ComputeSlices; size++ {
		known, ok := ComputeProfileID(size)

		placements := ComputePlacements(i.Profile.ComputeSlices, size)
		if !ok || known != id || placements == nil {
			continue
		}

		return ComputeProfile{id, size, computeName(i.Profile, size), placements}, nil
	}

	return ComputeProfile{}, gpu.ErrNotSupported
}

// ActivateMIGMode sets the MIG mode of a GPU. The call succeeds (nvml.h), but the mode stays pending
// while the GPU is in use and, on an Ampere GPU passed through to a virtual machine, until a reset:
// activation says why. A client can always set the mode that the GPU already has (unverified).
func (n *Node) ActivateMIGMode(index int, on bool) (activation, err error) {
	refused := n.SetMIGMode(index, on)
	if refused != nil && !errors.Is(refused, gpu.ErrInUse) {
		return nil, refused
	}

	s, err := n.Read(index, gpu.ReadingMIG)
	if err == nil && s.MIGEnabled != s.MIGPending {
		return cmp.Or(refused, gpu.ErrResetRequired), nil
	}

	return refused, err
}

// eventType is a type of event that the simulated driver sends, with its bit nvmlEventType*.
type eventType struct {
	kind gpu.EventKind
	bit  uint64
}

func eventTypes() []eventType {
	return []eventType{
		{gpu.EventXID, 0x8},
		{gpu.EventMIGChange, 0x100},
		{gpu.EventUnavailable, 0x4000},
		{gpu.EventRecoveryAction, 0x8000},
	}
}

// Type returns the nvmlEventType* of an event.
func (e *Event) Type() (bit uint64) {
	for _, known := range eventTypes() {
		if known.kind == e.Kind {
			bit = known.bit
		}
	}

	return bit
}

// EventTypes returns the bits nvmlEventType* for which clients can register: more than the simulated
// driver ever sends.
func (n *Node) EventTypes() uint64 {
	// Single and double bit errors, performance states, XIDs, clocks, MIG changes.
	const always = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100

	if n.ReportsHealth() {
		return always | 0x4000 | 0x8000
	}

	return always
}

// WatchTypes watches a GPU for all events whose bits are in types (nvmlEventType*). It watches for
// none and returns gpu.ErrNotSupported if one of them is not supported.
func (s *Subscription) WatchTypes(index int, types uint64) error {
	if types&^s.node.EventTypes() != 0 {
		return gpu.ErrNotSupported
	}

	for _, known := range eventTypes() {
		if types&known.bit == 0 {
			continue
		}

		if err := s.Watch(index, known.kind); err != nil {
			return err
		}
	}

	return nil
}
