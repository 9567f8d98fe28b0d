package main

// #include "abi.h"
import "C"

import (
	"math/bits"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// memoryCalls tell of memory, and of its errors.
func memoryCalls() map[string]call {
	eccMode := notNull(physical(gpu.ReadingECC, func(_ *sim.State, a args) result {
		*at[uint32](a, 1), *at[uint32](a, 2) = flag(true), flag(true)
		return success
	}), 1, 2)
	return map[string]call{
		"nvmlDeviceGetMemoryInfo":           notNull(before(newMemory, device(gpu.ReadingMemory, oldMemory, migMemory), device(gpu.ReadingMemory, memory, migMemory)), 1),
		"nvmlDeviceGetMemoryInfo_v2":        notNull(before(newMemory, missing, device(gpu.ReadingMemory, memory2, migMemory2)), 1),
		"nvmlDeviceGetBAR1MemoryInfo":       notNull(device(gpu.ReadingMemory, bar1, migBAR1), 1),
		"nvmlDeviceGetEccMode":              eccMode,
		"nvmlDeviceGetDefaultEccMode":       number(gpu.ReadingECC, func(*sim.State) uint32 { return flag(true) }),
		"nvmlDeviceGetTotalEccErrors":       notNull(physical(gpu.ReadingECC, totalErrors), 3),
		"nvmlDeviceGetDetailedEccErrors":    notNull(physical(gpu.ReadingECC, detailedErrors), 3),
		"nvmlDeviceGetMemoryErrorCounter":   notNull(physical(gpu.ReadingECC, errorCounter), 4),
		"nvmlDeviceGetRemappedRows":         notNull(physical(gpu.ReadingRowRemap, remappedRows), 1, 2, 3, 4),
		"nvmlDeviceGetRemappedRows_v2":      notNull(physical(gpu.ReadingRowRemap, remappedRows2), 1),
		"nvmlDeviceGetRowRemapperHistogram": notNull(physical(gpu.ReadingRowRemap, rowHistogram), 1),
	}
}

// before is a function that answered otherwise in drivers before a branch.
func before(branch int, old, now call) call {
	return func(l *library, a args) result {
		if l.node.Scenario().Node.DriverBranch() < branch {
			return old(l, a)
		}
		return now(l, a)
	}
}

// missing answers as the symbol of a library that does not have it.
func missing(*library, args) result { return functionNotFound }

// newMemory is a change of behaviour in R510: reserved memory is told, and total and used count it in the old call too
// (the latter unverified).
const newMemory = 510

// memory is the whole of a GPU. It needs rights where MIG is on (nvml.h).
func memory(s *sim.State, a args) result {
	return putMemory(s, a, s.MemoryTotal, s.MemoryUsed+s.MemoryReserved)
}

func oldMemory(s *sim.State, a args) result {
	return putMemory(s, a, s.MemoryTotal-s.MemoryReserved, s.MemoryUsed)
}

func putMemory(s *sim.State, a args, total, used uint64) result {
	if s.MIGEnabled && !s.Privileged {
		return noPermission
	}
	*at[C.sim_nvmlMemory_t](a, 1) = C.sim_nvmlMemory_t{total: C.sim_u64(total), free: C.sim_u64(total - used), used: C.sim_u64(used)}
	return success
}

// migMemory is that of the GPU instance: its compute instances share one memory and say the same.
func migMemory(_ *sim.State, d *sim.Device, a args) result {
	total, used := d.Instance.Profile.MemoryBytes, d.Instance.MemoryUsed
	*at[C.sim_nvmlMemory_t](a, 1) = C.sim_nvmlMemory_t{total: C.sim_u64(total), free: C.sim_u64(total - used), used: C.sim_u64(used)}
	return success
}

func memory2(s *sim.State, a args) result {
	m := at[C.sim_nvmlMemory_v2_t](a, 1)
	switch {
	case m.version != C.SIM_nvmlMemory_v2:
		return structMismatch
	case s.MIGEnabled && !s.Privileged:
		return noPermission
	}
	m.total, m.reserved, m.used = C.sim_u64(s.MemoryTotal), C.sim_u64(s.MemoryReserved), C.sim_u64(s.MemoryUsed)
	m.free = m.total - m.reserved - m.used
	return success
}

func migMemory2(_ *sim.State, d *sim.Device, a args) result {
	m := at[C.sim_nvmlMemory_v2_t](a, 1)
	if m.version != C.SIM_nvmlMemory_v2 {
		return structMismatch
	}
	m.total, m.reserved, m.used = C.sim_u64(d.Instance.Profile.MemoryBytes), 0, C.sim_u64(d.Instance.MemoryUsed)
	m.free = m.total - m.used
	return success
}

// bar1 is a window as large as the memory, rounded up to a power of two; the driver has 1 MiB of it in use.
func bar1(s *sim.State, a args) result {
	putBAR1(a, bar1Size(s), 1<<20)
	return success
}

// migBAR1 is a share as of the memory, less 1 MiB: a 3g.20gb of an A100 shows 32767 MiB.
func migBAR1(s *sim.State, d *sim.Device, a args) result {
	axis := 0
	for _, f := range s.Profiles {
		for _, p := range f.Placements {
			axis = max(axis, p.End())
		}
	}
	putBAR1(a, bar1Size(s)/uint64(axis)*uint64(d.Instance.Placement.Size)-1<<20, 0)
	return success
}

func bar1Size(s *sim.State) uint64 { return 1 << bits.Len64(s.MemoryTotal-1) }

func putBAR1(a args, total, used uint64) {
	*at[C.sim_nvmlBAR1Memory_t](a, 1) = C.sim_nvmlBAR1Memory_t{
		bar1Total: C.sim_u64(total), bar1Free: C.sim_u64(total - used), bar1Used: C.sim_u64(used),
	}
}

// eccErrors counts errors of a severity and a lifetime. With MIG on, a whole GPU tells no volatile counts.
func eccErrors(s *sim.State, severity, lifetime uint32) (uint64, result) {
	if s.MIGEnabled && lifetime == C.SIM_NVML_VOLATILE_ECC {
		return 0, notSupported
	}
	count, ok := map[[2]uint32]uint64{
		{C.SIM_NVML_MEMORY_ERROR_TYPE_CORRECTED, C.SIM_NVML_VOLATILE_ECC}:    s.ECC.CorrectedVolatile,
		{C.SIM_NVML_MEMORY_ERROR_TYPE_UNCORRECTED, C.SIM_NVML_VOLATILE_ECC}:  s.ECC.UncorrectedVolatile,
		{C.SIM_NVML_MEMORY_ERROR_TYPE_CORRECTED, C.SIM_NVML_AGGREGATE_ECC}:   s.ECC.CorrectedAggregate,
		{C.SIM_NVML_MEMORY_ERROR_TYPE_UNCORRECTED, C.SIM_NVML_AGGREGATE_ECC}: s.ECC.UncorrectedAggregate,
	}[[2]uint32{severity, lifetime}]
	if !ok {
		return 0, invalidArgument
	}
	return count, success
}

func totalErrors(s *sim.State, a args) result {
	count, ret := eccErrors(s, a.uint(1), a.uint(2))
	if ret == success {
		*at[uint64](a, 3) = count
	}
	return ret
}

func detailedErrors(s *sim.State, a args) result {
	count, ret := eccErrors(s, a.uint(1), a.uint(2))
	if ret == success {
		*at[C.sim_nvmlEccErrorCounts_t](a, 3) = C.sim_nvmlEccErrorCounts_t{deviceMemory: C.sim_u64(count)}
	}
	return ret
}

// errorCounter tells of device memory and SRAM; the simulation has errors in device memory alone.
func errorCounter(s *sim.State, a args) result {
	count, ret := eccErrors(s, a.uint(1), a.uint(2))
	if ret != success {
		return ret
	}
	switch a.uint(3) {
	case C.SIM_NVML_MEMORY_LOCATION_DEVICE_MEMORY:
	case C.SIM_NVML_MEMORY_LOCATION_SRAM:
		count = 0
	default:
		return notSupported
	}
	*at[uint64](a, 4) = count
	return success
}

func remappedRows(s *sim.State, a args) result {
	rows, ok := s.Remapped.Get()
	if !ok {
		return notSupported
	}
	*at[uint32](a, 1), *at[uint32](a, 2) = uint32(rows.Correctable), uint32(rows.Uncorrectable)
	*at[uint32](a, 3), *at[uint32](a, 4) = flag(rows.Pending), flag(rows.Failure)
	return success
}

func remappedRows2(s *sim.State, a args) result {
	rows, ok := s.Remapped.Get()
	if !ok {
		return notSupported
	}
	*at[C.sim_nvmlRemappedRowsInfo_v2_t](a, 1) = C.sim_nvmlRemappedRowsInfo_v2_t{
		corrActiveRemaps: C.sim_u32(rows.Correctable), uncActiveRemaps: C.sim_u32(rows.Uncorrectable),
		bPending: C.sim_u32(flag(rows.Pending)), bFailureOccurred: C.sim_u32(flag(rows.Failure)),
	}
	return success
}

// rowHistogram: every bank has all of its spare rows but for the few that were used.
func rowHistogram(s *sim.State, a args) result {
	rows, ok := s.Remapped.Get()
	if !ok {
		return notSupported
	}
	used := min(rows.Correctable+rows.Uncorrectable, banks)
	*at[C.sim_nvmlRowRemapperHistogramValues_t](a, 1) = C.sim_nvmlRowRemapperHistogramValues_t{
		max: C.sim_u32(banks - used), high: C.sim_u32(used),
	}
	return success
}

// banks is how many banks of memory nvidia-smi shows of an A100 or H100 (640).
const banks = 640
