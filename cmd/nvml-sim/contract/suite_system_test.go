package contract

import (
	"regexp"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// systemChecks are those of the library as a whole and of its events.
func systemChecks() []checkOf {
	return []checkOf{
		{name: "Library.Init", methods: []string{"Library.Shutdown"}, check: checkInit},
		{name: "Library.InitNoAttach", check: checkInitNoAttach},
		{name: "Library.SystemGetConfComputeState", check: func(s *subject) {
			if state, ret := s.lib.SystemGetConfComputeState(); s.has("Library.SystemGetConfComputeState", ret) {
				s.want(state.CcFeature <= nvml.CC_SYSTEM_FEATURE_ENABLED, "confidential computing %d", state.CcFeature)
			}
		}},
		{name: "Library.SystemGetDriverVersion", check: func(s *subject) {
			s.version("Library.SystemGetDriverVersion", `^\d{3,}(\.\d+){1,2}$`, s.lib.SystemGetDriverVersion)
		}},
		{name: "Library.SystemGetNVMLVersion", check: func(s *subject) {
			s.version("Library.SystemGetNVMLVersion", `^\d{1,3}\.\d{3,}(\.\d+){1,2}$`, s.lib.SystemGetNVMLVersion)
		}},
		{name: "Library.SystemGetCudaDriverVersion", check: checkCUDA},
		{name: "Library.DeviceGetCount", methods: []string{"Library.DeviceGetHandleByIndex"}, check: checkHandles},
		{name: "Library.DeviceGetHandleByPciBusId", check: checkBusIDs},
		{name: "Library.EventSetCreate", methods: []string{"Device.RegisterEvents", "EventSet.Wait", "EventSet.Free"},
			check: checkEvents},
		{name: "Library.SystemEventSetWait", check: checkSystemEvents},
	}
}

// checkInit: initialisations are counted (nvml.h), so that one user's shutdown is not another's.
func checkInit(s *subject) {
	if !s.must("Library.Init", s.lib.Init()) {
		return
	}

	s.must("Library.Shutdown", s.lib.Shutdown())
	_, ret := s.lib.DeviceGetCount()
	s.want(ret == nvml.SUCCESS, "after one shutdown of two initialisations: %d", ret)
}

// checkInitNoAttach: but for the flags it is "completely similar" to Init (nvml.h). It counts, and
// GPUs are looked up.
func checkInitNoAttach(s *subject) {
	before := s.devices()
	if !s.has("Library.InitNoAttach", s.lib.InitNoAttach()) {
		return
	}

	s.must("Library.Shutdown", s.lib.Shutdown())
	s.want(slices.Equal(s.devices(), before), "after its shutdown the first initialisation has other handles")

	// A library without another initialisation, in process.
	alone := s.open()
	if !s.has("Library.InitNoAttach", alone.InitNoAttach()) {
		return
	}

	count, ret := alone.DeviceGetCount()
	s.want(ret == nvml.SUCCESS && count == len(before), "%d GPUs of %d, %d", count, len(before), ret)

	for i := range before {
		d, ret := alone.DeviceGetHandleByIndex(i)
		s.want(ret == nvml.SUCCESS && uuidOf(d) == uuidOf(before[i]), "GPU %d is another, %d", i, ret)
	}

	s.must("Library.Shutdown", alone.Shutdown())
}

func (s *subject) version(function, form string, call func() (string, nvml.Return)) {
	text, ret := call()
	if s.must(function, ret) {
		s.want(regexp.MustCompile(form).MatchString(text), "%q is not of the form %s", text, form)
	}
}

// checkCUDA: 1000 * major + 10 * minor.
func checkCUDA(s *subject) {
	v, ret := s.lib.SystemGetCudaDriverVersion()
	if s.must("Library.SystemGetCudaDriverVersion", ret) {
		s.want(v >= 10_000 && v < 100_000 && v%10 == 0, "version %d", v)
	}
}

func checkHandles(s *subject) {
	count, ret := s.lib.DeviceGetCount()
	if !s.must("Library.DeviceGetCount", ret) {
		return
	}

	s.want(count > 0 && count <= 64, "%d GPUs", count)
	first := s.devices()
	second := s.devices()
	s.want(slices.Equal(first, second), "other handles the second time")

	for i, d := range first {
		s.want(slices.Index(first, d) == i, "GPU %d is given twice", i)
	}

	_, ret = s.lib.DeviceGetHandleByIndex(count)
	s.want(ret == nvml.ERROR_INVALID_ARGUMENT, "the index after the last: %d", ret)
}

// checkBusIDs: the PCI bus id leads to the handle of the index, in the forms of nvml.h that name
// the domain.
func checkBusIDs(s *subject) {
	for i, d := range s.devices() {
		pci, ret := d.GetPciInfo()
		if !s.has("Device.GetPciInfo", ret) {
			continue
		}

		kernel := strings.ToLower(text(pci.BusIdLegacy[:])) // as the seam takes it
		for _, id := range []string{kernel, strings.ToUpper(kernel), "0000" + kernel, strings.TrimSuffix(kernel, ".0")} {
			same, ret := s.lib.DeviceGetHandleByPciBusId(id)
			if s.has("Library.DeviceGetHandleByPciBusId", ret) {
				s.want(same == d, "GPU %d by %s is another", i, id)
			}
		}
	}

	// There is no GPU at the last address of a bus: GPUs are device 0 of theirs.
	_, ret := s.lib.DeviceGetHandleByPciBusId("0000:ff:1f.7")
	s.want(ret == nvml.ERROR_NOT_FOUND, "a bus id that there is not: %d", ret)
	_, ret = s.lib.DeviceGetHandleByPciBusId("there")
	s.want(ret == nvml.ERROR_INVALID_ARGUMENT, "no bus id: %d", ret)
}

func checkEvents(s *subject) {
	const unknown = uint64(1) << 60

	set, ret := s.lib.EventSetCreate()
	if !s.must("Library.EventSetCreate", ret) {
		return
	}

	registered := false

	for _, d := range s.devices() {
		if ret := d.RegisterEvents(unknown, set); ret == nvml.SUCCESS {
			s.errorf("%s: a type of event that there is not is accepted", uuidOf(d))
		}

		registered = s.has("Device.RegisterEvents", d.RegisterEvents(nvml.EventTypeXidCriticalError, set)) || registered
	}

	if registered {
		e, ret := set.Wait(1)
		switch ret {
		case nvml.SUCCESS:
			s.want(slices.Contains(s.devices(), e.Device), "an event of no GPU: %+v", e)
			fallthrough
		case nvml.ERROR_TIMEOUT:
			s.answered["EventSet.Wait"] = true
		default:
			s.errorf("waiting: %d", ret)
		}
	}

	s.must("EventSet.Free", set.Free())

	again, ret := s.lib.EventSetCreate()
	if s.must("Library.EventSetCreate", ret) {
		s.must("EventSet.Free", again.Free())
	}
}

// checkSystemEvents: without an event, the call ends at once with a timeout.
func checkSystemEvents(s *subject) {
	for range 2 {
		list, ret := s.lib.SystemEventSetWait()
		if ret == nvml.ERROR_TIMEOUT {
			s.want(len(list) == 0, "%d events, and none", len(list))
			s.answered["Library.SystemEventSetWait"] = true
			continue
		}

		if s.has("Library.SystemEventSetWait", ret) {
			s.want(len(list) > 0, "no event, and no timeout")
		}
	}
}

// rawChecks are of what clients use and the seam does not have; there is nothing to ask in process.
func rawChecks() []checkOf {
	return []checkOf{
		{name: "nvml.DeviceGetHandleByUUID", check: checkLookups},
		{name: "nvml.DeviceGetDeviceHandleFromMigDeviceHandle", check: checkKinds},
	}
}

// checkLookups: index, UUID and PCI id lead to one handle.
func checkLookups(s *subject) {
	if s.raw == nil {
		return
	}

	count, ret := s.raw.DeviceGetCount()
	s.want(ret == nvml.SUCCESS, "count: %d", ret)

	for i := range count {
		d, ret := s.raw.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			s.errorf("handle %d: %d", i, ret)
			continue
		}

		uuid, _ := d.GetUUID()
		byUUID, ret := s.raw.DeviceGetHandleByUUID(uuid)
		s.want(ret == nvml.SUCCESS && byUUID == d, "GPU %d by UUID is another, %d", i, ret)

		if pci, ret := d.GetPciInfo(); ret == nvml.SUCCESS {
			byPCI, ret := s.raw.DeviceGetHandleByPciBusId(text(pci.BusIdLegacy[:]))
			s.want(ret == nvml.SUCCESS && byPCI == d, "GPU %d by PCI id is another, %d", i, ret)
		}

		index, ret := d.GetIndex()
		s.want(ret == nvml.SUCCESS && index == i, "GPU %d says index %d, %d", i, index, ret)
	}

	_, ret = s.raw.DeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
	s.want(ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT, "a UUID that there is not: %d", ret)
}

// checkKinds: MIG devices name their GPU, and functions of one kind of handle fail on the
// other (nvml.h).
func checkKinds(s *subject) {
	if s.raw == nil {
		return
	}

	count, _ := s.raw.DeviceGetCount()
	for i := range count {
		d, ret := s.raw.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // found by another check
		}

		is, ret := d.IsMigDeviceHandle()
		s.want(!is && (ret == nvml.SUCCESS || ret == nvml.ERROR_NOT_SUPPORTED), "GPU %d is a MIG device, %d", i, ret)
		s.refused("the GPU instance id of a GPU", code(d.GetGpuInstanceId()))
		s.refused("the compute instance id of a GPU", code(d.GetComputeInstanceId()))
		s.refused("the GPU of a GPU", code(d.GetDeviceHandleFromMigDeviceHandle()))

		most, _ := d.GetMaxMigDeviceCount()
		for k := range most {
			if m, ret := d.GetMigDeviceHandleByIndex(k); ret == nvml.SUCCESS {
				s.kindOfMIG(d, m)
			}
		}
	}
}

func (s *subject) kindOfMIG(d, m nvml.Device) {
	is, ret := m.IsMigDeviceHandle()
	s.want(is && ret == nvml.SUCCESS, "a MIG device is none, %d", ret)
	parent, ret := m.GetDeviceHandleFromMigDeviceHandle()
	s.want(ret == nvml.SUCCESS && parent == d, "a MIG device is of another GPU, %d", ret)
	uuid, _ := m.GetUUID()
	same, ret := s.raw.DeviceGetHandleByUUID(uuid)
	s.want(ret == nvml.SUCCESS && same == m, "%s by UUID is another, %d", uuid, ret)
	_, _, ret = m.GetMigMode()
	s.refused("the MIG mode of a MIG device", ret)
	s.refused("a MIG device of a MIG device", code(m.GetMigDeviceHandleByIndex(0)))
	s.refused("the power of a MIG device", code(m.GetPowerUsage()))

	id, ret := m.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return // found by another check
	}

	gi, ret := d.GetGpuInstanceById(id)
	if ret == nvml.SUCCESS {
		info, ret := gi.GetInfo()
		s.want(ret == nvml.SUCCESS && int(info.Id) == id && info.Device == d, "GPU instance %d by id is %+v, %d", id, info,
			ret)
	} else {
		s.want(ret == nvml.ERROR_NO_PERMISSION, "GPU instance %d by id: %d", id, ret)
	}
}

func (s *subject) refused(about string, ret nvml.Return) {
	s.want(ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NO_PERMISSION,
		"%s: %d", about, ret)
}

// each runs a check on every GPU.
func each(check func(*subject, nvmlsource.Device)) func(*subject) {
	return func(s *subject) {
		for _, d := range s.devices() {
			check(s, d)
		}
	}
}
