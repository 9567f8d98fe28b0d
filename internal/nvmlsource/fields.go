package nvmlsource

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// allLinks is the scope of an NVLink field that is the sum over all links (nvml.h).
const allLinks = 0xFFFFFFFF

// field is one value that is read by its id, together with others in one call.
type field struct {
	id, scope uint32
	slow      bool
	reading   gpu.Reading
	name      string // nvml.h's, without NVML_FI_DEV_
	take      func(*gpu.Readings, *nvml.FieldValue)
	call      string
}

// fields lists what is read by id. The raw NVLink counters (140, 141) contain the data ones: they are never added.
func fields() []field {
	list := []field{
		{id: nvml.FI_DEV_MEMORY_TEMP, name: "MEMORY_TEMP", reading: gpu.ReadingTemperature,
			take: func(r *gpu.Readings, v *nvml.FieldValue) { r.MemoryCelsius = floatValue(v) }},
		{id: nvml.FI_DEV_PCIE_COUNT_TX_BYTES, name: "PCIE_COUNT_TX_BYTES", reading: gpu.ReadingPCIe,
			take: func(r *gpu.Readings, v *nvml.FieldValue) { r.PCIe.TransmitBytes = uintValue(v) }},
		{id: nvml.FI_DEV_PCIE_COUNT_RX_BYTES, name: "PCIE_COUNT_RX_BYTES", reading: gpu.ReadingPCIe,
			take: func(r *gpu.Readings, v *nvml.FieldValue) { r.PCIe.ReceiveBytes = uintValue(v) }},
		{id: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, name: "NVLINK_THROUGHPUT_DATA_TX", scope: allLinks,
			reading: gpu.ReadingNVLink,
			take:    func(r *gpu.Readings, v *nvml.FieldValue) { r.NVLink.TransmitBytes = kibibytes(v) }},
		{id: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, name: "NVLINK_THROUGHPUT_DATA_RX", scope: allLinks,
			reading: gpu.ReadingNVLink,
			take:    func(r *gpu.Readings, v *nvml.FieldValue) { r.NVLink.ReceiveBytes = kibibytes(v) }},
		linkErrors(nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "crc_flit"),
		linkErrors(nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, "crc_data"),
		linkErrors(nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "replay"),
		linkErrors(nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "recovery"),
		{id: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, name: "GET_GPU_RECOVERY_ACTION", slow: true, reading: gpu.ReadingRecovery,
			take: takeRecovery},
	}
	for i := range list {
		list[i].call = "nvmlDeviceGetFieldValues(" + list[i].name + ")"
	}
	return list
}

// linkErrors returns the field that counts a kind of NVLink errors.
func linkErrors(id uint32, kind string) field {
	return field{
		id: id, slow: true, reading: gpu.ReadingNVLink, name: "NVLINK_" + strings.ToUpper(kind) + "_ERROR_COUNT_TOTAL",
		take: func(r *gpu.Readings, v *nvml.FieldValue) {
			if count, ok := uintValue(v).Get(); ok {
				r.NVLink.Errors = append(r.NVLink.Errors, gpu.NVLinkErrors{Kind: kind, Count: count})
			}
		},
	}
}

// readFields reads the fields whose tier is due, in one call. Values and errors of slow fields go to slow and
// slowErrs. If the call as a whole fails, slow keeps the last values.
func (r *gpuRead) readFields(fast, slow *gpu.Readings, slowErrs *[]gpu.ReadError) {
	const call = "nvmlDeviceGetFieldValues"
	b := r.state
	b.values, b.chosen = b.values[:0], b.chosen[:0]
	for i := range b.fields {
		f := &b.fields[i]
		if !r.unsupported[f.call] && (r.slow || !f.slow) {
			b.values = append(b.values, nvml.FieldValue{FieldId: f.id, ScopeId: f.scope})
			b.chosen = append(b.chosen, f)
		}
	}
	if len(b.values) == 0 || r.fatal != nil || r.unsupported[call] {
		return
	}
	if err := r.queryFields(call); err != nil {
		last := &b.slow.readings
		slow.NVLink.Errors, slow.RecoveryAction = last.NVLink.Errors, last.RecoveryAction
		r.addFieldErrors(err, slowErrs)
		return
	}
	for i := range b.values {
		f, v := b.chosen[i], &b.values[i]
		ret := nvml.Return(int32(v.NvmlReturn))
		switch ret {
		case nvml.SUCCESS:
			if f.slow {
				f.take(slow, v)
			} else {
				f.take(fast, v)
			}
		case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_FUNCTION_NOT_FOUND:
			r.unsupported[f.call] = true // INVALID_ARGUMENT: a field id that the driver is too old for
		default:
			r.addFieldError(f, ret, slowErrs)
		}
	}
}

// queryFields makes the call for the chosen fields, unless its denial is cached.
func (r *gpuRead) queryFields(call string) error {
	denied := r.denied[call]
	if denied != nil && !r.slow {
		return denied
	}
	err := r.classify(call, gpu.ReadingPCIe, r.dev.GetFieldValues(r.state.values))
	for _, f := range r.state.chosen {
		if denied != nil && err == nil {
			delete(r.refused, f.reading)
			r.source.privilege.markRegained(f.reading)
		}
	}
	return err
}

// addFieldErrors adds an error for each reading whose fields have no value.
func (r *gpuRead) addFieldErrors(err error, slowErrs *[]gpu.ReadError) {
	lacking := map[gpu.Reading]bool{}
	for _, f := range r.state.chosen {
		if lacking[f.reading] {
			continue
		}
		lacking[f.reading] = true
		if errors.Is(err, gpu.ErrNoPermission) {
			r.source.privilege.markMissing(f.reading)
		}
		before := len(r.errs)
		r.addError(f.reading, err)
		if f.slow {
			*slowErrs = append(*slowErrs, r.errs[before:]...)
			r.errs = r.errs[:before]
		}
	}
}

func (r *gpuRead) addFieldError(f *field, ret nvml.Return, slowErrs *[]gpu.ReadError) {
	err := driverError(f.call, ret)
	switch {
	case losesDevice(err):
		r.fatal = err
	case f.slow:
		*slowErrs = append(*slowErrs, gpu.ReadError{Reading: f.reading, Err: err})
	default:
		r.addError(f.reading, err)
	}
}

func takeRecovery(r *gpu.Readings, v *nvml.FieldValue) {
	actions := [...]gpu.RecoveryAction{
		nvml.GPU_RECOVERY_ACTION_NONE: gpu.RecoveryNone, nvml.GPU_RECOVERY_ACTION_GPU_RESET: gpu.RecoveryReset,
		nvml.GPU_RECOVERY_ACTION_NODE_REBOOT: gpu.RecoveryReboot, nvml.GPU_RECOVERY_ACTION_DRAIN_P2P: gpu.RecoveryDrain,
		nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     gpu.RecoveryDrainAndReset,
		nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: gpu.RecoveryIMEXDomain,
	}
	if action, ok := uintValue(v).Get(); ok && action < uint64(len(actions)) {
		r.RecoveryAction = gpu.Some(actions[action])
	}
}

// floatValue decodes a field's value by its type. It is absent if the type is unknown or the value is not finite.
func floatValue(v *nvml.FieldValue) gpu.Opt[float64] {
	bits := binary.NativeEndian.Uint64(v.Value[:])
	switch nvml.ValueType(int32(v.ValueType)) {
	case nvml.VALUE_TYPE_DOUBLE:
		f := math.Float64frombits(bits)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return gpu.None[float64]()
		}
		return gpu.Some(f)
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return gpu.Some(float64(int64(bits)))
	case nvml.VALUE_TYPE_SIGNED_INT:
		return gpu.Some(float64(int32(binary.NativeEndian.Uint32(v.Value[:4]))))
	}
	u, ok := uintValue(v).Get()
	if !ok {
		return gpu.None[float64]()
	}
	return gpu.Some(float64(u))
}

// uintValue decodes a field's value as a count. It is absent if it is negative, not a number, or too large.
func uintValue(v *nvml.FieldValue) gpu.Opt[uint64] {
	bits := binary.NativeEndian.Uint64(v.Value[:])
	switch nvml.ValueType(int32(v.ValueType)) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return gpu.Some(uint64(binary.NativeEndian.Uint32(v.Value[:4])))
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG: // long has 64 bits where this driver runs
		return gpu.Some(bits)
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return gpu.Some(uint64(binary.NativeEndian.Uint16(v.Value[:2])))
	case nvml.VALUE_TYPE_DOUBLE, nvml.VALUE_TYPE_SIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_INT:
		if f, ok := floatValue(v).Get(); ok && f >= 0 && f < 1<<64 {
			return gpu.Some(uint64(f))
		}
	}
	return gpu.None[uint64]()
}

// kibibytes decodes a field in KiB, in bytes. It is absent if that overflows.
func kibibytes(v *nvml.FieldValue) gpu.Opt[uint64] {
	kib, ok := uintValue(v).Get()
	if !ok || kib > math.MaxUint64>>10 {
		return gpu.None[uint64]()
	}
	return gpu.Some(kib << 10)
}
