package main

// #include "abi.h"
import "C"

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// groupCalls create and destroy groups, field groups and watches. The numbers are the indexes of the
// arguments that must not be NULL.
func groupCalls() map[string]call {
	return map[string]call{
		"dcgmGroupCreate":       onSession(createGroup, 2, 3),
		"dcgmGroupDestroy":      onSession(destroyGroup),
		"dcgmGroupAddDevice":    onSession(addDevice),
		"dcgmGroupAddEntity":    onSession(addEntity),
		"dcgmFieldGroupCreate":  onSession(createFieldGroup, 2, 3, 4),
		"dcgmFieldGroupDestroy": onSession(destroyFieldGroup),
		"dcgmWatchFields":       onSession(watchFields),
		"dcgmUnwatchFields":     onSession(unwatchFields),
	}
}

// The types of groups (dcgmGroupType_t) that are supported.
const (
	groupOfAll = 0
	groupEmpty = 1
)

func createGroup(_ *library, s *hostengine.Session, a args) error {
	kind := a.uint(1)
	if kind != groupOfAll && kind != groupEmpty {
		return hostengine.NotSupported
	}

	id, err := s.CreateGroup(text(a, 2))
	if err != nil {
		return err
	}

	*pointer[uintptr](a, 3) = id

	if kind == groupEmpty {
		return nil
	}

	gpus, err := s.GPUs()
	if err != nil {
		return err
	}

	for _, g := range gpus {
		err = s.AddEntity(id, hostengine.Entity{Level: hostengine.GPU, ID: g})
		if err != nil {
			return err
		}
	}

	return nil
}

func destroyGroup(_ *library, s *hostengine.Session, a args) error {
	return s.DestroyGroup(a.raw[1])
}

func addDevice(_ *library, s *hostengine.Session, a args) error {
	return s.AddEntity(a.raw[1], hostengine.Entity{Level: hostengine.GPU, ID: a.uint(2)})
}

func addEntity(_ *library, s *hostengine.Session, a args) error {
	return s.AddEntity(
		a.raw[1],
		hostengine.Entity{Level: hostengine.Level(a.uint(2)), ID: a.uint(3)},
	)
}

func createFieldGroup(_ *library, s *hostengine.Session, a args) error {
	n := int(int32(a.uint(1)))
	if n < 1 || n > 128 { // DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP
		return hostengine.BadParam
	}

	id, err := s.CreateFieldGroup(array[uint16](a, 2, n))
	if err == nil {
		*pointer[uintptr](a, 4) = id
	}

	return err
}

func destroyFieldGroup(_ *library, s *hostengine.Session, a args) error {
	return s.DestroyFieldGroup(a.raw[1])
}

func watchFields(_ *library, s *hostengine.Session, a args) error {
	return s.Watch(a.raw[1], a.raw[2], time.Duration(int64(a.raw[3]))*time.Microsecond)
}

func unwatchFields(_ *library, s *hostengine.Session, a args) error {
	return s.Unwatch(a.raw[1], a.raw[2])
}
