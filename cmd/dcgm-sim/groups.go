package main

// #include "abi.h"
import "C"

import (
	"time"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

//export dcgmGetAllDevices
func dcgmGetAllDevices(handle C.uintptr_t, ids *C.uint, count *C.int) C.int {
	return with(handle, func(s *hostengine.Session) error {
		list, err := s.GPUs()
		if err != nil {
			return err
		}
		room := unsafe.Slice(ids, C.SIM_DCGM_MAX_NUM_DEVICES)
		for i, id := range list[:min(len(list), len(room))] {
			room[i] = C.uint(id)
		}
		*count = C.int(min(len(list), len(room)))
		return nil
	})
}

//export dcgmGetAllSupportedDevices
func dcgmGetAllSupportedDevices(handle C.uintptr_t, ids *C.uint, count *C.int) C.int {
	return dcgmGetAllDevices(handle, ids, count)
}

// dcgmGetEntityGroupEntities lists the ids of one level; *count is how many there is room for, then how many there are.
//
//export dcgmGetEntityGroupEntities
func dcgmGetEntityGroupEntities(handle C.uintptr_t, level C.int, ids *C.uint, count *C.int, _ C.uint) C.int {
	return with(handle, func(s *hostengine.Session) error {
		list, err := idsOf(s, hostengine.Level(level))
		if err != nil {
			return err
		}
		room := int(*count)
		*count = C.int(len(list))
		if room < len(list) {
			return hostengine.Code(-31) // DCGM_ST_INSUFFICIENT_SIZE
		}
		for i, id := range list {
			unsafe.Slice(ids, len(list))[i] = C.uint(id)
		}
		return nil
	})
}

func idsOf(s *hostengine.Session, level hostengine.Level) ([]uint32, error) {
	if level == hostengine.GPU {
		return s.GPUs()
	}
	members, err := s.Hierarchy()
	var ids []uint32
	for _, m := range members {
		if m.Entity.Level == level {
			ids = append(ids, m.Entity.ID)
		}
	}
	return ids, err
}

//export dcgmGetGpuInstanceHierarchy
func dcgmGetGpuInstanceHierarchy(handle C.uintptr_t, to *C.sim_dcgmMigHierarchy_v2) C.int {
	if to == nil || to.version != C.SIM_dcgmMigHierarchy_version2 {
		return C.SIM_DCGM_ST_VER_MISMATCH
	}
	return with(handle, func(s *hostengine.Session) error {
		members, err := s.Hierarchy()
		if err != nil {
			return err
		}
		to.count = C.uint(min(len(members), len(to.entityList)))
		for i, m := range members[:to.count] {
			e := &to.entityList[i]
			*e = C.sim_dcgmMigHierarchyInfo_v2{entity: pair(m.Entity), parent: pair(m.Parent)}
			info := &e.info
			for k, c := range []byte(m.UUID) {
				info.gpuUuid[k] = C.char(c)
			}
			info.nvmlGpuIndex, info.nvmlInstanceId = C.uint(m.GPU), C.uint(m.Instance)
			info.nvmlComputeInstanceId, info.nvmlMigProfileId = ^C.uint(0), C.uint(m.ProfileID)
			if m.Entity.Level == hostengine.ComputeInstance {
				info.nvmlComputeInstanceId = C.uint(m.Compute)
			}
			info.nvmlProfileSlices = C.uint(m.Slices)
		}
		return nil
	})
}

func pair(e hostengine.Entity) C.sim_dcgmGroupEntityPair_t {
	return C.sim_dcgmGroupEntityPair_t{entityGroupId: C.uint(e.Level), entityId: C.uint(e.ID)}
}

// dcgmGroupCreate makes an empty group, or one of all GPUs: type 0 is DCGM_GROUP_DEFAULT.
//
//export dcgmGroupCreate
func dcgmGroupCreate(handle C.uintptr_t, kind C.int, name *C.char, to *C.uintptr_t) C.int {
	return with(handle, func(s *hostengine.Session) error {
		id, err := s.CreateGroup(C.GoString(name))
		if err != nil {
			return err
		}
		*to = C.uintptr_t(id)
		if kind != 0 {
			return nil
		}
		gpus, err := s.GPUs()
		for _, g := range gpus {
			if err == nil {
				err = s.AddEntity(id, hostengine.Entity{Level: hostengine.GPU, ID: g})
			}
		}
		return err
	})
}

//export dcgmGroupDestroy
func dcgmGroupDestroy(handle, group C.uintptr_t) C.int {
	return with(handle, func(s *hostengine.Session) error { return s.DestroyGroup(uintptr(group)) })
}

//export dcgmGroupAddDevice
func dcgmGroupAddDevice(handle, group C.uintptr_t, id C.uint) C.int {
	return dcgmGroupAddEntity(handle, group, C.SIM_DCGM_FE_GPU, id)
}

//export dcgmGroupAddEntity
func dcgmGroupAddEntity(handle, group C.uintptr_t, level C.int, id C.uint) C.int {
	return with(handle, func(s *hostengine.Session) error {
		return s.AddEntity(uintptr(group), hostengine.Entity{Level: hostengine.Level(level), ID: uint32(id)})
	})
}

//export dcgmFieldGroupCreate
func dcgmFieldGroupCreate(handle C.uintptr_t, count C.int, fields *C.ushort, _ *C.char, to *C.uintptr_t) C.int {
	return with(handle, func(s *hostengine.Session) error {
		id, err := s.CreateFieldGroup(numbers(fields, int(count)))
		*to = C.uintptr_t(id)
		return err
	})
}

func numbers(fields *C.ushort, count int) []uint16 {
	var list []uint16
	for _, f := range unsafe.Slice(fields, count) {
		list = append(list, uint16(f))
	}
	return list
}

//export dcgmFieldGroupDestroy
func dcgmFieldGroupDestroy(handle, fields C.uintptr_t) C.int {
	return with(handle, func(s *hostengine.Session) error { return s.DestroyFieldGroup(uintptr(fields)) })
}

// dcgmWatchFields takes the interval in microseconds. One sample is kept, however many are asked for.
//
//export dcgmWatchFields
func dcgmWatchFields(handle, group, fields C.uintptr_t, micros C.longlong, keepSeconds C.double, keepSamples C.int) C.int { //nolint:revive,unparam // C wants names
	return with(handle, func(s *hostengine.Session) error {
		return s.Watch(uintptr(group), uintptr(fields), time.Duration(micros)*time.Microsecond)
	})
}

//export dcgmUnwatchFields
func dcgmUnwatchFields(handle, group, fields C.uintptr_t) C.int {
	return with(handle, func(s *hostengine.Session) error { return s.Unwatch(uintptr(group), uintptr(fields)) })
}

//export dcgmUpdateAllFields
func dcgmUpdateAllFields(handle C.uintptr_t, _ C.int) C.int {
	return with(handle, (*hostengine.Session).Update)
}
