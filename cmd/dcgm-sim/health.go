package main

// #include "abi.h"
import "C"

import "github.com/mig-exporter/mig-exporter/internal/sim/hostengine"

// healthCalls watch the health of groups. The numbers are the indexes of the arguments that must not
// be NULL.
func healthCalls() map[string]call {
	return map[string]call{
		"dcgmHealthSet":    onSession(setHealth),
		"dcgmHealthSet_v2": onSession(setHealthV2, 1),
		"dcgmHealthGet":    onSession(getHealth, 2),
		"dcgmHealthCheck":  onSession(checkHealth, 2),
	}
}

func setHealth(_ *library, s *hostengine.Session, a args) error {
	return s.SetHealth(a.raw[1], hostengine.HealthSystems(a.uint(2)))
}

func setHealthV2(_ *library, s *hostengine.Session, a args) error {
	params := pointer[C.sim_dcgmHealthSetParams_v2](a, 1)
	if params.version != C.SIM_dcgmHealthSetParams_version2 {
		return hostengine.VersionMismatch
	}

	return s.SetHealth(uintptr(params.groupId), hostengine.HealthSystems(params.systems))
}

func getHealth(_ *library, s *hostengine.Session, a args) error {
	systems, err := s.Health(a.raw[1])
	if err == nil {
		*pointer[uint32](a, 2) = uint32(systems)
	}

	return err
}

func checkHealth(_ *library, s *hostengine.Session, a args) error {
	to := pointer[C.sim_dcgmHealthResponse_v5](a, 2)
	if to.version != C.SIM_dcgmHealthResponse_version5 {
		return hostengine.VersionMismatch
	}

	incidents, err := s.CheckHealth(a.raw[1])
	if err != nil {
		return err
	}

	to.overallHealth = C.uint(hostengine.HealthPass)
	to.incidentCount = 0

	for i := range incidents[:min(len(incidents), len(to.incidents))] {
		incident := &incidents[i]
		c := &to.incidents[i]

		c.system = C.uint(incident.System)
		c.health = C.uint(incident.Health)
		c.error.code = C.uint(incident.Code)
		putCString(c.error.msg[:], incident.Text)
		c.entityInfo.entityGroupId = C.uint(incident.Entity.Level)
		c.entityInfo.entityId = C.uint(incident.Entity.ID)

		to.overallHealth = max(to.overallHealth, c.health)
		to.incidentCount++
	}

	return nil
}
