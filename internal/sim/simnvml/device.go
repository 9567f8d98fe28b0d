package simnvml

import (
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// gpuHandle is the handle of a physical GPU.
type gpuHandle struct {
	node  *sim.Node
	index int
	// states has *sim.GPUState for calls to use again: a state is large, and there are many calls.
	states *sync.Pool
}

func (d *gpuHandle) branch() int { return d.node.Scenario().Node.DriverBranch() }

// read makes one call to the driver, and takes a value out of the GPU's state. value must not keep
// the state.
func read[T any](
	d *gpuHandle,
	reading gpu.Reading,
	value func(s *sim.GPUState) (T, nvml.Return),
) (T, nvml.Return) {
	s, spare := d.states.Get().(*sim.GPUState)
	if !spare {
		s = new(sim.GPUState)
	}

	defer d.states.Put(s)

	var err error
	if *s, err = d.node.Read(d.index, reading); err != nil {
		var zero T
		return zero, returnOf(err)
	}

	return value(s)
}

// readFact reads a value that every GPU reports.
func readFact[T any](d *gpuHandle, reading gpu.Reading, value func(s *sim.GPUState) T) (T, nvml.Return) {
	return read(
		d,
		reading,
		func(s *sim.GPUState) (T, nvml.Return) { return value(s), nvml.SUCCESS },
	)
}

// readOptional reads a value that some GPUs do not support, or not in every mode.
func readOptional[T any](
	d *gpuHandle,
	reading gpu.Reading,
	value func(s *sim.GPUState) gpu.Opt[T],
) (T, nvml.Return) {
	return read(d, reading, func(s *sim.GPUState) (T, nvml.Return) {
		v, ok := value(s).Get()
		if !ok {
			return v, nvml.ERROR_NOT_SUPPORTED
		}

		return v, nvml.SUCCESS
	})
}

// readChecked reads a value that can fail with an error of the node.
func readChecked[T any](
	d *gpuHandle,
	reading gpu.Reading,
	value func(s *sim.GPUState) (T, error),
) (T, nvml.Return) {
	return read(d, reading, func(s *sim.GPUState) (T, nvml.Return) {
		v, err := value(s)
		return v, returnOf(err)
	})
}

func (d *gpuHandle) GetUUID() (string, nvml.Return) {
	return readFact(d, gpu.ReadingDevice, func(s *sim.GPUState) string { return string(s.UUID) })
}

func (d *gpuHandle) GetName() (string, nvml.Return) {
	return readFact(d, gpu.ReadingInventory, func(s *sim.GPUState) string { return s.Name })
}

func (d *gpuHandle) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return readFact(d, gpu.ReadingInventory, func(s *sim.GPUState) nvml.DeviceArchitecture {
		switch s.Architecture {
		case sim.Hopper:
			return nvml.DEVICE_ARCH_HOPPER
		case sim.Blackwell:
			return nvml.DEVICE_ARCH_BLACKWELL
		}

		return nvml.DEVICE_ARCH_AMPERE
	})
}

func (d *gpuHandle) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	capability, ret := readFact(
		d,
		gpu.ReadingInventory,
		func(s *sim.GPUState) [2]int { return s.Capability },
	)

	return capability[0], capability[1], ret
}

// GetNumGpuCores is not supported while MIG is on (nvml.h).
func (d *gpuHandle) GetNumGpuCores() (int, nvml.Return) {
	return read(d, gpu.ReadingInventory, func(s *sim.GPUState) (int, nvml.Return) {
		if s.MIGEnabled {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}

		return s.Cores, nvml.SUCCESS
	})
}

func (d *gpuHandle) GetSerial() (string, nvml.Return) {
	return readFact(d, gpu.ReadingInventory, func(s *sim.GPUState) string { return s.Serial })
}

func (d *gpuHandle) GetVbiosVersion() (string, nvml.Return) {
	return readFact(d, gpu.ReadingInventory, func(s *sim.GPUState) string { return s.VBIOS })
}

func (d *gpuHandle) GetMinorNumber() (int, nvml.Return) {
	return readFact(d, gpu.ReadingInventory, func(s *sim.GPUState) int { return s.Minor })
}

func (d *gpuHandle) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return readFact(d, gpu.ReadingInventory, func(s *sim.GPUState) nvml.PciInfo {
		info := nvml.PciInfo{
			Domain: s.PCI.Domain, Bus: s.PCI.Bus, Device: s.PCI.Device,
			PciDeviceId: s.PCI.DeviceID, PciSubSystemId: s.PCI.Subsystem,
		}
		cString(
			info.BusId[:],
			fmt.Sprintf("%08X:%02X:%02X.0", s.PCI.Domain, s.PCI.Bus, s.PCI.Device),
		)
		cString(
			info.BusIdLegacy[:],
			fmt.Sprintf("%04X:%02X:%02X.0", s.PCI.Domain, s.PCI.Bus, s.PCI.Device),
		)

		return info
	})
}

// cString writes a string that ends with NUL.
func cString(to []int8, text string) {
	n := min(len(text), len(to)-1)
	for i := range n {
		to[i] = int8(text[i])
	}

	to[n] = 0
}

// GetMemoryInfo depends on the driver's branch: before R510 there is no nvmlDeviceGetMemoryInfo_v2,
// and the total leaves out the reserved memory. With MIG on, the memory of the whole GPU needs root's
// rights (nvml.h).
func (d *gpuHandle) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
	return read(d, gpu.ReadingMemory, func(s *sim.GPUState) (nvml.Memory_v2, nvml.Return) {
		if s.MIGEnabled && !s.Privileged {
			return nvml.Memory_v2{}, nvml.ERROR_NO_PERMISSION
		}

		info := nvml.Memory_v2{
			Total: s.MemoryTotal, Reserved: s.MemoryReserved, Used: s.MemoryUsed,
			Free: s.MemoryTotal - s.MemoryReserved - s.MemoryUsed,
		}

		info.Version = nvml.STRUCT_VERSION(info, 2)
		if d.branch() < 510 {
			info.Version = 0
			info.Total = s.MemoryTotal - s.MemoryReserved
			info.Reserved = 0
		}

		return info, nvml.SUCCESS
	})
}

func (d *gpuHandle) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return readFact(d, gpu.ReadingInventory, func(s *sim.GPUState) nvml.ComputeMode {
		if s.ExclusiveProcess {
			return nvml.COMPUTEMODE_EXCLUSIVE_PROCESS
		}

		return nvml.COMPUTEMODE_DEFAULT
	})
}

func (d *gpuHandle) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return readFact(d, gpu.ReadingInventory, func(s *sim.GPUState) nvml.EnableState {
		if s.PersistenceMode {
			return nvml.FEATURE_ENABLED
		}

		return nvml.FEATURE_DISABLED
	})
}

// GetComputeRunningProcesses lists the MPS server instead of its clients. With MIG on, the list of the
// whole GPU needs root's rights.
func (d *gpuHandle) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.processes(func(p sim.Process) bool { return !p.MPSClient })
}

func (d *gpuHandle) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.processes(func(p sim.Process) bool { return p.MPSClient })
}

// GetGraphicsRunningProcesses returns an empty list: no simulated process uses graphics.
func (d *gpuHandle) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.processes(func(sim.Process) bool { return false })
}

func (d *gpuHandle) processes(wanted func(sim.Process) bool) ([]nvml.ProcessInfo, nvml.Return) {
	return read(d, gpu.ReadingProcesses, func(s *sim.GPUState) ([]nvml.ProcessInfo, nvml.Return) {
		if s.MIGEnabled && !s.Privileged {
			return nil, nvml.ERROR_NO_PERMISSION
		}

		return processInfos(s.Processes, wanted), nvml.SUCCESS
	})
}

func processInfos(processes []sim.Process, wanted func(sim.Process) bool) []nvml.ProcessInfo {
	infos := []nvml.ProcessInfo{}

	for _, p := range processes {
		if !wanted(p) {
			continue
		}

		infos = append(infos, nvml.ProcessInfo{
			Pid:               p.PID,
			UsedGpuMemory:     p.MemoryBytes,
			GpuInstanceId:     idOrNone(p.Instance),
			ComputeInstanceId: idOrNone(p.Compute),
		})
	}

	return infos
}

// idOrNone returns an id in NVML's form, which has a number for an absent id.
func idOrNone[T gpu.InstanceID | gpu.ComputeID](id gpu.Opt[T]) uint32 {
	v, ok := id.Get()
	if !ok {
		return nvmlsource.NoInstance
	}

	return uint32(v)
}
