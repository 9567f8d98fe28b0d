package main

// #include "abi.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

//export dcgmEntitiesGetLatestValues
func dcgmEntitiesGetLatestValues(handle C.uintptr_t, entities *C.sim_dcgmGroupEntityPair_t, count C.uint, fields *C.ushort,
	fieldCount, flags C.uint, to *C.sim_dcgmFieldValue_v2,
) C.int {
	var list []hostengine.Entity
	for _, e := range unsafe.Slice(entities, count) {
		list = append(list, hostengine.Entity{Level: hostengine.Level(e.entityGroupId), ID: uint32(e.entityId)})
	}
	return latest(handle, list, numbers(fields, int(fieldCount)), flags, func(i int, v hostengine.Value) {
		out := &unsafe.Slice(to, int(count*fieldCount))[i]
		out.version = C.SIM_dcgmFieldValue_version2
		out.entityGroupId, out.entityId = C.uint(v.Entity.Level), C.uint(v.Entity.ID)
		out.fieldId, out.fieldType, out.status, out.unused = C.ushort(v.Field), C.ushort(v.Type), C.int(v.Status), 0
		out.ts = C.int64_t(v.Micros)
		put(&out.value, v)
	})
}

//export dcgmEntityGetLatestValues
func dcgmEntityGetLatestValues(handle C.uintptr_t, level, id C.int, fields *C.ushort, count C.uint, to *C.sim_dcgmFieldValue_v1) C.int {
	of := []hostengine.Entity{{Level: hostengine.Level(level), ID: uint32(id)}}
	return latest(handle, of, numbers(fields, int(count)), 0, func(i int, v hostengine.Value) {
		out := &unsafe.Slice(to, int(count))[i]
		out.version = C.SIM_dcgmFieldValue_version1
		out.fieldId, out.fieldType, out.status = C.ushort(v.Field), C.ushort(v.Type), C.int(v.Status)
		out.ts = C.int64_t(v.Micros)
		put(&out.value, v)
	})
}

//export dcgmGetLatestValuesForFields
func dcgmGetLatestValuesForFields(handle C.uintptr_t, id C.int, fields *C.ushort, count C.uint, to *C.sim_dcgmFieldValue_v1) C.int {
	return dcgmEntityGetLatestValues(handle, C.SIM_DCGM_FE_GPU, id, fields, count, to)
}

// latest reads values and hands each to put, by its place in the answer.
func latest(handle C.uintptr_t, of []hostengine.Entity, fields []uint16, flags C.uint, put func(int, hostengine.Value)) C.int {
	return with(handle, func(s *hostengine.Session) error {
		read := s.Latest
		if flags&C.SIM_DCGM_FV_FLAG_LIVE_DATA != 0 {
			read = s.Live
		}
		values, err := read(of, fields)
		for i, v := range values {
			put(i, v)
		}
		return err
	})
}

// put fills the union of a value: a number, or a text of up to 255 characters.
func put(to *[512]C.int64_t, v hostengine.Value) {
	switch v.Type {
	case 'd':
		to[0] = C.int64_t(math.Float64bits(v.Float))
	case 'i':
		to[0] = C.int64_t(v.Int)
	case 's':
		room := unsafe.Slice((*byte)(unsafe.Pointer(to)), 256)
		room[copy(room[:255], v.Text)] = 0
	}
}
