package simnvml

import (
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// device is the handle of a physical GPU.
type device struct {
	node  *sim.Node
	index int
	// states has what calls that have returned were answered from: a state is large, and calls are
	// many.
	states *sync.Pool
}

func (d *device) branch() int { return d.node.Scenario().Node.DriverBranch() }

// read makes one call to the driver and takes a value out of what it knows, which must not be kept.
func read[T any](
	d *device,
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

// fact reads something that every GPU reports.
func fact[T any](d *device, reading gpu.Reading, value func(s *sim.GPUState) T) (T, nvml.Return) {
	return read(
		d,
		reading,
		func(s *sim.GPUState) (T, nvml.Return) { return value(s), nvml.SUCCESS },
	)
}

// optional reads something that not every GPU reports in every mode.
func optional[T any](
	d *device,
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

// checked reads something that answers with an error of the node.
func checked[T any](
	d *device,
	reading gpu.Reading,
	value func(s *sim.GPUState) (T, error),
) (T, nvml.Return) {
	return read(d, reading, func(s *sim.GPUState) (T, nvml.Return) {
		v, err := value(s)
		return v, returnOf(err)
	})
}

func (d *device) GetUUID() (string, nvml.Return) {
	return fact(d, gpu.ReadingDevice, func(s *sim.GPUState) string { return string(s.UUID) })
}

func (d *device) GetName() (string, nvml.Return) {
	return fact(d, gpu.ReadingInventory, func(s *sim.GPUState) string { return s.Name })
}

func (d *device) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return fact(d, gpu.ReadingInventory, func(s *sim.GPUState) nvml.DeviceArchitecture {
		switch s.Architecture {
		case sim.Hopper:
			return nvml.DEVICE_ARCH_HOPPER
		case sim.Blackwell:
			return nvml.DEVICE_ARCH_BLACKWELL
		}

		return nvml.DEVICE_ARCH_AMPERE
	})
}

func (d *device) GetCudaComputeCapability() (major, minor int, ret nvml.Return) {
	capability, ret := fact(
		d,
		gpu.ReadingInventory,
		func(s *sim.GPUState) [2]int { return s.Capability },
	)

	return capability[0], capability[1], ret
}

// GetNumGpuCores is not supported while MIG is on (nvml.h).
func (d *device) GetNumGpuCores() (int, nvml.Return) {
	return read(d, gpu.ReadingInventory, func(s *sim.GPUState) (int, nvml.Return) {
		if s.MIGEnabled {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}

		return s.Cores, nvml.SUCCESS
	})
}

func (d *device) GetSerial() (string, nvml.Return) {
	return fact(d, gpu.ReadingInventory, func(s *sim.GPUState) string { return s.Serial })
}

func (d *device) GetVbiosVersion() (string, nvml.Return) {
	return fact(d, gpu.ReadingInventory, func(s *sim.GPUState) string { return s.VBIOS })
}

func (d *device) GetMinorNumber() (int, nvml.Return) {
	return fact(d, gpu.ReadingInventory, func(s *sim.GPUState) int { return s.Minor })
}

func (d *device) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return fact(d, gpu.ReadingInventory, func(s *sim.GPUState) nvml.PciInfo {
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

// GetMemoryInfo follows the driver's branch: before R510 there is no nvmlDeviceGetMemoryInfo_v2,
// and the total leaves out what the driver has reserved. The aggregate of a GPU with MIG needs
// rights (nvml.h).
func (d *device) GetMemoryInfo() (nvml.Memory_v2, nvml.Return) {
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

func (d *device) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return fact(d, gpu.ReadingInventory, func(s *sim.GPUState) nvml.ComputeMode {
		if s.ExclusiveProcess {
			return nvml.COMPUTEMODE_EXCLUSIVE_PROCESS
		}

		return nvml.COMPUTEMODE_DEFAULT
	})
}

func (d *device) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return fact(d, gpu.ReadingInventory, func(s *sim.GPUState) nvml.EnableState {
		if s.PersistenceMode {
			return nvml.FEATURE_ENABLED
		}

		return nvml.FEATURE_DISABLED
	})
}

// GetComputeRunningProcesses lists the MPS server instead of its clients; with MIG the list of the
// whole GPU needs rights.
func (d *device) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.processes(func(p sim.Process) bool { return !p.MPSClient })
}

func (d *device) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.processes(func(p sim.Process) bool { return p.MPSClient })
}

// GetGraphicsRunningProcesses is always empty: nothing simulated draws.
func (d *device) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.processes(func(sim.Process) bool { return false })
}

func (d *device) processes(wanted func(sim.Process) bool) ([]nvml.ProcessInfo, nvml.Return) {
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

// idOrNone is NVML's form of an id that may be absent.
func idOrNone[T gpu.InstanceID | gpu.ComputeID](id gpu.Opt[T]) uint32 {
	v, ok := id.Get()
	if !ok {
		return nvmlsource.NoInstance
	}

	return uint32(v)
}
