package main

// #include "abi.h"
import "C"

import (
	"math/bits"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// memoryCalls returns the calls about memory and its errors.
func memoryCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetMemoryInfo": notNull(beforeBranch(
			reservedBranch,
			readDevice(
				gpu.ReadingMemory,
				oldMemory,
				migMemory,
			),
			readDevice(gpu.ReadingMemory, memory, migMemory),
		), 1),
		"nvmlDeviceGetMemoryInfo_v2": notNull(beforeBranch(reservedBranch,
			missingFunction, readDevice(gpu.ReadingMemory, memory2, migMemory2)), 1),
		"nvmlDeviceGetBAR1MemoryInfo": readDevice(gpu.ReadingMemory, bar1, migBAR1, 1),

		"nvmlDeviceGetEccMode": readGPU(gpu.ReadingECC, func(_ *sim.GPUState, a args) result {
			return putTwo(a, 1, flag(true), flag(true))
		}, 1, 2),
		"nvmlDeviceGetDefaultEccMode": readValue(
			gpu.ReadingECC,
			func(*sim.GPUState) uint32 { return flag(true) },
		),
		"nvmlDeviceGetTotalEccErrors":    readECC(totalErrors, 3),
		"nvmlDeviceGetDetailedEccErrors": readECC(detailedErrors, 3),
		"nvmlDeviceGetMemoryErrorCounter": readDevice(
			gpu.ReadingECC,
			errorCounter,
			migErrorCounter,
			4,
		),

		"nvmlDeviceGetRemappedRows":         readRows(remappedRows, 1, 2, 3, 4),
		"nvmlDeviceGetRemappedRows_v2":      readRows(remappedRows2, 1),
		"nvmlDeviceGetRowRemapperHistogram": readRows(rowHistogram, 1),
	}
}

// beforeBranch answers with old if the node's driver is older than a branch, else with current.
func beforeBranch(branch int, old, current call) call {
	return func(l *library, a args) result {
		if l.node.Scenario().Node.DriverBranch() < branch {
			return old(l, a)
		}

		return current(l, a)
	}
}

// missingFunction answers as go-nvml does for a function that the library does not export.
func missingFunction(*library, args) result { return functionNotFound }

// reservedBranch is the first driver branch that reports reserved memory. Since then,
// nvmlDeviceGetMemoryInfo counts reserved memory in the total and as used (the latter is
// unverified).
const reservedBranch = 510

// memory answers about all of a GPU's memory, which requires privileges if MIG is on (nvml.h).
func memory(s *sim.GPUState, a args) result {
	return putMemory(s, a, s.MemoryTotal, s.MemoryUsed+s.MemoryReserved)
}

func oldMemory(s *sim.GPUState, a args) result {
	return putMemory(s, a, s.MemoryTotal-s.MemoryReserved, s.MemoryUsed)
}

func putMemory(s *sim.GPUState, a args, total, used uint64) result {
	if s.MIGEnabled && !s.Privileged {
		return noPermission
	}

	return put(a, 1, memoryOf(total, used))
}

func memoryOf(total, used uint64) C.sim_nvmlMemory_t {
	return C.sim_nvmlMemory_t{
		total: C.sim_u64(total),
		free:  C.sim_u64(total - used),
		used:  C.sim_u64(used),
	}
}

// migMemory answers about the memory of the GPU instance, which its compute instances share.
func migMemory(_ *sim.GPUState, d *sim.MIGDevice, a args) result {
	return put(a, 1, memoryOf(d.Instance.Profile.MemoryBytes, d.Instance.MemoryUsed))
}

func memory2(s *sim.GPUState, a args) result {
	m := pointer[C.sim_nvmlMemory_v2_t](a, 1)
	switch {
	case m.version != C.SIM_nvmlMemory_v2:
		return structMismatch
	case s.MIGEnabled && !s.Privileged:
		return noPermission
	}

	m.total = C.sim_u64(s.MemoryTotal)
	m.reserved = C.sim_u64(s.MemoryReserved)
	m.used = C.sim_u64(s.MemoryUsed)
	m.free = m.total - m.reserved - m.used

	return success
}

func migMemory2(_ *sim.GPUState, d *sim.MIGDevice, a args) result {
	m := pointer[C.sim_nvmlMemory_v2_t](a, 1)
	if m.version != C.SIM_nvmlMemory_v2 {
		return structMismatch
	}

	m.total = C.sim_u64(d.Instance.Profile.MemoryBytes)
	m.reserved = 0
	m.used = C.sim_u64(d.Instance.MemoryUsed)
	m.free = m.total - m.used

	return success
}

// bar1 answers with a window as large as the memory, rounded up to a power of two. The 1 MiB that is
// used of it is chosen.
func bar1(s *sim.GPUState, a args) result { return putBAR1(a, bar1Size(s), 1<<20) }

// migBAR1 answers with a part of the GPU's window that is as large as the MIG device's part of the
// memory, less 1 MiB: a 3g.20gb of an A100 shows 32767 MiB.
func migBAR1(s *sim.GPUState, d *sim.MIGDevice, a args) result {
	units := 0 // of the placement axis
	for _, f := range s.Profiles {
		for _, p := range f.Placements {
			units = max(units, p.End())
		}
	}

	share := bar1Size(s) / uint64(units) * uint64(d.Instance.Placement.Size)

	return putBAR1(a, share-1<<20, 0)
}

func bar1Size(s *sim.GPUState) uint64 { return 1 << bits.Len64(s.MemoryTotal-1) }

func putBAR1(a args, total, used uint64) result {
	return put(a, 1, C.sim_nvmlBAR1Memory_t{
		bar1Total: C.sim_u64(total), bar1Free: C.sim_u64(total - used), bar1Used: C.sim_u64(used),
	})
}

// readECC answers with a number of memory errors. The second argument says of which severity, the
// third whether since the driver was loaded or in all.
func readECC(answer func(count uint64, a args) result, pointer int) call {
	return readGPU(gpu.ReadingECC, func(s *sim.GPUState, a args) result {
		count, err := s.ECCErrors(a.uint(1), a.uint(2))
		if err != nil {
			return resultOf(err)
		}

		return answer(count, a)
	}, pointer)
}

func totalErrors(count uint64, a args) result { return put(a, 3, count) }

func detailedErrors(count uint64, a args) result {
	return put(a, 3, C.sim_nvmlEccErrorCounts_t{deviceMemory: C.sim_u64(count)})
}

// errorCounter answers with the errors of device memory or SRAM. All simulated errors are in device
// memory.
func errorCounter(s *sim.GPUState, a args) result {
	count, err := s.ECCErrors(a.uint(1), a.uint(2))
	if err != nil {
		return resultOf(err)
	}

	switch a.uint(3) {
	case C.SIM_NVML_MEMORY_LOCATION_DEVICE_MEMORY:
		return put(a, 4, count)
	case C.SIM_NVML_MEMORY_LOCATION_SRAM:
		return put[uint64](a, 4, 0)
	}

	return notSupported
}

// migErrorCounter answers with the uncorrectable errors of SRAM, which are 0, and supports nothing
// else: see sim.GPUState.HasVolatileECC.
func migErrorCounter(s *sim.GPUState, _ *sim.MIGDevice, a args) result {
	if !s.HasVolatileECC() || a.uint(1) != C.SIM_NVML_MEMORY_ERROR_TYPE_UNCORRECTED ||
		a.uint(2) != C.SIM_NVML_VOLATILE_ECC || a.uint(3) != C.SIM_NVML_MEMORY_LOCATION_SRAM {
		return notSupported
	}

	return put[uint64](a, 4, 0)
}

// readRows answers about the remapped rows of a GPU, which not all GPUs report.
func readRows(answer func(rows gpu.RemappedRows, a args) result, pointers ...int) call {
	return readGPU(gpu.ReadingRowRemap, func(s *sim.GPUState, a args) result {
		rows, ok := s.Remapped.Get()
		if !ok {
			return notSupported
		}

		return answer(rows, a)
	}, pointers...)
}

func remappedRows(rows gpu.RemappedRows, a args) result {
	putTwo(a, 1, uint32(rows.Correctable), uint32(rows.Uncorrectable))
	return putTwo(a, 3, flag(rows.Pending), flag(rows.Failure))
}

func remappedRows2(rows gpu.RemappedRows, a args) result {
	return put(a, 1, C.sim_nvmlRemappedRowsInfo_v2_t{
		corrActiveRemaps: C.sim_u32(rows.Correctable),
		uncActiveRemaps:  C.sim_u32(rows.Uncorrectable),
		bPending:         C.sim_u32(flag(rows.Pending)),
		bFailureOccurred: C.sim_u32(flag(rows.Failure)),
	})
}

// banks is how many memory banks nvidia-smi shows for an A100 or H100.
const banks = 640

// rowHistogram answers as if each remapped row was in a bank of its own. Such a bank has most of its
// spare rows left (high), the others have all (max).
func rowHistogram(rows gpu.RemappedRows, a args) result {
	used := min(rows.Correctable+rows.Uncorrectable, banks)
	return put(
		a,
		1,
		C.sim_nvmlRowRemapperHistogramValues_t{max: C.sim_u32(banks - used), high: C.sim_u32(used)},
	)
}
