package sim

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// faultKeys are the keys of a kind of fault beside kind, at and for.
type faultKeys [2][]string

// The two lists of faultKeys.
const (
	requiredKeys = iota
	optionalKeys
)

// keysOfFaults returns the keys of each kind of fault.
func keysOfFaults() map[FaultKind]faultKeys {
	keys := map[FaultKind]faultKeys{
		FaultNotSupported:  {{"reading"}, {"gpu"}},
		FaultNoPermission:  {nil, {"gpu", "reading", "on", "after"}},
		FaultSlow:          {{"delay"}, {"gpu"}},
		FaultXID:           {{"gpu", "xid"}, {"gi", "ci", "recovery", "on", "after"}},
		FaultOverheat:      {{"celsius"}, {"gpu"}},
		FaultReconfigure:   {{"gpu", "layout"}, {"during", "on", "after"}},
		FaultDestroyLies:   {nil, {"gpu", "on", "after", "times"}},
		FaultChangeFails:   {{"on", "error"}, {"gpu", "after", "times"}},
		FaultElsewhere:     {{"on"}, {"gpu", "after", "times"}},
		FaultProcessStarts: {nil, {"gpu", "after", "times"}},
		FaultKubeletSlow:   {{"delay"}, nil},
		FaultPluginSlow:    {{"delay"}, nil},
		FaultAPIServerSlow: {{"delay"}, nil},
		FaultUnbind:        {{"gpu"}, nil},
		FaultClockJump:     {{"by"}, nil},
	}
	for _, kind := range []FaultKind{FaultHang, FaultLost, FaultResetRequired} {
		keys[kind] = faultKeys{optionalKeys: {"gpu", "during", "on", "after"}}
	}

	for _, kind := range []FaultKind{FaultPowerBrake, FaultActivityNaN, FaultActivityAbove} {
		keys[kind] = faultKeys{optionalKeys: {"gpu"}}
	}

	for _, kind := range []FaultKind{
		FaultDriverLock,
		FaultVersionMismatch,
		FaultNoDriver,
		FaultReboot,
		FaultEventsLost,
		FaultPluginStale,
		FaultKubeletDown,
		FaultKubeletRestart,
		FaultAPIServerDown,
		FaultBadCheckpoint,
		FaultDCGMDown,
		FaultDCGMRestart,
		FaultDCGMHang,
		FaultDCGMPaused,
		FaultDCGMNonRoot,
		FaultDCGMVersion,
		FaultDCGMNoModule,
		FaultDCGMGroups,
	} {
		keys[kind] = faultKeys{}
	}

	return keys
}

// faultKinds returns all kinds of faults by their names in scenarios.
func faultKinds() map[string]FaultKind {
	kinds := make(map[string]FaultKind)
	for kind := range keysOfFaults() {
		kinds[string(kind)] = kind
	}

	return kinds
}

// changesOf returns the values that the key "on" can have for a kind of fault.
func changesOf(kind FaultKind) []string {
	var list []string

	for _, op := range []ChangeOp{opCreateGI, opCreateCI, opDestroyGI, opDestroyCI, opMIGMode, anyChange} {
		creates := op == opCreateGI || op == opCreateCI
		destroys := op == opDestroyGI || op == opDestroyCI

		if op != anyChange &&
			(kind == FaultElsewhere && !creates || kind == FaultDestroyLies && !destroys) {
			continue
		}

		list = append(list, string(op))
	}

	return list
}

// faultReadings returns the readings that a fault can strike, by their names in scenarios.
func faultReadings() map[string]gpu.Reading {
	readings := make(map[string]gpu.Reading)
	for _, r := range []gpu.Reading{
		gpu.ReadingInventory,
		gpu.ReadingMIG,
		gpu.ReadingMemory,
		gpu.ReadingUtilization,
		gpu.ReadingPower,
		gpu.ReadingEnergy,
		gpu.ReadingTemperature,
		gpu.ReadingClocks,
		gpu.ReadingClockEvents,
		gpu.ReadingPCIe,
		gpu.ReadingNVLink,
		gpu.ReadingECC,
		gpu.ReadingRowRemap,
		gpu.ReadingRecovery,
		gpu.ReadingProcesses,
		gpu.ReadingEvents,
		gpu.ReadingActivity,
		gpu.ReadingFans,
		gpu.ReadingMedia,
		gpu.ReadingFabric,
	} {
		readings[string(r)] = r
	}

	return readings
}
