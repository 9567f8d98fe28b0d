package main

// #include <stdlib.h>
// #include "abi.h"
// #include "dispatch.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// valueCalls read the values of fields. The numbers are the indexes of the arguments that must not be
// NULL.
func valueCalls() map[string]call {
	return map[string]call{
		"dcgmUpdateAllFields":          onSession(update),
		"dcgmEntitiesGetLatestValues":  onSession(entitiesLatest, 1, 3, 6),
		"dcgmEntityGetLatestValues":    onSession(entityLatest, 3, 5),
		"dcgmGetValuesSince_v2":        onSession(valuesSince, 4, 5),
		"dcgmGetLatestValuesForFields": onSession(deviceLatest, 2, 4),
	}
}

// liveData is DCGM_FV_FLAG_LIVE_DATA: read now, instead of the values of the last update.
const liveData = 1

func update(_ *library, s *hostengine.Session, _ args) error { return s.Update() }

func entitiesLatest(_ *library, s *hostengine.Session, a args) error {
	entityCount := a.uint(2)
	fieldCount := a.uint(4)

	if entityCount == 0 || entityCount > C.SIM_MAX_ENTITIES || fieldCount == 0 || fieldCount > math.MaxUint16 {
		return hostengine.BadParam
	}

	var entities []hostengine.Entity
	for _, pair := range array[C.sim_dcgmGroupEntityPair_t](a, 1, int(entityCount)) {
		entities = append(entities, hostengine.Entity{
			Level: hostengine.Level(pair.entityGroupId),
			ID:    uint32(pair.entityId),
		})
	}

	read := s.Latest
	if a.uint(5)&liveData != 0 {
		read = s.Live
	}

	values, err := read(entities, array[uint16](a, 3, int(fieldCount)))
	if err != nil {
		return err
	}

	to := array[C.sim_dcgmFieldValue_v2](a, 6, len(values))
	for i := range values {
		v := &values[i]
		c := &to[i]

		c.version = C.SIM_dcgmFieldValue_version2
		c.entityGroupId = C.uint(v.Entity.Level)
		c.entityId = C.uint(v.Entity.ID)
		c.fieldId = C.ushort(v.Field)
		c.fieldType = C.ushort(v.Type)
		c.status = C.int(v.Status)
		c.unused = 0
		c.ts = C.int64_t(v.Micros)
		putValue(unsafe.Slice((*byte)(unsafe.Pointer(&c.value)), len(c.value)), v)
	}

	return nil
}

func deviceLatest(_ *library, s *hostengine.Session, a args) error {
	entity := hostengine.Entity{Level: hostengine.GPU, ID: a.uint(1)}
	n := int(a.uint(3))

	return putLatest(s, entity, array[uint16](a, 2, n), array[C.sim_dcgmFieldValue_v1](a, 4, n))
}

func entityLatest(_ *library, s *hostengine.Session, a args) error {
	entity := hostengine.Entity{Level: hostengine.Level(a.uint(1)), ID: a.uint(2)}
	n := int(a.uint(4))

	return putLatest(s, entity, array[uint16](a, 3, n), array[C.sim_dcgmFieldValue_v1](a, 5, n))
}

func putLatest(
	s *hostengine.Session,
	entity hostengine.Entity,
	fields []uint16,
	to []C.sim_dcgmFieldValue_v1,
) error {
	values, err := s.Latest([]hostengine.Entity{entity}, fields)
	if err != nil {
		return err
	}

	for i := range values {
		putValueV1(&to[i], &values[i])
	}

	return nil
}

// putValueV1 writes a value in version 1 of the struct.
func putValueV1(c *C.sim_dcgmFieldValue_v1, v *hostengine.Value) {
	c.version = C.SIM_dcgmFieldValue_version1
	c.fieldId = C.ushort(v.Field)
	c.fieldType = C.ushort(v.Type)
	c.status = C.int(v.Status)
	c.ts = C.int64_t(v.Micros)
	putValue(unsafe.Slice((*byte)(unsafe.Pointer(&c.value)), len(c.value)), v)
}

// valuesSince passes the values of each entity to the client's function until it stops the
// enumeration.
func valuesSince(_ *library, s *hostengine.Session, a args) error {
	values, next, err := s.ValuesSince(a.raw[1], a.raw[2], int64(a.raw[3]))
	if err != nil {
		return err
	}

	*pointer[int64](a, 4) = next

	for len(values) > 0 {
		entity := values[0].Entity

		n := 1
		for n < len(values) && values[n].Entity == entity {
			n++
		}

		if !passValues(entity, values[:n], pointer[byte](a, 5), pointer[byte](a, 6)) {
			break
		}

		values = values[n:]
	}

	return nil
}

// passValues calls the client's function with the values of an entity, in C's memory, and reports
// whether to continue.
func passValues(entity hostengine.Entity, values []hostengine.Value, callback, user *byte) bool {
	memory := C.calloc(C.size_t(len(values)), C.sizeof_sim_dcgmFieldValue_v1)
	defer C.free(memory)

	to := unsafe.Slice((*C.sim_dcgmFieldValue_v1)(memory), len(values))
	for i := range values {
		putValueV1(&to[i], &values[i])
	}

	answer := C.dcgm_sim_enumerate(
		unsafe.Pointer(callback),
		C.uint(entity.Level),
		C.uint(entity.ID),
		memory,
		C.int(len(values)),
		unsafe.Pointer(user),
	)

	return answer == 0
}

// putValue writes a value into the union of a dcgmFieldValue. The other bytes of the union keep
// what the caller had there, as with DCGM.
func putValue(to []byte, v *hostengine.Value) {
	switch v.Type {
	case 'i':
		*(*int64)(unsafe.Pointer(&to[0])) = v.Int
	case 'd':
		*(*float64)(unsafe.Pointer(&to[0])) = v.Float
	case 's':
		length := copy(to[:C.SIM_TEXT-1], v.Text)
		to[length] = 0
	}
}
