package simnvml

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// GetFieldValues answers each field with its own return code. The call succeeds if the GPU can be
// read.
func (d *gpuHandle) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	s, err := d.node.Read(d.index, gpu.ReadingDevice)
	if err != nil {
		return returnOf(err)
	}

	for i := range values {
		v := &values[i]
		v.Timestamp = s.Time.UnixMicro()
		v.LatencyUsec = 0
		v.Value = [8]byte{}

		f, err := d.node.Field(v.FieldId)
		if err != nil {
			v.NvmlReturn = uint32(returnOf(err))
			continue
		}

		number, ret := read(d, f.Reading, func(s *sim.GPUState) (uint64, nvml.Return) {
			number, err := f.Value(s, v.ScopeId)
			return number, returnOf(err)
		})

		v.NvmlReturn = uint32(ret)
		v.ValueType = uint32(f.Kind)

		if ret == nvml.SUCCESS {
			binary.NativeEndian.PutUint64(v.Value[:], number)
		}
	}

	return nvml.SUCCESS
}
