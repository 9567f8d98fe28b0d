package contract

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// countedChecks are those of what a GPU counts, and of fields.
func countedChecks() []checkOf {
	return []checkOf{
		{name: "Device.GetTotalEnergyConsumption",
			check: growing("Device.GetTotalEnergyConsumption", nvmlsource.Device.GetTotalEnergyConsumption)},
		{name: "Device.GetPcieReplayCounter",
			check: growing("Device.GetPcieReplayCounter", func(d nvmlsource.Device) (uint64, nvml.Return) {
				n, ret := d.GetPcieReplayCounter()
				return uint64(n), ret
			})},
		{name: "Device.GetMemoryErrorCounter", check: func(s *subject) {
			for _, severity := range []nvml.MemoryErrorType{nvml.MEMORY_ERROR_TYPE_CORRECTED,
				nvml.MEMORY_ERROR_TYPE_UNCORRECTED} {
				for _, lifetime := range []nvml.EccCounterType{nvml.VOLATILE_ECC, nvml.AGGREGATE_ECC} {
					growing("Device.GetMemoryErrorCounter", func(d nvmlsource.Device) (uint64, nvml.Return) {
						return d.GetMemoryErrorCounter(severity, lifetime, nvml.MEMORY_LOCATION_DEVICE_MEMORY)
					})(s)
				}
			}
		}},
		{name: "Device.GetTotalEccErrors", check: func(s *subject) {
			for _, severity := range []nvml.MemoryErrorType{nvml.MEMORY_ERROR_TYPE_CORRECTED,
				nvml.MEMORY_ERROR_TYPE_UNCORRECTED} {
				growing("Device.GetTotalEccErrors", func(d nvmlsource.Device) (uint64, nvml.Return) {
					return d.GetTotalEccErrors(severity, nvml.AGGREGATE_ECC)
				})(s)
			}
		}},
		{name: "Device.GetRemappedRows", check: each(func(s *subject, d nvmlsource.Device) {
			correctable, uncorrectable, _, _, ret := d.GetRemappedRows()
			if s.has("Device.GetRemappedRows", ret) {
				s.want(correctable >= 0 && uncorrectable >= 0 && correctable+uncorrectable < 100_000, "%d and %d rows",
					correctable, uncorrectable)
			}
		})},
		{name: "Device.GetFieldValues", check: each(checkFields)},
		{name: "remapped rows by field values are those of the call",
			methods: []string{"Device.GetFieldValues", "Device.GetRemappedRows"}, check: each(checkRowFields)},
		{name: "energy is power over time, mJ and mW",
			methods: []string{"Device.GetTotalEnergyConsumption", "Device.GetPowerUsage"}, check: each(checkEnergy)},
	}
}

// growing checks a counter of every GPU: it does not go back.
func growing(function string, call func(nvmlsource.Device) (uint64, nvml.Return)) func(*subject) {
	return func(s *subject) {
		before := map[nvmlsource.Device]uint64{}

		for _, d := range s.devices() {
			if n, ret := call(d); s.has(function, ret) {
				before[d] = n
			}
		}

		s.pass()

		for d, was := range before {
			n, ret := call(d)
			s.want(ret == nvml.SUCCESS && n >= was && n < 1<<62, "%s of %s: %d, then %d (%d)", function, uuidOf(d), was, n, ret)
		}
	}
}

// checkEnergy: if a second passes between the readings, energy grows by no more than the limit
// allows twice over, and by no less than a hundredth of the power. On hardware only as long passes
// as the calls take, which bounds it above alone.
func checkEnergy(s *subject, d nvmlsource.Device) {
	limit, ret := d.GetEnforcedPowerLimit()

	first, firstRet := d.GetTotalEnergyConsumption()
	if ret != nvml.SUCCESS || firstRet != nvml.SUCCESS {
		return
	}

	began := s.now()
	s.pass()
	seconds := s.now().Sub(began).Seconds()
	second, ret := d.GetTotalEnergyConsumption()

	power, powerRet := d.GetPowerUsage()
	if ret != nvml.SUCCESS || powerRet != nvml.SUCCESS || seconds < 0.5 {
		s.want(ret != nvml.SUCCESS || second-first < uint64(limit)*10, "%d mJ in no time", second-first)
		return
	}

	grown := float64(second-first) / seconds
	s.want(grown <= 2*float64(limit) && grown >= float64(power)/100, "%.0f mJ in a second at %d mW, limit %d mW", grown,
		power, limit)
}

// checkFields: a field is answered by itself, in its place, whatever becomes of the others.
func checkFields(s *subject, d nvmlsource.Device) {
	const unknown = 60_000
	values := []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_MEMORY_TEMP}, {FieldId: unknown}, {FieldId: nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION},
		{FieldId: nvml.FI_DEV_PCIE_COUNT_TX_BYTES},
	}
	ids := []uint32{nvml.FI_DEV_MEMORY_TEMP, unknown, nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION,
		nvml.FI_DEV_PCIE_COUNT_TX_BYTES}

	for i := range values {
		values[i].NvmlReturn = uint32(nvml.ERROR_UNKNOWN) // what is not written is found
	}

	if !s.has("Device.GetFieldValues", d.GetFieldValues(values)) {
		return
	}

	for i, v := range values {
		ret := nvml.Return(v.NvmlReturn)
		s.want(v.FieldId == ids[i], "field %d in the place of %d", v.FieldId, ids[i])

		switch ret {
		case nvml.SUCCESS:
			s.want(ids[i] != unknown, "a value of a field that there is not")
			s.want(v.ValueType <= 6, "field %d: type %d", ids[i], v.ValueType)
		case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NO_PERMISSION:
		default:
			s.errorf("field %d: return code %d", ids[i], ret)
		}
	}

	if nvml.Return(values[0].NvmlReturn) == nvml.SUCCESS {
		celsius := binary.NativeEndian.Uint32(values[0].Value[:])
		s.want(celsius < 130, "memory at %d C", celsius)
	}

	s.want(d.GetFieldValues(nil) == nvml.SUCCESS, "no fields at all are not answered")
}

// checkRowFields: the fields have the values of the call, and its code if it has none, as with GPU
// instances.
func checkRowFields(s *subject, d nvmlsource.Device) {
	values := []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_REMAPPED_COR}, {FieldId: nvml.FI_DEV_REMAPPED_UNC}, {FieldId: nvml.FI_DEV_REMAPPED_PENDING},
		{FieldId: nvml.FI_DEV_REMAPPED_FAILURE},
	}

	correctable, uncorrectable, pending, failure, rowsRet := d.GetRemappedRows()
	if ret := d.GetFieldValues(values); ret != nvml.SUCCESS {
		s.want(rowsRet != nvml.SUCCESS, "no fields: %d, but rows", ret)
		return
	}

	flag := map[bool]int{true: 1}
	for i, want := range []int{correctable, uncorrectable, flag[pending], flag[failure]} {
		v := values[i]
		s.want(nvml.Return(v.NvmlReturn) == rowsRet, "field %d: code %d, the call %d", v.FieldId, v.NvmlReturn, rowsRet)

		if rowsRet != nvml.SUCCESS {
			continue
		}

		s.want(v.ValueType <= 6, "field %d: type %d", v.FieldId, v.ValueType)
		got := int(binary.NativeEndian.Uint32(v.Value[:]))
		s.want(got == want, "field %d: %d, the call %d", v.FieldId, got, want)
	}
}
