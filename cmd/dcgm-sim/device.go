package main

// #include "abi.h"
import "C"

import (
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// deviceCalls answer about the engine, GPUs and their instances. The numbers are the indexes of the
// arguments that must not be NULL.
func deviceCalls() map[string]call {
	return map[string]call{
		"dcgmHostengineVersionInfo":        onSession(engineVersion, 1),
		"dcgmGetAllDevices":                onSession(devices, 1, 2),
		"dcgmGetAllSupportedDevices":       onSession(devices, 1, 2),
		"dcgmGetEntityGroupEntities":       onSession(entityGroup, 2, 3),
		"dcgmGetDeviceAttributes":          onSession(attributes, 2),
		"dcgmGetGpuStatus":                 onSession(gpuStatus, 2),
		"dcgmGetGpuInstanceHierarchy":      onSession(hierarchy, 1),
		"dcgmGetNvLinkLinkStatus":          onSession(linkStatus, 1),
		"dcgmProfGetSupportedMetricGroups": onSession(metricGroups, 1),
	}
}

// putVersion writes a version in the form of DCGM's build information.
func putVersion(to *C.sim_dcgmVersionInfo_v2, version string) error {
	if to.version != C.SIM_dcgmVersionInfo_version2 {
		return hostengine.VersionMismatch
	}

	putCString(to.rawBuildInfoString[:], "version:"+version+";arch:x86_64;buildtype:Simulated")

	return nil
}

func libraryVersion(_ *library, a args) hostengine.Code {
	return codeOf(putVersion(pointer[C.sim_dcgmVersionInfo_v2](a, 0), hostengine.Version))
}

func engineVersion(_ *library, s *hostengine.Session, a args) error {
	version, err := s.Version()
	if err != nil {
		return err
	}

	return putVersion(pointer[C.sim_dcgmVersionInfo_v2](a, 1), version)
}

func devices(_ *library, s *hostengine.Session, a args) error {
	ids, err := s.GPUs()
	if err != nil {
		return err
	}

	n := copy(array[uint32](a, 1, C.SIM_MAX_DEVICES), ids)
	*pointer[int32](a, 2) = int32(n)

	return nil
}

func entityGroup(_ *library, s *hostengine.Session, a args) error {
	ids, err := entitiesOf(s, hostengine.Level(a.uint(1)))
	if err != nil {
		return err
	}

	// The client learns how many there are even if it has no room for them.
	room := int(*pointer[int32](a, 3))
	*pointer[int32](a, 3) = int32(len(ids))

	if room < len(ids) {
		return tooSmall
	}

	copy(array[uint32](a, 2, room), ids)

	return nil
}

// entitiesOf returns the ids of all GPUs, GPU instances or compute instances.
func entitiesOf(s *hostengine.Session, level hostengine.Level) ([]uint32, error) {
	if level == hostengine.GPU {
		return s.GPUs()
	}

	members, err := s.Hierarchy()
	if err != nil {
		return nil, err
	}

	var ids []uint32
	for _, m := range members {
		if m.Entity.Level == level {
			ids = append(ids, m.Entity.ID)
		}
	}

	return ids, nil
}

func gpuStatus(_ *library, s *hostengine.Session, a args) error {
	const ok, lost = 1, 4 // DcgmEntityStatus_t

	_, err := s.Device(int(a.uint(1)))
	switch code := codeOf(err); code {
	case hostengine.OK:
		*pointer[uint32](a, 2) = ok
	case hostengine.NVMLError:
		*pointer[uint32](a, 2) = lost
	default:
		return code
	}

	return nil
}

// blank32 is DCGM_INT32_BLANK, the number that stands for no value.
const blank32 = 0x7ffffff0

func attributes(l *library, s *hostengine.Session, a args) error {
	to := pointer[C.sim_dcgmDeviceAttributes_v3](a, 2)
	if to.version != C.SIM_dcgmDeviceAttributes_version3 {
		return hostengine.VersionMismatch
	}

	state, err := s.Device(int(a.uint(1)))
	if err != nil {
		return err
	}

	*to = C.sim_dcgmDeviceAttributes_v3{version: to.version}
	to.thermalSettings.slowdownTemp = blank32
	to.thermalSettings.shutdownTemp = blank32
	to.settings.persistenceModeEnabled = 1
	to.settings.migModeEnabled = flag(state.MIGEnabled)

	limit := C.uint(state.LimitWatts)
	p := &to.powerLimits
	p.curPowerLimit = limit
	p.defaultPowerLimit = limit
	p.enforcedPowerLimit = limit
	p.minPowerLimit = blank32
	p.maxPowerLimit = limit

	id := &to.identifiers
	putCString(id.brandName[:], hostengine.Brand)
	putCString(id.deviceName[:], state.Name)
	putCString(id.pciBusId[:], hostengine.BusID(state.PCI))
	putCString(id.serial[:], state.Serial)
	putCString(id.uuid[:], string(state.UUID))
	putCString(id.vbios[:], state.VBIOS)
	putCString(id.inforomImageVersion[:], hostengine.TextNotSupported)
	putCString(id.driverVersion[:], l.node.Scenario().Node.Driver)
	id.pciDeviceId = C.uint(state.PCI.DeviceID)
	id.pciSubSystemId = C.uint(state.PCI.Subsystem)

	const mebi = 1 << 20
	m := &to.memoryUsage
	m.bar1Total = blank32
	m.fbTotal = C.uint(state.MemoryTotal / mebi)
	m.fbUsed = C.uint(state.MemoryUsed / mebi)
	m.fbFree = C.uint((state.MemoryTotal - state.MemoryUsed - state.MemoryReserved) / mebi)

	return nil
}

func hierarchy(_ *library, s *hostengine.Session, a args) error {
	to := pointer[C.sim_dcgmMigHierarchy_v2](a, 1)
	if to.version != C.SIM_dcgmMigHierarchy_version2 {
		return hostengine.VersionMismatch
	}

	members, err := s.Hierarchy()
	switch {
	case err != nil:
		return err
	case len(members) > len(to.entityList):
		return tooSmall
	}

	to.count = C.uint(len(members))

	for i := range members {
		m := &members[i]
		c := &to.entityList[i]
		*c = C.sim_dcgmMigHierarchyInfo_v2{entity: pair(m.Entity), parent: pair(m.Parent)}

		putCString(c.info.gpuUuid[:], string(m.UUID))
		c.info.nvmlGpuIndex = C.uint(m.GPU)
		c.info.nvmlInstanceId = C.uint(m.Instance)
		c.info.nvmlMigProfileId = C.uint(m.ProfileID)
		c.info.nvmlProfileSlices = C.uint(m.Slices)
		c.info.nvmlComputeInstanceId = ^C.uint(0) // none: m is a GPU instance, unless it says otherwise

		if m.Entity.Level == hostengine.ComputeInstance {
			c.info.nvmlComputeInstanceId = C.uint(m.Compute)
		}
	}

	return nil
}

func pair(e hostengine.Entity) C.sim_dcgmGroupEntityPair_t {
	return C.sim_dcgmGroupEntityPair_t{entityGroupId: C.uint(e.Level), entityId: C.uint(e.ID)}
}

// linkStatus reports all links of all GPUs as up; there are no switches.
func linkStatus(_ *library, s *hostengine.Session, a args) error {
	const up = 3 // DcgmNvLinkLinkStateUp; 0: not supported

	to := pointer[C.sim_dcgmNvLinkStatus_v4](a, 1)
	if to.version != C.SIM_dcgmNvLinkStatus_version4 {
		return hostengine.VersionMismatch
	}

	ids, err := s.GPUs()
	if err != nil {
		return err
	}

	*to = C.sim_dcgmNvLinkStatus_v4{version: to.version, numGpus: C.uint(len(ids))}

	for i, id := range ids {
		state, err := s.Device(int(id))
		if err != nil {
			return err
		}

		to.gpus[i].entityId = C.uint(id)
		for link := range min(state.NVLinks, len(to.gpus[i].linkState)) {
			to.gpus[i].linkState[link] = up
		}
	}

	return nil
}

// metricGroups answers with one group of all profiling fields: all can be measured at the same time,
// without turns.
func metricGroups(_ *library, s *hostengine.Session, a args) error {
	to := pointer[C.sim_dcgmProfGetMetricGroups_v3](a, 1)
	if to.version != C.SIM_dcgmProfGetMetricGroups_version3 {
		return hostengine.VersionMismatch
	}

	if err := s.MetricGroups(int(to.gpuId)); err != nil {
		return err
	}

	g := &to.metricGroups[0]
	*g = C.sim_dcgmProfMetricGroupInfo_v2{majorId: 1, minorId: 1}
	ids := unsafe.Slice(&g.fieldIds[0], len(g.fieldIds))

	// DCGM_FI_PROF_GR_ENGINE_ACTIVE to DCGM_FI_PROF_NVLINK_RX_BYTES.
	for f := uint16(1001); f <= 1012; f++ {
		ids[g.numFieldIds] = C.ushort(f)
		g.numFieldIds++
	}

	to.numMetricGroups = 1

	return nil
}
