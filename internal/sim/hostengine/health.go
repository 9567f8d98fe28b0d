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

// CheckHealth returns what is wrong with the GPUs of a group in the systems that are watched.
// Clocks that were held down since the last check are an incident, so the first check never finds
// one (dcgmHealthCheck: dcgm_agent.h).
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

	for _, of := range g.entities {
		if of.Level != GPU {
			continue // the simulation has no incidents of single instances
		}

		state, err := e.node.Read(int(of.ID), gpu.ReadingDevice)
		if err != nil {
			continue // the driver does not answer: health is unknown
		}

		list = append(list, w.check(of, &state)...)
	}

	return list, nil
}

// check returns what is wrong with a GPU in the watched systems. What the driver does not report is
// no incident.
func (w *healthWatch) check(of Entity, s *sim.GPUState) []Incident {
	rows := s.Remapped.Or(gpu.RemappedRows{})
	all := []struct {
		wrong bool
		Incident
	}{
		{
			rows.Failure,
			Incident{
				of,
				HealthMemory,
				HealthFailure,
				errorRowRemapFailed,
				fmt.Sprintf(
					"GPU %d had uncorrectable memory errors and row remapping failed.",
					of.ID,
				),
			},
		},
		{rows.Pending, Incident{of, HealthMemory, HealthWarning, errorRowRemapsPending,
			fmt.Sprintf("GPU %d had memory errors and row remappings are pending", of.ID)}},
		{
			!s.MIGEnabled && s.ECC.UncorrectedVolatile > 0,
			Incident{
				of,
				HealthMemory,
				HealthFailure,
				errorVolatileDBE,
				fmt.Sprintf(
					"Detected %d volatile double-bit ECC error(s) in GPU %d.",
					s.ECC.UncorrectedVolatile,
					of.ID,
				),
			},
		},
		{
			grew(w.thermal, of.ID, s.ThermalViolation),
			Incident{of, HealthThermal, HealthWarning, errorClocksThermal,
				fmt.Sprintf("Detected clocks event due to thermal violation in GPU %d.", of.ID)},
		},
		{
			grew(w.power, of.ID, s.PowerViolation),
			Incident{of, HealthPower, HealthWarning, errorClocksPower,
				fmt.Sprintf("Detected clocks event due to power violation in GPU %d.", of.ID)},
		},
	}

	var list []Incident

	for i := range all {
		if all[i].wrong && w.systems&all[i].System != 0 {
			list = append(list, all[i].Incident)
		}
	}

	return list
}

// grew stores a GPU's time and reports whether it has grown since the last check; false at the
// first one.
func grew(last map[uint32]time.Duration, id uint32, now time.Duration) bool {
	before, checked := last[id]
	last[id] = now

	return checked && now > before
}
