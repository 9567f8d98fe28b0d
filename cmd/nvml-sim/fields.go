package main

// #include "abi.h"
import "C"

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

func fieldCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetFieldValues": notNull(onHandle(fieldValues, aGPU, aMIGDevice), 2),
	}
}

// allLinks is the scope that asks for the total over all NVLinks.
const allLinks = 0xFFFFFFFF

// recoveryBranch is the first driver branch that we take to know the recovery action (unverified).
const recoveryBranch = 565

// rawOverhead is how many bytes cross an NVLink for one byte of data, protocol included.
const rawOverhead = 1.125

// The types of the values of most fields (nvmlValueType_t).
const (
	unsignedInt  C.int = C.SIM_NVML_VALUE_TYPE_UNSIGNED_INT
	unsignedLong C.int = C.SIM_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
)

// field says how we answer a field id.
type field struct {
	reading gpu.Reading // the field fails when this reading does
	kind    C.int       // nvmlValueType_t
	value   func(s *sim.GPUState, scope uint32) (uint64, result)
}

// fieldValues answers nvmlDeviceGetFieldValues: the call succeeds if the GPU can be read, and each
// field has a return code of its own.
func fieldValues(l *library, h handle, a args) result {
	if int32(a.uint(1)) <= 0 {
		return invalidArgument
	}

	if h.kind == aMIGDevice {
		return notSupported
	}

	s, err := l.node.Read(h.gpu, gpu.ReadingDevice)
	if err != nil {
		return l.failed(err)
	}

	known := fields(l.node.Scenario().Node.DriverBranch())

	values := array[C.sim_nvmlFieldValue_t](a, 2, a.uint(1))
	for i := range values {
		v := &values[i]
		v.timestamp = C.longlong(s.Time.UnixMicro())
		v.latencyUsec = 0
		v.value = 0

		f, ok := known[uint32(v.fieldId)]
		if !ok {
			v.nvmlReturn = C.int(unanswered(uint32(v.fieldId)))
			continue
		}

		v.valueType = f.kind

		state, err := l.node.Read(h.gpu, f.reading)
		if err != nil {
			v.nvmlReturn = C.int(l.failed(err))
			continue
		}

		number, ret := f.value(&state, uint32(v.scopeId))
		v.nvmlReturn = C.int(ret)

		if ret == success {
			v.value = C.sim_u64(number) // a union: on a little-endian machine this sets 32-bit members too
		}
	}

	return success
}

// unanswered returns the code for a field that we have no value of: notSupported if nvml.h defines
// the field.
func unanswered(id uint32) result {
	if id == 0 || id >= C.SIM_NVML_FI_MAX || id == C.SIM_NVML_FI_DEV_GET_GPU_RECOVERY_ACTION {
		return invalidArgument // the recovery action is unknown to drivers before recoveryBranch
	}

	return notSupported
}

// fields returns the fields that have values in a driver branch.
func fields(branch int) map[uint32]field {
	known := map[uint32]field{
		C.SIM_NVML_FI_DEV_ECC_CURRENT: unscoped(gpu.ReadingECC, unsignedInt,
			func(*sim.GPUState) uint64 { return 1 }),
		C.SIM_NVML_FI_DEV_ECC_PENDING: unscoped(gpu.ReadingECC, unsignedInt,
			func(*sim.GPUState) uint64 { return 1 }),
		C.SIM_NVML_FI_DEV_MEMORY_TEMP: {
			gpu.ReadingTemperature,
			unsignedInt,
			memoryTemperature,
		},
		C.SIM_NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: unscoped(
			gpu.ReadingEnergy,
			unsignedLong,
			millijoules,
		),
		C.SIM_NVML_FI_DEV_PCIE_REPLAY_COUNTER: unscoped(
			gpu.ReadingPCIe,
			unsignedInt,
			none,
		),
		C.SIM_NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER: unscoped(
			gpu.ReadingPCIe,
			unsignedInt,
			none,
		),
		C.SIM_NVML_FI_DEV_PCIE_COUNT_TX_BYTES: unscoped(
			gpu.ReadingPCIe,
			unsignedInt,
			pcieBytes,
		),
		C.SIM_NVML_FI_DEV_PCIE_COUNT_RX_BYTES: unscoped(
			gpu.ReadingPCIe,
			unsignedInt,
			pcieBytes,
		),
		C.SIM_NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: nvlinkKiB(1),
		C.SIM_NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: nvlinkKiB(1),
		C.SIM_NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX:  nvlinkKiB(rawOverhead),
		C.SIM_NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX:  nvlinkKiB(rawOverhead),

		C.SIM_NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT: limitMargin(
			C.SIM_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
		),
		C.SIM_NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT: limitMargin(
			C.SIM_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
		),
		C.SIM_NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT: limitMargin(
			C.SIM_NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
		),
		C.SIM_NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT: limitMargin(
			C.SIM_NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
		),

		C.SIM_NVML_FI_DEV_PERF_POLICY_POWER: unscoped(gpu.ReadingClockEvents, unsignedLong,
			func(s *sim.GPUState) uint64 { return uint64(s.PowerViolation) }),
		C.SIM_NVML_FI_DEV_PERF_POLICY_THERMAL: unscoped(gpu.ReadingClockEvents, unsignedLong,
			func(s *sim.GPUState) uint64 { return uint64(s.ThermalViolation) }),

		C.SIM_NVML_FI_DEV_RESET_STATUS: unscoped(gpu.ReadingRecovery, unsignedInt,
			func(s *sim.GPUState) uint64 { return uint64(flag(s.Recovery == gpu.RecoveryReset)) }),
		C.SIM_NVML_FI_DEV_DRAIN_AND_RESET_STATUS: unscoped(
			gpu.ReadingRecovery,
			unsignedInt,
			func(s *sim.GPUState) uint64 { return uint64(flag(s.Recovery == gpu.RecoveryDrainAndReset)) },
		),
	}
	addLinkFields(known)
	addPowerFields(known)
	addRowFields(known)

	for _, id := range []uint32{
		C.SIM_NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, C.SIM_NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
		C.SIM_NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, C.SIM_NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
	} {
		known[id] = field{gpu.ReadingNVLink, unsignedLong, nvlinkErrors}
	}

	if branch >= recoveryBranch {
		known[C.SIM_NVML_FI_DEV_GET_GPU_RECOVERY_ACTION] = unscoped(
			gpu.ReadingRecovery,
			unsignedInt,
			recoveryAction,
		)
	}

	return known
}

// addLinkFields adds the number of links, and the counters that each link has from NVLink 5 on.
func addLinkFields(known map[uint32]field) {
	known[C.SIM_NVML_FI_DEV_NVLINK_LINK_COUNT] = field{gpu.ReadingNVLink, unsignedInt, linkCount}

	bytes := byLink(func(s *sim.GPUState) uint64 { return s.NVLinkBytes / uint64(s.NVLinks) })
	known[C.SIM_NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES] = bytes
	known[C.SIM_NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES] = bytes

	for _, id := range []uint32{
		C.SIM_NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, C.SIM_NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
		C.SIM_NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
		C.SIM_NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
	} {
		known[id] = byLink(none)
	}
}

// addPowerFields adds the fields 185 to 192. Their scope is the GPU: no GPU that we simulate has
// the scopes module and memory.
func addPowerFields(known map[uint32]field) {
	limit := func(s *sim.GPUState) uint64 { return uint64(milli(s.LimitWatts)) }
	for id, value := range map[uint32]func(s *sim.GPUState) uint64{
		C.SIM_NVML_FI_DEV_POWER_MIN_LIMIT: func(s *sim.GPUState) uint64 {
			return uint64(milli(lowestLimit(s)))
		},
		C.SIM_NVML_FI_DEV_POWER_MAX_LIMIT:       limit,
		C.SIM_NVML_FI_DEV_POWER_DEFAULT_LIMIT:   limit,
		C.SIM_NVML_FI_DEV_POWER_CURRENT_LIMIT:   limit,
		C.SIM_NVML_FI_DEV_POWER_REQUESTED_LIMIT: limit,
	} {
		known[id] = field{gpu.ReadingPower, unsignedInt, ofGPU(value)}
	}

	known[C.SIM_NVML_FI_DEV_ENERGY] = field{gpu.ReadingEnergy, unsignedLong, ofGPU(millijoules)}
	known[C.SIM_NVML_FI_DEV_POWER_INSTANT] = field{gpu.ReadingPower, unsignedInt, draw}
	known[C.SIM_NVML_FI_DEV_POWER_AVERAGE] = field{gpu.ReadingPower, unsignedInt,
		func(s *sim.GPUState, scope uint32) (uint64, result) {
			if s.Architecture == sim.Ampere { // we simulate GA100 only, which has no average (nvml.h)
				return 0, notSupported
			}

			return draw(s, scope)
		}}
}

// draw returns the power that the driver reports, in milliwatts.
func draw(s *sim.GPUState, scope uint32) (uint64, result) {
	watts, ok := s.ReportedWatts.Get()
	if !ok {
		return 0, notSupported
	}

	return ofGPU(func(*sim.GPUState) uint64 { return uint64(milli(watts)) })(s, scope)
}

// addRowFields adds the fields 142 to 145, which have what nvmlDeviceGetRemappedRows returns.
func addRowFields(known map[uint32]field) {
	for id, value := range map[uint32]func(rows gpu.RemappedRows) uint64{
		C.SIM_NVML_FI_DEV_REMAPPED_COR: func(rows gpu.RemappedRows) uint64 { return rows.Correctable },
		C.SIM_NVML_FI_DEV_REMAPPED_UNC: func(rows gpu.RemappedRows) uint64 { return rows.Uncorrectable },
		C.SIM_NVML_FI_DEV_REMAPPED_PENDING: func(rows gpu.RemappedRows) uint64 {
			return uint64(flag(rows.Pending))
		},
		C.SIM_NVML_FI_DEV_REMAPPED_FAILURE: func(rows gpu.RemappedRows) uint64 {
			return uint64(flag(rows.Failure))
		},
	} {
		known[id] = field{
			gpu.ReadingRowRemap,
			unsignedInt,
			func(s *sim.GPUState, _ uint32) (uint64, result) {
				rows, ok := s.Remapped.Get()
				if !ok {
					return 0, notSupported
				}

				return value(rows), success
			},
		}
	}
}

// ofGPU returns a field's value for the scope GPU; the other scopes are not supported.
func ofGPU(value func(s *sim.GPUState) uint64) func(s *sim.GPUState, scope uint32) (uint64, result) {
	return func(s *sim.GPUState, scope uint32) (uint64, result) {
		switch {
		case scope == C.SIM_NVML_POWER_SCOPE_GPU:
			return value(s), success
		case scope < C.SIM_NVML_POWER_SCOPE_COUNT:
			return 0, notSupported
		}

		return 0, invalidArgument
	}
}

// none is a counter of errors that never happen here.
func none(*sim.GPUState) uint64 { return 0 }

// pcieBytes is a counter of 32 bits: it wraps.
func pcieBytes(s *sim.GPUState) uint64 { return uint64(uint32(s.PCIeBytes)) }

// unscoped returns a field that every GPU has and that ignores the scope.
func unscoped(reading gpu.Reading, kind C.int, value func(s *sim.GPUState) uint64) field {
	return field{
		reading,
		kind,
		func(s *sim.GPUState, _ uint32) (uint64, result) { return value(s), success },
	}
}

func memoryTemperature(s *sim.GPUState, _ uint32) (uint64, result) {
	celsius, ok := s.MemoryCelsius.Get()
	if !ok {
		return 0, notSupported
	}

	return uint64(celsius), success
}

// nvlinkKiB returns a counter in KiB, whose scope is one link or allLinks. GPUs that count by link
// don't have it.
func nvlinkKiB(overhead float64) field {
	return field{
		gpu.ReadingNVLink,
		unsignedLong,
		func(s *sim.GPUState, scope uint32) (uint64, result) {
			if s.NVLinks == 0 || s.CountsByLink() {
				return 0, notSupported
			}

			kib := uint64(float64(s.NVLinkBytes)*overhead) >> 10

			switch {
			case scope == allLinks:
				return kib, success
			case int64(scope) < int64(s.NVLinks):
				return kib / uint64(s.NVLinks), success
			}

			return 0, invalidArgument
		},
	}
}

// nvlinkErrors counts no errors: the simulation has no faulty links.
func nvlinkErrors(s *sim.GPUState, _ uint32) (uint64, result) {
	if s.NVLinks == 0 || s.CountsByLink() {
		return 0, notSupported
	}

	return 0, success
}

func linkCount(s *sim.GPUState, _ uint32) (uint64, result) {
	if s.NVLinks == 0 {
		return 0, notSupported
	}

	return uint64(s.NVLinks), success
}

// byLink returns a counter whose scope is one link.
func byLink(value func(s *sim.GPUState) uint64) field {
	return field{
		gpu.ReadingNVLink,
		unsignedLong,
		func(s *sim.GPUState, scope uint32) (uint64, result) {
			switch {
			case !s.CountsByLink():
				return 0, notSupported
			case int64(scope) >= int64(s.NVLinks):
				return 0, invalidArgument
			}

			return value(s), success
		},
	}
}

func recoveryAction(s *sim.GPUState) uint64 {
	return map[gpu.RecoveryAction]uint64{
		gpu.RecoveryNone:          C.SIM_NVML_GPU_RECOVERY_ACTION_NONE,
		gpu.RecoveryReset:         C.SIM_NVML_GPU_RECOVERY_ACTION_GPU_RESET,
		gpu.RecoveryReboot:        C.SIM_NVML_GPU_RECOVERY_ACTION_NODE_REBOOT,
		gpu.RecoveryDrain:         C.SIM_NVML_GPU_RECOVERY_ACTION_DRAIN_P2P,
		gpu.RecoveryDrainAndReset: C.SIM_NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET,
	}[s.Recovery]
}
