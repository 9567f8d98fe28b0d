package hostengine

import (
	"fmt"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// HealthSystems is a set of systems whose health is watched, as bits (dcgmHealthSystems_t).
type HealthSystems uint32

// The systems in which the simulation can have incidents.
const (
	HealthMemory  HealthSystems = 0x10
	HealthThermal HealthSystems = 0x80
	HealthPower   HealthSystems = 0x100
)

// Health is the result of a check (dcgmHealthWatchResults_t).
type Health int

// The results.
const (
	HealthPass    Health = 0
	HealthWarning Health = 10
	HealthFailure Health = 20
)

// Incident is what a check finds wrong with a GPU.
type Incident struct {
	Entity Entity
	System HealthSystems
	Health Health
	Code   uint32 // dcgmError_t
	Text   string
}

// The codes of incidents (dcgm_errors.h).
const (
	errorVolatileDBE      = 4
	errorClocksThermal    = 10
	errorClocksPower      = 12
	errorRowRemapFailed   = 80
	errorRowRemapsPending = 85
)

// healthWatch is the health check of a group.
type healthWatch struct {
	systems HealthSystems
	// power and thermal have, for each GPU, how long its clocks had been held down by the last
	// check. A GPU that was not checked yet is missing.
	power, thermal map[uint32]time.Duration
}

// SetHealth watches these systems of a group, and no others.
func (s *Session) SetHealth(groupID uintptr, systems HealthSystems) error {
	if err := s.beginCall(); err != nil {
		return err
	}

	e := s.engine
	defer e.mu.Unlock()

	if e.groups[groupID] == nil {
		return NotConfigured
	}

	e.health[groupID] = &healthWatch{systems: systems, power: map[uint32]time.Duration{},
		thermal: map[uint32]time.Duration{}}

	return nil
}

// Health returns the systems of a group that are watched.
func (s *Session) Health(groupID uintptr) (HealthSystems, error) {
	if err := s.beginCall(); err != nil {
		return 0, err
	}

	e := s.engine
	defer e.mu.Unlock()

	if e.groups[groupID] == nil {
		return 0, NotConfigured
	}

	if w := e.health[groupID]; w != nil {
		return w.systems, nil
	}

	return 0, nil
}

// CheckHealth returns the incidents of the GPUs of a group in the watched systems. Clocks that were
// held down since the last check are an incident, so the first check never finds such
// (dcgmHealthCheck: dcgm_agent.h).
func (s *Session) CheckHealth(groupID uintptr) ([]Incident, error) {
	if err := s.beginCall(); err != nil {
		return nil, err
	}

	e := s.engine
	defer e.mu.Unlock()

	g := e.groups[groupID]
	w := e.health[groupID]

	if g == nil {
		return nil, NotConfigured
	}

	if w == nil {
		return nil, nil
	}

	var list []Incident

	for _, entity := range g.entities {
		if entity.Level != GPU {
			continue // the simulation has no incidents of single instances
		}

		state, err := e.node.Read(int(entity.ID), gpu.ReadingDevice)
		if err != nil {
			continue // the driver does not answer: health is unknown
		}

		list = append(list, w.check(entity, &state)...)
	}

	return list, nil
}

// check returns the incidents of a GPU in the watched systems. What the driver does not report is no
// incident.
func (w *healthWatch) check(entity Entity, s *sim.GPUState) []Incident {
	rows := s.Remapped.Or(gpu.RemappedRows{})
	checks := []struct {
		failed bool
		Incident
	}{
		{
			rows.Failure,
			Incident{
				entity,
				HealthMemory,
				HealthFailure,
				errorRowRemapFailed,
				fmt.Sprintf(
					"GPU %d had uncorrectable memory errors and row remapping failed.",
					entity.ID,
				),
			},
		},
		{rows.Pending, Incident{entity, HealthMemory, HealthWarning, errorRowRemapsPending,
			fmt.Sprintf("GPU %d had memory errors and row remappings are pending", entity.ID)}},
		{
			!s.MIGEnabled && s.ECC.UncorrectedVolatile > 0,
			Incident{
				entity,
				HealthMemory,
				HealthFailure,
				errorVolatileDBE,
				fmt.Sprintf(
					"Detected %d volatile double-bit ECC error(s) in GPU %d.",
					s.ECC.UncorrectedVolatile,
					entity.ID,
				),
			},
		},
		{
			grew(w.thermal, entity.ID, s.ThermalViolation),
			Incident{entity, HealthThermal, HealthWarning, errorClocksThermal,
				fmt.Sprintf("Detected clocks event due to thermal violation in GPU %d.", entity.ID)},
		},
		{
			grew(w.power, entity.ID, s.PowerViolation),
			Incident{entity, HealthPower, HealthWarning, errorClocksPower,
				fmt.Sprintf("Detected clocks event due to power violation in GPU %d.", entity.ID)},
		},
	}

	var list []Incident

	for i := range checks {
		if checks[i].failed && w.systems&checks[i].System != 0 {
			list = append(list, checks[i].Incident)
		}
	}

	return list
}

// grew stores how long a GPU's clocks have been held down, and reports whether that has grown since
// the last check. It returns false in the first check.
func grew(last map[uint32]time.Duration, id uint32, now time.Duration) bool {
	before, checked := last[id]
	last[id] = now

	return checked && now > before
}
