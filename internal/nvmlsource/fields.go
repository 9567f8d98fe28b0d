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

// field is an NVML field: a value that is read by its id, together with others in one call.
type field struct {
	id, scope uint32
	slow      bool // it belongs to the slow tier
	reading   gpu.Reading
	name      string // nvml.h's, without NVML_FI_DEV_
	store     func(*gpu.Readings, *nvml.FieldValue)
	call      string // the name under which a refusal is cached
}

// fields lists the fields that we read; links keeps what they say of NVLink. We leave out the raw
// NVLink counters (140, 141), which include the data counters. Whether the driver counts by link we
// learn from its answer to NVLINK_COUNT_XMIT_BYTES, which has link 0 for its scope.
func fields(links *linkCounters) []field {
	list := []field{
		{id: nvml.FI_DEV_MEMORY_TEMP, name: "MEMORY_TEMP", reading: gpu.ReadingTemperature,
			store: func(r *gpu.Readings, v *nvml.FieldValue) { r.MemoryCelsius = floatValue(v) }},
		{
			id:      nvml.FI_DEV_PCIE_COUNT_TX_BYTES,
			name:    "PCIE_COUNT_TX_BYTES",
			reading: gpu.ReadingPCIe,
			store:   func(r *gpu.Readings, v *nvml.FieldValue) { r.PCIe.TransmitBytes = uintValue(v) },
		},
		{id: nvml.FI_DEV_PCIE_COUNT_RX_BYTES, name: "PCIE_COUNT_RX_BYTES", reading: gpu.ReadingPCIe,
			store: func(r *gpu.Readings, v *nvml.FieldValue) { r.PCIe.ReceiveBytes = uintValue(v) }},
		{
			id:      nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
			name:    "NVLINK_THROUGHPUT_DATA_TX",
			scope:   allLinks,
			reading: gpu.ReadingNVLink,
			store:   func(r *gpu.Readings, v *nvml.FieldValue) { r.NVLink.TransmitBytes = kibibytes(v) },
		},
		{
			id:      nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
			name:    "NVLINK_THROUGHPUT_DATA_RX",
			scope:   allLinks,
			reading: gpu.ReadingNVLink,
			store:   func(r *gpu.Readings, v *nvml.FieldValue) { r.NVLink.ReceiveBytes = kibibytes(v) },
		},
		linkErrors(nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "crc_flit"),
		linkErrors(nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, "crc_data"),
		linkErrors(nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "replay"),
		linkErrors(nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "recovery"),
		{
			id:      nvml.FI_DEV_NVLINK_LINK_COUNT,
			name:    "NVLINK_LINK_COUNT",
			slow:    true,
			reading: gpu.ReadingNVLink,
			store:   func(_ *gpu.Readings, v *nvml.FieldValue) { links.storeCount(v) },
		},
		{
			id:      nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES,
			name:    "NVLINK_COUNT_XMIT_BYTES",
			slow:    true,
			reading: gpu.ReadingNVLink,
			store:   func(_ *gpu.Readings, v *nvml.FieldValue) { links.byLink = uintValue(v).Present() },
		},
		{
			id:      nvml.FI_DEV_GET_GPU_RECOVERY_ACTION,
			name:    "GET_GPU_RECOVERY_ACTION",
			slow:    true,
			reading: gpu.ReadingRecovery,
			store:   storeRecovery,
		},
	}
	for i := range list {
		list[i].call = "nvmlDeviceGetFieldValues(" + list[i].name + ")"
	}

	return list
}

// linkErrors returns the field that counts a kind of NVLink errors.
func linkErrors(id uint32, kind string) field {
	return field{
		id:      id,
		slow:    true,
		reading: gpu.ReadingNVLink,
		name:    "NVLINK_" + strings.ToUpper(kind) + "_ERROR_COUNT_TOTAL",
		store: func(r *gpu.Readings, v *nvml.FieldValue) {
			if count, ok := uintValue(v).Get(); ok {
				r.NVLink.Errors = append(
					r.NVLink.Errors,
					gpu.NVLinkErrors{Kind: kind, Count: count},
				)
			}
		},
	}
}

// readFields reads the fields whose tier is due, in one call. It returns the fast tier with its
// fields added, and the fields of the slow tier. If the call fails as a whole, the latter keep
// their last values.
func (r *gpuRead) readFields(fastTier tier) (fast, slow tier) {
	g := r.state
	r.chooseFields()
	tiers := struct{ fast, slow tier }{fast: fastTier} // one allocation for both
	// Two queriers, for the errors of each tier.
	fastQuerier := r.newQuerier(g.answers)
	slowQuerier := r.newQuerier(g.answers)

	err := r.queryFields(&fastQuerier)
	if err != nil && !errors.Is(err, gpu.ErrNotSupported) {
		last := &g.slow.readings
		kept := &tiers.slow.readings
		kept.NVLink.Errors = last.NVLink.Errors
		kept.RecoveryAction = last.RecoveryAction
	}

	recorded := map[gpu.Reading]bool{} // readings whose error is recorded

	for i, f := range g.chosen {
		q := &fastQuerier
		readings := &tiers.fast.readings

		if f.slow {
			q = &slowQuerier
			readings = &tiers.slow.readings
		}

		if err == nil {
			q.storeField(f, &g.values[i], readings)
		} else if !recorded[f.reading] {
			recorded[f.reading] = true
			q.recordError(f.reading, err)
		}
	}

	tiers.fast.errs = append(fastTier.errs, fastQuerier.errs...)
	tiers.slow.errs = slowQuerier.errs

	return tiers.fast, tiers.slow
}

// chooseFields lists the fields that are due and were not refused.
func (r *gpuRead) chooseFields() {
	g := r.state

	g.values = g.values[:0]
	g.chosen = g.chosen[:0]

	for i := range g.fields {
		f := &g.fields[i]
		if !g.answers.unsupported[f.call] && (r.slow || !f.slow) {
			g.values = append(g.values, nvml.FieldValue{FieldId: f.id, ScopeId: f.scope})
			g.chosen = append(g.chosen, f)
		}
	}
}

// queryFields makes the call for the chosen fields, unless its refusal is cached.
func (r *gpuRead) queryFields(q *querier) error {
	const call = "nvmlDeviceGetFieldValues"
	if err := q.refusalOf(call); err != nil {
		return err
	}

	if len(r.state.chosen) == 0 {
		return gpu.ErrNotSupported
	}

	wasDenied := q.denied[call] != nil

	err := q.classify(call, gpu.ReadingPCIe, r.dev.GetFieldValues(r.state.values))
	if wasDenied && err == nil { // the denial was recorded for the reading of each field
		for _, f := range r.state.chosen {
			q.markRegained(f.reading)
		}
	}

	return err
}

// storeField adds the value of a field to the readings, or its error to the step's errors.
func (q *querier) storeField(f *field, v *nvml.FieldValue, readings *gpu.Readings) {
	var err error

	switch ret := nvml.Return(int32(v.NvmlReturn)); ret {
	case nvml.SUCCESS:
		f.store(readings, v)
	case nvml.ERROR_INVALID_ARGUMENT: // the driver is too old for this field
		err = gpu.ErrNotSupported
	default:
		err = driverError(f.call, ret)
	}

	if err = q.classifyError(f.call, f.reading, err); err != nil {
		q.recordError(f.reading, err)
	}
}

func storeRecovery(r *gpu.Readings, v *nvml.FieldValue) {
	actions := [...]gpu.RecoveryAction{
		nvml.GPU_RECOVERY_ACTION_NONE:                gpu.RecoveryNone,
		nvml.GPU_RECOVERY_ACTION_GPU_RESET:           gpu.RecoveryReset,
		nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         gpu.RecoveryReboot,
		nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           gpu.RecoveryDrain,
		nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     gpu.RecoveryDrainAndReset,
		nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: gpu.RecoveryIMEXDomain,
	}
	if action, ok := uintValue(v).Get(); ok && action < uint64(len(actions)) {
		r.RecoveryAction = gpu.Some(actions[action])
	}
}

// floatValue decodes a field's value by its type. It is absent if the type is unknown or the value
// is not finite.
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

// uintValue decodes a field's value as a count. It is absent if it is negative, not a number, or
// too large.
func uintValue(v *nvml.FieldValue) gpu.Opt[uint64] {
	bits := binary.NativeEndian.Uint64(v.Value[:])
	switch nvml.ValueType(int32(v.ValueType)) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return gpu.Some(uint64(binary.NativeEndian.Uint32(v.Value[:4])))
	case nvml.VALUE_TYPE_UNSIGNED_LONG,
		nvml.VALUE_TYPE_UNSIGNED_LONG_LONG: // long has 64 bits where this driver runs
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
