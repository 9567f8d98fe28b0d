package main

// #include "abi.h"
import "C"

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// groupCalls are those of groups, field groups and watches.
func groupCalls() map[string]call {
	return map[string]call{
		"dcgmGroupCreate":       connected(createGroup, 2, 3),
		"dcgmGroupDestroy":      connected(destroyGroup),
		"dcgmGroupAddDevice":    connected(addDevice),
		"dcgmGroupAddEntity":    connected(addEntity),
		"dcgmFieldGroupCreate":  connected(createFieldGroup, 2, 3, 4),
		"dcgmFieldGroupDestroy": connected(destroyFieldGroup),
		"dcgmWatchFields":       connected(watchFields),
		"dcgmUnwatchFields":     connected(unwatchFields),
	}
}

// The types of groups (dcgmGroupType_t) that there are here.
const (
	groupOfAll = 0
	groupEmpty = 1
)

func createGroup(_ *library, s *hostengine.Session, a args) hostengine.Code {
	kind := a.uint(1)
	if kind != groupOfAll && kind != groupEmpty {
		return hostengine.NotSupported
	}
	id, err := s.CreateGroup(text(a, 2))
	if err != nil {
		return codeOf(err)
	}
	*at[uintptr](a, 3) = id
	if kind == groupEmpty {
		return hostengine.OK
	}
	gpus, err := s.GPUs()
	for _, g := range gpus {
		if err == nil {
			err = s.AddEntity(id, hostengine.Entity{Level: hostengine.GPU, ID: g})
		}
	}
	return codeOf(err)
}

func destroyGroup(_ *library, s *hostengine.Session, a args) hostengine.Code {
	return codeOf(s.DestroyGroup(a.raw[1]))
}

func addDevice(_ *library, s *hostengine.Session, a args) hostengine.Code {
	return codeOf(s.AddEntity(a.raw[1], hostengine.Entity{Level: hostengine.GPU, ID: a.uint(2)}))
}

func addEntity(_ *library, s *hostengine.Session, a args) hostengine.Code {
	return codeOf(s.AddEntity(a.raw[1], hostengine.Entity{Level: hostengine.Level(a.uint(2)), ID: a.uint(3)}))
}

func createFieldGroup(_ *library, s *hostengine.Session, a args) hostengine.Code {
	n := int(int32(a.uint(1)))
	if n < 1 || n > 128 { // DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP
		return hostengine.BadParam
	}
	id, err := s.CreateFieldGroup(array[uint16](a, 2, n))
	if err == nil {
		*at[uintptr](a, 4) = id
	}
	return codeOf(err)
}

func destroyFieldGroup(_ *library, s *hostengine.Session, a args) hostengine.Code {
	return codeOf(s.DestroyFieldGroup(a.raw[1]))
}

func watchFields(_ *library, s *hostengine.Session, a args) hostengine.Code {
	return codeOf(s.Watch(a.raw[1], a.raw[2], time.Duration(int64(a.raw[3]))*time.Microsecond))
}

func unwatchFields(_ *library, s *hostengine.Session, a args) hostengine.Code {
	return codeOf(s.Unwatch(a.raw[1], a.raw[2]))
}
