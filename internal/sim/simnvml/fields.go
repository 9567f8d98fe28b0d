package simnvml

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// allLinks is the scope of a field that is a total over all NVLinks.
const allLinks = 0xFFFFFFFF

// field is how a field id is answered.
type field struct {
	reading gpu.Reading
	kind    nvml.ValueType
	value   func(s *sim.GPUState, scope uint32) (uint64, nvml.Return)
}

// GetFieldValues answers each field by itself, with a code of its own; the call succeeds if the GPU
// can be read.
func (d *device) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	s, err := d.node.Read(d.index, gpu.ReadingDevice)
	if err != nil {
		return returnOf(err)
	}

	for i := range values {
		v := &values[i]
		v.Timestamp = s.Time.UnixMicro()
		v.LatencyUsec = 0
		v.Value = [8]byte{}

		f, ok := d.field(v.FieldId)
		if !ok {
			v.NvmlReturn = uint32(unanswered(v.FieldId))
			continue
		}

		number, ret := read(
			d,
			f.reading,
			func(s *sim.GPUState) (uint64, nvml.Return) { return f.value(s, v.ScopeId) },
		)

		v.NvmlReturn = uint32(ret)
		v.ValueType = uint32(f.kind)

		if ret == nvml.SUCCESS {
			binary.NativeEndian.PutUint64(v.Value[:], number)
		}
	}

	return nvml.SUCCESS
}

// unanswered is the code of a field that has no value here: one that nvml.h defines is not
// supported.
func unanswered(id uint32) nvml.Return {
	if id == 0 || id >= nvml.FI_MAX || id == nvml.FI_DEV_GET_GPU_RECOVERY_ACTION {
		return nvml.ERROR_INVALID_ARGUMENT // the last one: of drivers that do not know it yet
	}

	return nvml.ERROR_NOT_SUPPORTED
}

// field finds out how to answer a field; ok is false for one that has no value.
func (d *device) field(id uint32) (field, bool) {
	switch id {
	case nvml.FI_DEV_MEMORY_TEMP:
		return field{gpu.ReadingTemperature, nvml.VALUE_TYPE_UNSIGNED_INT, memoryTemperature}, true
	case nvml.FI_DEV_PCIE_COUNT_TX_BYTES, nvml.FI_DEV_PCIE_COUNT_RX_BYTES:
		return field{gpu.ReadingPCIe, nvml.VALUE_TYPE_UNSIGNED_INT, pcieBytes}, true
	case nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
		return nvlinkKiB(1), true
	case nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_RX:
		return nvlinkKiB(rawOverhead), true
	case nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL:
		return field{gpu.ReadingNVLink, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvlinkErrors}, true
	case nvml.FI_DEV_NVLINK_LINK_COUNT:
		return field{gpu.ReadingNVLink, nvml.VALUE_TYPE_UNSIGNED_INT, linkCount}, true
	case nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES:
		return byLink(
			func(s *sim.GPUState) uint64 { return s.NVLinkBytes / uint64(s.NVLinks) },
		), true
	case nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS,
		nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
		nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
		nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS:
		return byLink(func(*sim.GPUState) uint64 { return 0 }), true
	case nvml.FI_DEV_REMAPPED_COR,
		nvml.FI_DEV_REMAPPED_UNC,
		nvml.FI_DEV_REMAPPED_PENDING,
		nvml.FI_DEV_REMAPPED_FAILURE:
		return remappedRows(id), true
	case nvml.FI_DEV_GET_GPU_RECOVERY_ACTION:
		return field{
			gpu.ReadingRecovery,
			nvml.VALUE_TYPE_UNSIGNED_INT,
			recoveryAction,
		}, d.branch() >= recoveryBranch
	}

	return field{}, false
}

// recoveryBranch is the first driver branch taken to know the recovery action (unverified).
const recoveryBranch = 565

// rawOverhead is what protocol adds to data on NVLink.
const rawOverhead = 1.125

func memoryTemperature(s *sim.GPUState, _ uint32) (uint64, nvml.Return) {
	celsius, ok := s.MemoryCelsius.Get()
	if !ok {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}

	return uint64(celsius), nvml.SUCCESS
}

// pcieBytes is a counter of 32 bits: it wraps.
func pcieBytes(s *sim.GPUState, _ uint32) (uint64, nvml.Return) {
	return uint64(uint32(s.PCIeBytes)), nvml.SUCCESS
}

// nvlinkKiB is a counter in KiB, of one link or of all.
func nvlinkKiB(overhead float64) field {
	return field{gpu.ReadingNVLink, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG,
		func(s *sim.GPUState, scope uint32) (uint64, nvml.Return) {
			if s.NVLinks == 0 || s.CountsByLink() {
				return 0, nvml.ERROR_NOT_SUPPORTED
			}

			kib := uint64(float64(s.NVLinkBytes)*overhead) >> 10
			switch {
			case scope == allLinks:
				return kib, nvml.SUCCESS
			case int64(scope) < int64(s.NVLinks):
				return kib / uint64(s.NVLinks), nvml.SUCCESS
			}

			return 0, nvml.ERROR_INVALID_ARGUMENT
		}}
}

// nvlinkErrors are none: the simulation has no faulty links.
func nvlinkErrors(s *sim.GPUState, _ uint32) (uint64, nvml.Return) {
	if s.NVLinks == 0 || s.CountsByLink() {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}

	return 0, nvml.SUCCESS
}

func linkCount(s *sim.GPUState, _ uint32) (uint64, nvml.Return) {
	if s.NVLinks == 0 {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}

	return uint64(s.NVLinks), nvml.SUCCESS
}

// byLink is a counter of the link that is the scope.
func byLink(value func(s *sim.GPUState) uint64) field {
	return field{gpu.ReadingNVLink, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG,
		func(s *sim.GPUState, scope uint32) (uint64, nvml.Return) {
			switch {
			case !s.CountsByLink():
				return 0, nvml.ERROR_NOT_SUPPORTED
			case int64(scope) >= int64(s.NVLinks):
				return 0, nvml.ERROR_INVALID_ARGUMENT
			}

			return value(s), nvml.SUCCESS
		}}
}

// remappedRows is a field that says the same as GetRemappedRows.
func remappedRows(id uint32) field {
	return field{
		gpu.ReadingRowRemap,
		nvml.VALUE_TYPE_UNSIGNED_INT,
		func(s *sim.GPUState, _ uint32) (uint64, nvml.Return) {
			rows, ok := s.Remapped.Get()
			if !ok {
				return 0, nvml.ERROR_NOT_SUPPORTED
			}

			flag := map[bool]uint64{true: 1}
			values := map[uint32]uint64{
				nvml.FI_DEV_REMAPPED_COR:     rows.Correctable,
				nvml.FI_DEV_REMAPPED_UNC:     rows.Uncorrectable,
				nvml.FI_DEV_REMAPPED_PENDING: flag[rows.Pending],
				nvml.FI_DEV_REMAPPED_FAILURE: flag[rows.Failure],
			}

			return values[id], nvml.SUCCESS
		},
	}
}

func recoveryAction(s *sim.GPUState, _ uint32) (uint64, nvml.Return) {
	actions := map[gpu.RecoveryAction]nvml.DeviceGpuRecoveryAction{
		gpu.RecoveryNone:          nvml.GPU_RECOVERY_ACTION_NONE,
		gpu.RecoveryReset:         nvml.GPU_RECOVERY_ACTION_GPU_RESET,
		gpu.RecoveryReboot:        nvml.GPU_RECOVERY_ACTION_NODE_REBOOT,
		gpu.RecoveryDrain:         nvml.GPU_RECOVERY_ACTION_DRAIN_P2P,
		gpu.RecoveryDrainAndReset: nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET,
	}

	return uint64(actions[s.Recovery]), nvml.SUCCESS
}
