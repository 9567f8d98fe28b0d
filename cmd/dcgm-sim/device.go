package main

// #include "abi.h"
import "C"

import (
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// deviceCalls are those about GPUs and their instances.
func deviceCalls() map[string]call {
	return map[string]call{
		"dcgmHostengineVersionInfo":        connected(engineVersion, 1),
		"dcgmGetAllDevices":                connected(devices, 1, 2),
		"dcgmGetAllSupportedDevices":       connected(devices, 1, 2),
		"dcgmGetEntityGroupEntities":       connected(entityGroup, 2, 3),
		"dcgmGetDeviceAttributes":          connected(attributes, 2),
		"dcgmGetGpuStatus":                 connected(gpuStatus, 2),
		"dcgmGetGpuInstanceHierarchy":      connected(hierarchy, 1),
		"dcgmGetNvLinkLinkStatus":          connected(linkStatus, 1),
		"dcgmProfGetSupportedMetricGroups": connected(metricGroups, 1),
	}
}

// versionInfo fills in what DCGM says of a build.
func versionInfo(to *C.sim_dcgmVersionInfo_v2, version string) hostengine.Code {
	if to.version != C.SIM_dcgmVersionInfo_version2 {
		return hostengine.VersionMismatch
	}
	cString(to.rawBuildInfoString[:], "version:"+version+";arch:x86_64;buildtype:Simulated")
	return hostengine.OK
}

func libraryVersion(_ *library, a args) hostengine.Code {
	return versionInfo(at[C.sim_dcgmVersionInfo_v2](a, 0), hostengine.Version)
}

func engineVersion(_ *library, s *hostengine.Session, a args) hostengine.Code {
	version, err := s.Version()
	if err != nil {
		return codeOf(err)
	}
	return versionInfo(at[C.sim_dcgmVersionInfo_v2](a, 1), version)
}

// versionOfConnect tells whether the parameters of a connection have the version that this library knows.
func versionOfConnect(a args) bool {
	return at[C.sim_dcgmConnectV2Params_v2](a, 1).version == C.SIM_dcgmConnectV2Params_version2
}

func devices(_ *library, s *hostengine.Session, a args) hostengine.Code {
	ids, err := s.GPUs()
	if err != nil {
		return codeOf(err)
	}
	n := copy(array[uint32](a, 1, C.SIM_MAX_DEVICES), ids)
	*at[int32](a, 2) = int32(n)
	return hostengine.OK
}

func entityGroup(_ *library, s *hostengine.Session, a args) hostengine.Code {
	level := hostengine.Level(a.uint(1))
	ids, err := s.GPUs()
	if level != hostengine.GPU {
		var members []hostengine.Member
		ids = nil
		members, err = s.Hierarchy()
		for i := range members {
			if members[i].Entity.Level == level {
				ids = append(ids, members[i].Entity.ID)
			}
		}
	}
	if err != nil {
		return codeOf(err)
	}
	room := int(*at[int32](a, 3))
	*at[int32](a, 3) = int32(len(ids))
	if room < len(ids) {
		return tooSmall
	}
	copy(array[uint32](a, 2, room), ids)
	return hostengine.OK
}

func gpuStatus(_ *library, s *hostengine.Session, a args) hostengine.Code {
	const ok, lost = 1, 4 // DcgmEntityStatus_t
	_, err := s.Device(int(a.uint(1)))
	switch code := codeOf(err); code {
	case hostengine.OK:
		*at[uint32](a, 2) = ok
	case hostengine.NVMLError:
		*at[uint32](a, 2) = lost
	default:
		return code
	}
	return hostengine.OK
}

const blank32 = 0x7ffffff0 // DCGM_INT32_BLANK

func attributes(l *library, s *hostengine.Session, a args) hostengine.Code {
	to := at[C.sim_dcgmDeviceAttributes_v3](a, 2)
	if to.version != C.SIM_dcgmDeviceAttributes_version3 {
		return hostengine.VersionMismatch
	}
	state, err := s.Device(int(a.uint(1)))
	if err != nil {
		return codeOf(err)
	}
	const mebi = 1 << 20
	*to = C.sim_dcgmDeviceAttributes_v3{version: to.version}
	to.thermalSettings.slowdownTemp, to.thermalSettings.shutdownTemp = blank32, blank32
	limit := C.uint(state.LimitWatts)
	p := &to.powerLimits
	p.curPowerLimit, p.defaultPowerLimit, p.enforcedPowerLimit, p.minPowerLimit, p.maxPowerLimit = limit, limit, limit, blank32, limit
	id := &to.identifiers
	cString(id.brandName[:], hostengine.Brand)
	cString(id.deviceName[:], state.Name)
	cString(id.pciBusId[:], hostengine.BusID(state.PCI))
	cString(id.serial[:], state.Serial)
	cString(id.uuid[:], string(state.UUID))
	cString(id.vbios[:], state.VBIOS)
	cString(id.inforomImageVersion[:], hostengine.TextNotSupported)
	cString(id.driverVersion[:], l.node.Scenario().Node.Driver)
	id.pciDeviceId, id.pciSubSystemId = C.uint(state.PCI.DeviceID), C.uint(state.PCI.Subsystem)
	m := &to.memoryUsage
	m.bar1Total, m.fbTotal, m.fbUsed = blank32, C.uint(state.MemoryTotal/mebi), C.uint(state.MemoryUsed/mebi)
	m.fbFree = C.uint((state.MemoryTotal - state.MemoryUsed - state.MemoryReserved) / mebi)
	to.settings.persistenceModeEnabled, to.settings.migModeEnabled = 1, flag(state.MIGEnabled)
	return hostengine.OK
}

func hierarchy(_ *library, s *hostengine.Session, a args) hostengine.Code {
	to := at[C.sim_dcgmMigHierarchy_v2](a, 1)
	if to.version != C.SIM_dcgmMigHierarchy_version2 {
		return hostengine.VersionMismatch
	}
	members, err := s.Hierarchy()
	switch {
	case err != nil:
		return codeOf(err)
	case len(members) > len(to.entityList):
		return tooSmall
	}
	to.count = C.uint(len(members))
	for i := range members {
		m, c := &members[i], &to.entityList[i]
		*c = C.sim_dcgmMigHierarchyInfo_v2{entity: pair(m.Entity), parent: pair(m.Parent)}
		cString(c.info.gpuUuid[:], string(m.UUID))
		c.info.nvmlGpuIndex, c.info.nvmlInstanceId = C.uint(m.GPU), C.uint(m.Instance)
		c.info.nvmlComputeInstanceId = ^C.uint(0)
		if m.Entity.Level == hostengine.ComputeInstance {
			c.info.nvmlComputeInstanceId = C.uint(m.Compute)
		}
		c.info.nvmlMigProfileId, c.info.nvmlProfileSlices = C.uint(m.ProfileID), C.uint(m.Slices)
	}
	return hostengine.OK
}

func pair(e hostengine.Entity) C.sim_dcgmGroupEntityPair_t {
	return C.sim_dcgmGroupEntityPair_t{entityGroupId: C.uint(e.Level), entityId: C.uint(e.ID)}
}

// linkStatus reports all links of all GPUs as up; there are no switches.
func linkStatus(_ *library, s *hostengine.Session, a args) hostengine.Code {
	const up = 3 // DcgmNvLinkLinkStateUp; 0: not supported
	to := at[C.sim_dcgmNvLinkStatus_v4](a, 1)
	if to.version != C.SIM_dcgmNvLinkStatus_version4 {
		return hostengine.VersionMismatch
	}
	ids, err := s.GPUs()
	if err != nil {
		return codeOf(err)
	}
	*to = C.sim_dcgmNvLinkStatus_v4{version: to.version, numGpus: C.uint(len(ids))}
	for i, id := range ids {
		state, err := s.Device(int(id))
		if err != nil {
			return codeOf(err)
		}
		to.gpus[i].entityId = C.uint(id)
		for link := range min(state.NVLinks, len(to.gpus[i].linkState)) {
			to.gpus[i].linkState[link] = up
		}
	}
	return hostengine.OK
}

// metricGroups tells one group with all fields: nothing is multiplexed here.
func metricGroups(_ *library, s *hostengine.Session, a args) hostengine.Code {
	to := at[C.sim_dcgmProfGetMetricGroups_v3](a, 1)
	if to.version != C.SIM_dcgmProfGetMetricGroups_version3 {
		return hostengine.VersionMismatch
	}
	if err := s.MetricGroups(int(to.gpuId)); err != nil {
		return codeOf(err)
	}
	g := &to.metricGroups[0]
	*g = C.sim_dcgmProfMetricGroupInfo_v2{majorId: 1, minorId: 1}
	ids := unsafe.Slice(&g.fieldIds[0], len(g.fieldIds))
	for f := uint16(1001); f <= 1012; f++ {
		ids[g.numFieldIds] = C.ushort(f)
		g.numFieldIds++
	}
	to.numMetricGroups = 1
	return hostengine.OK
}
