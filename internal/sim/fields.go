package sim

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// Field is how a GPU answers a field of nvmlDeviceGetFieldValues.
type Field struct {
	Reading gpu.Reading // the field fails when this reading does
	Kind    ValueKind
	Value   FieldValue
}

// FieldValue returns the value of a field. For some fields the scope chooses a link or a part of the
// GPU; most ignore it.
type FieldValue func(s *GPUState, scope uint32) (uint64, error)

// ValueKind is nvmlValueType_t.
type ValueKind uint32

const (
	unsignedInt  ValueKind = 1
	unsignedLong ValueKind = 3 // NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 64 bits
	signedInt    ValueKind = 5
)

const (
	allLinks       = 0xFFFFFFFF // the scope that asks for the total over all NVLinks
	rawOverhead    = 1.125      // bytes on an NVLink, with the protocol's, per byte of data (our choice)
	recoveryField  = 230        // NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
	recoveryBranch = 565        // the first driver branch that has recoveryField (our guess)
)

// Field returns how the GPUs of this node answer a field, by its id (NVML_FI_*). Fields that nvml.h
// defines but we have no value for are not supported.
func (n *Node) Field(id uint32) (Field, error) {
	const count = 303 // NVML_FI_MAX

	for _, find := range []func(id uint32) (Field, bool){stateField, linkField, powerField} {
		if f, ok := find(id); ok {
			return f, nil
		}
	}

	switch {
	case id == recoveryField && n.scenario.Node.DriverBranch() >= recoveryBranch:
		return Field{gpu.ReadingRecovery, unsignedInt, unscoped(recoveryNumber)}, nil
	case id == 0 || id >= count || id == recoveryField:
		return Field{}, gpu.ErrInvalidArgument
	}

	return Field{}, gpu.ErrNotSupported
}

// stateField finds a field of a GPU's state. The comments have the names of nvml.h.
func stateField(id uint32) (f Field, ok bool) {
	switch id {
	case 1, 2: // ECC_CURRENT, ECC_PENDING
		f = Field{gpu.ReadingECC, unsignedInt, unscoped(func(*GPUState) uint64 { return 1 })}
	case 74: // PERF_POLICY_POWER
		f = Field{gpu.ReadingClockEvents, unsignedLong,
			unscoped(func(s *GPUState) uint64 { return uint64(s.PowerViolation) })}
	case 75: // PERF_POLICY_THERMAL
		f = Field{gpu.ReadingClockEvents, unsignedLong,
			unscoped(func(s *GPUState) uint64 { return uint64(s.ThermalViolation) })}
	case 82: // MEMORY_TEMP
		f = Field{gpu.ReadingTemperature, unsignedInt, memoryTemperature}
	case 94, 95: // PCIE_REPLAY_COUNTER, PCIE_REPLAY_ROLLOVER_COUNTER
		f = Field{gpu.ReadingPCIe, unsignedInt, unscoped(noErrors)}
	case 142, 143, 144, 145: // REMAPPED_COR, UNC, PENDING, FAILURE
		f = Field{gpu.ReadingRowRemap, unsignedInt, remappedRows(id - 142)}
	case 193: // TEMPERATURE_SHUTDOWN_TLIMIT
		f = Field{gpu.ReadingTemperature, signedInt, margin(thresholdShutdown)}
	case 194: // TEMPERATURE_SLOWDOWN_TLIMIT
		f = Field{gpu.ReadingTemperature, signedInt, margin(thresholdSlowdown)}
	case 195: // TEMPERATURE_MEM_MAX_TLIMIT
		f = Field{gpu.ReadingTemperature, signedInt, margin(thresholdMemoryMax)}
	case 196: // TEMPERATURE_GPU_MAX_TLIMIT
		f = Field{gpu.ReadingTemperature, signedInt, margin(thresholdGPUMax)}
	case 197, 198: // PCIE_COUNT_TX_BYTES, PCIE_COUNT_RX_BYTES: 32 bits, which wrap
		f = Field{gpu.ReadingPCIe, unsignedInt,
			unscoped(func(s *GPUState) uint64 { return uint64(uint32(s.PCIeBytes)) })}
	case 226: // RESET_STATUS
		f = Field{gpu.ReadingRecovery, unsignedInt, isRecovery(gpu.RecoveryReset)}
	case 227: // DRAIN_AND_RESET_STATUS
		f = Field{gpu.ReadingRecovery, unsignedInt, isRecovery(gpu.RecoveryDrainAndReset)}
	}

	return f, f.Value != nil
}

// linkField finds a field of the NVLinks: totals over the links or, from NVLink 5 on, values of each
// link.
func linkField(id uint32) (Field, bool) {
	f := Field{Reading: gpu.ReadingNVLink, Kind: unsignedLong}

	switch id {
	case 91: // NVLINK_LINK_COUNT
		f.Kind = unsignedInt
		f.Value = linkCount
	case 38, 45, 52, 59: // NVLINK_*_ERROR_COUNT_TOTAL: CRC_FLIT, CRC_DATA, REPLAY, RECOVERY
		f.Value = noLinkErrors
	case 138, 139: // NVLINK_THROUGHPUT_DATA_TX, RX
		f.Value = linkKiB(1)
	case 140, 141: // NVLINK_THROUGHPUT_RAW_TX, RX
		f.Value = linkKiB(rawOverhead)
	case 202, 204: // NVLINK_COUNT_XMIT_BYTES, RCV_BYTES
		f.Value = byLink(func(s *GPUState) uint64 { return s.NVLinkBytes / uint64(s.NVLinks) })
	case 208, 213, 214, 219: // NVLINK_COUNT_RCV_ERRORS, LINK_RECOVERY_*_EVENTS, EFFECTIVE_ERRORS
		f.Value = byLink(noErrors)
	}

	return f, f.Value != nil
}

// powerField finds a field of power or energy. POWER_* and ENERGY support only the scope GPU: no GPU
// that we simulate has the scopes module and memory.
func powerField(id uint32) (Field, bool) {
	f := Field{Reading: gpu.ReadingPower, Kind: unsignedInt}

	switch id {
	case 83: // TOTAL_ENERGY_CONSUMPTION
		f = Field{gpu.ReadingEnergy, unsignedLong, unscoped(millijoules)}
	case 185: // POWER_AVERAGE
		f.Value = averageDraw
	case 186: // POWER_INSTANT
		f.Value = draw
	case 187: // POWER_MIN_LIMIT
		f.Value = ofGPU(func(s *GPUState) uint64 { return Milli(s.LowestLimit()) })
	case 188, 189, 190, 192: // POWER_MAX_LIMIT, POWER_DEFAULT_LIMIT, POWER_CURRENT_LIMIT, POWER_REQUESTED_LIMIT
		f.Value = ofGPU(func(s *GPUState) uint64 { return Milli(s.LimitWatts) })
	case 191: // ENERGY
		f = Field{gpu.ReadingEnergy, unsignedLong, ofGPU(millijoules)}
	}

	return f, f.Value != nil
}

// noErrors counts errors that never happen here: the simulation has no faulty links.
func noErrors(*GPUState) uint64 { return 0 }

func millijoules(s *GPUState) uint64 { return Milli(s.Joules) }

// remappedRows returns one of the four results of nvmlDeviceGetRemappedRows, in their order there.
func remappedRows(result uint32) FieldValue {
	return func(s *GPUState, _ uint32) (uint64, error) {
		rows, ok := s.Remapped.Get()
		if !ok {
			return 0, gpu.ErrNotSupported
		}

		flags := map[bool]uint64{true: 1}
		results := []uint64{rows.Correctable, rows.Uncorrectable, flags[rows.Pending], flags[rows.Failure]}

		return results[result], nil
	}
}

func averageDraw(s *GPUState, scope uint32) (uint64, error) {
	if s.Architecture == Ampere { // we simulate GA100 only, which has no average (nvml.h)
		return 0, gpu.ErrNotSupported
	}

	return draw(s, scope)
}

// unscoped returns a value that every GPU has and that ignores the scope.
func unscoped(value func(s *GPUState) uint64) FieldValue {
	return func(s *GPUState, _ uint32) (uint64, error) { return value(s), nil }
}

// ofGPU returns a value for the scope GPU; the other scopes are not supported.
func ofGPU(value func(s *GPUState) uint64) FieldValue {
	const theGPU, scopes = 0, 4 // NVML_POWER_SCOPE_GPU and NVML_POWER_SCOPE_COUNT

	return func(s *GPUState, scope uint32) (uint64, error) {
		switch {
		case scope == theGPU:
			return value(s), nil
		case scope < scopes:
			return 0, gpu.ErrNotSupported
		}

		return 0, gpu.ErrInvalidArgument
	}
}

// draw returns the power that the driver reports, in milliwatts.
func draw(s *GPUState, scope uint32) (uint64, error) {
	watts, ok := s.ReportedWatts.Get()
	if !ok {
		return 0, gpu.ErrNotSupported
	}

	return ofGPU(func(*GPUState) uint64 { return Milli(watts) })(s, scope)
}

func memoryTemperature(s *GPUState, _ uint32) (uint64, error) {
	celsius, ok := s.MemoryCelsius.Get()
	if !ok {
		return 0, gpu.ErrNotSupported
	}

	return uint64(celsius), nil
}

// margin returns a threshold relative to GPUMax, the GPU's highest operating temperature; the
// memory's threshold is relative to the memory's own maximum. GPUs before Ada report only absolute
// degrees (nvmlDeviceGetTemperatureThreshold).
func margin(which uint32) FieldValue {
	return func(s *GPUState, _ uint32) (uint64, error) {
		all := s.thresholds()

		celsius, ok := all[which]
		switch {
		case !ok || s.Architecture == Ampere:
			return 0, gpu.ErrNotSupported
		case which == thresholdMemoryMax:
			return 0, nil
		}

		return uint64(all[thresholdGPUMax] - celsius), nil // wraps: clients read 32 bits, signed
	}
}

func isRecovery(action gpu.RecoveryAction) FieldValue {
	return unscoped(func(s *GPUState) uint64 {
		if s.Recovery == action {
			return 1
		}

		return 0
	})
}

// recoveryNumber returns nvmlDeviceGpuRecoveryAction_t.
func recoveryNumber(s *GPUState) uint64 {
	return map[gpu.RecoveryAction]uint64{
		gpu.RecoveryNone:          0,
		gpu.RecoveryReset:         1,
		gpu.RecoveryReboot:        2,
		gpu.RecoveryDrain:         3,
		gpu.RecoveryDrainAndReset: 4,
	}[s.Recovery]
}

func linkCount(s *GPUState, _ uint32) (uint64, error) {
	if s.NVLinks == 0 {
		return 0, gpu.ErrNotSupported
	}

	return uint64(s.NVLinks), nil
}

// linkKiB returns a counter in KiB of one link or of allLinks, as the scope says. GPUs that count by
// link do not have it.
func linkKiB(overhead float64) FieldValue {
	return func(s *GPUState, scope uint32) (uint64, error) {
		if s.NVLinks == 0 || s.CountsByLink() {
			return 0, gpu.ErrNotSupported
		}

		kib := uint64(float64(s.NVLinkBytes)*overhead) >> 10

		switch {
		case scope == allLinks:
			return kib, nil
		case int64(scope) < int64(s.NVLinks):
			return kib / uint64(s.NVLinks), nil
		}

		return 0, gpu.ErrInvalidArgument
	}
}

func noLinkErrors(s *GPUState, _ uint32) (uint64, error) {
	if s.NVLinks == 0 || s.CountsByLink() {
		return 0, gpu.ErrNotSupported
	}

	return 0, nil
}

// byLink returns a counter whose scope is one link.
func byLink(value func(s *GPUState) uint64) FieldValue {
	return func(s *GPUState, scope uint32) (uint64, error) {
		switch {
		case !s.CountsByLink():
			return 0, gpu.ErrNotSupported
		case int64(scope) >= int64(s.NVLinks):
			return 0, gpu.ErrInvalidArgument
		}

		return value(s), nil
	}
}
