package nvmlsource

import (
	"fmt"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The binding_*.go files implement the driver seam with go-nvml. A method of the seam that go-nvml
// has with the same signature is go-nvml's own, by embedding. go-nvml binds symbols lazily: calling
// a function that the installed library lacks kills the process. So symbolCheck looks up the
// function's symbol before each call, and answers ERROR_FUNCTION_NOT_FOUND if there is none.

// Open returns NVML over a library. A path that is a bare name is looked up as the dynamic linker
// does; empty is libnvidia-ml.so.1. Nothing is loaded before Init. Since go-nvml binds symbols for
// the whole process, a process must not use two libraries.
func Open(libraryPath string) Library {
	if libraryPath == "" {
		libraryPath = "libnvidia-ml.so.1"
	}

	l := &library{path: libraryPath, Interface: nvml.New(nvml.WithLibraryPath(libraryPath))}

	return Intercept(l, symbolCheck{l})
}

// library is NVML through go-nvml. It knows which symbols the loaded library has.
type library struct {
	gpm  gpmRequests
	path string
	nvml.Interface

	mu      sync.Mutex
	users   int             // Init and InitNoAttach calls minus Shutdown calls, as NVML counts them
	loadErr error           // why the last Init could not load the library
	symbols map[string]bool // whether the library exports a symbol; filled by has

	system *nvml.SystemEventSet // nil until SystemEventSetWait creates it; used by one call at a time
}

// Init loads the library, which may appear after a first call, and initialises it. go-nvml counts a
// failed nvmlInit like a successful one, so the library then stays mapped for the life of the
// process; that is harmless.
func (l *library) Init() nvml.Return { return l.load(l.Interface.Init, "nvmlInit", "nvmlInit_v2") }

// InitNoAttach opens no GPU. It also succeeds if NVML finds none: the GPUs that we have released
// may be the only ones.
func (l *library) InitNoAttach() nvml.Return {
	return l.load(func() nvml.Return {
		return l.Interface.InitWithFlags(nvml.INIT_FLAG_NO_ATTACH | nvml.INIT_FLAG_NO_GPUS)
	}, "nvmlInitWithFlags")
}

// load loads the library and calls init. symbols are the versions of the function that init calls;
// the library must export one of them.
func (l *library) load(init func() nvml.Return, symbols ...string) nvml.Return {
	err := probe(l.path)
	l.mu.Lock()
	l.loadErr = err
	l.mu.Unlock()

	if err != nil {
		return nvml.ERROR_LIBRARY_NOT_FOUND
	}

	if found, err := countExports(l.path, symbols...); err != nil || found == 0 {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}

	ret := init()
	l.mu.Lock()
	defer l.mu.Unlock()

	if ret != nvml.SUCCESS {
		return ret
	}

	if l.users == 0 {
		l.symbols = map[string]bool{}
	}

	l.users++

	return nvml.SUCCESS
}

// Shutdown ends an Init. The last one unloads the library: the next Init may find another one at
// the same path.
func (l *library) Shutdown() nvml.Return {
	l.freeSystemEvents()

	ret := l.Interface.Shutdown()
	if ret == nvml.SUCCESS {
		l.mu.Lock()
		defer l.mu.Unlock()

		l.users--
	}

	return ret
}

// LoadError returns why the last Init could not load the library, which go-nvml does not report.
func (l *library) LoadError() error {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.loadErr
}

// probe loads the library and closes it again: the linker's error names what is wrong, and a
// library that is not NVML is refused before go-nvml calls into it.
func probe(path string) error {
	inits, err := countExports(path, "nvmlInit", "nvmlInit_v2")
	if err == nil && inits == 0 {
		err = fmt.Errorf("%s: not an NVML library: it has no nvmlInit", path)
	}

	return err
}

// countExports loads a library, closes it again, and returns how many of the symbols it exports.
func countExports(path string, symbols ...string) (int, error) {
	d := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := d.Open(); err != nil {
		return 0, err
	}

	found := 0

	for _, symbol := range symbols {
		if d.Lookup(symbol) == nil {
			found++
		}
	}

	if err := d.Close(); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}

	return found, nil
}

// SystemGetConfComputeState initialises NVML without attaching GPUs, which opens none of them, and
// shuts it down again: what nvmlInit opens under confidential computing may have to stay open.
func (l *library) SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return) {
	var none nvml.ConfComputeSystemState
	if probe(l.path) != nil {
		return none, nvml.ERROR_LIBRARY_NOT_FOUND // Init reports why
	}

	needed := []string{"nvmlInitWithFlags", "nvmlShutdown", "nvmlSystemGetConfComputeState"}
	if found, err := countExports(l.path, needed...); err != nil || found < len(needed) {
		return none, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	ret := l.Interface.InitWithFlags(nvml.INIT_FLAG_NO_ATTACH | nvml.INIT_FLAG_NO_GPUS)
	if ret != nvml.SUCCESS {
		return none, ret
	}

	state, ret := l.Interface.SystemGetConfComputeState()
	if shut := l.Interface.Shutdown(); ret == nvml.SUCCESS {
		ret = shut
	}

	return state, ret
}

// has reports whether the loaded library exports a symbol.
func (l *library) has(symbol string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.users == 0 {
		return false
	}

	exported, looked := l.symbols[symbol]
	if !looked {
		exported = l.Interface.Extensions().LookupSymbol(symbol) == nil
		l.symbols[symbol] = exported
	}

	return exported
}

// hasAny reports whether the loaded library exports at least one of the symbols, such as the versions
// of one function.
func (l *library) hasAny(symbols ...string) bool { return slices.ContainsFunc(symbols, l.has) }

// hasAll reports whether the loaded library exports all the symbols.
func (l *library) hasAll(symbols ...string) bool {
	for _, symbol := range symbols {
		if !l.has(symbol) {
			return false
		}
	}

	return true
}

// call calls f if the library exports at least one of the symbols, the versions of the function
// that f calls.
func call[T any](l *library, f func() (T, nvml.Return), symbols ...string) (T, nvml.Return) {
	if !l.hasAny(symbols...) {
		var none T
		return none, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	return f()
}

// symbolCheck is the Interceptor that answers calls of functions that the library lacks.
type symbolCheck struct{ *library }

func (l symbolCheck) Before(c Call) Verdict {
	if l.offers(c.Function) {
		return Verdict{}
	}

	return Verdict{Answered: true, Return: nvml.ERROR_FUNCTION_NOT_FOUND}
}

func (symbolCheck) Object(Call, int, any) (object any, known bool) { return nil, true }

// offers reports whether the library has a function, in one of the versions that go-nvml calls.
func (l *library) offers(function string) bool {
	switch function {
	case "nvmlInit", "nvmlInitNoAttach", "nvmlSystemGetConfComputeState":
		return true // they load the library

	case "nvmlSystemEventSetWait", "nvmlDeviceGetTemperature", "nvmlDeviceGetGpuInstanceProfileInfo",
		"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceSetMigMode":
		return true // these methods choose among several functions themselves

	case "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy",
		"nvmlGpuInstanceCreateComputeInstanceWithPlacement", "nvmlComputeInstanceDestroy":
		return l.canChange()

	case "nvmlDeviceGetCount":
		return l.hasAny(function, "nvmlDeviceGetCount_v2")
	case "nvmlDeviceGetHandleByIndex":
		return l.hasAny(function, "nvmlDeviceGetHandleByIndex_v2")
	case "nvmlDeviceGetHandleByPciBusId":
		return l.hasAny(function, "nvmlDeviceGetHandleByPciBusId_v2")
	case "nvmlEventSetWait":
		return l.hasAny(function, "nvmlEventSetWait_v2")
	case "nvmlDeviceGetPciInfo":
		return l.hasAny("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", function)
	case "nvmlDeviceGetMemoryInfo":
		return l.hasAny("nvmlDeviceGetMemoryInfo_v2", function)
	case "nvmlDeviceGetFanSpeed":
		return l.has("nvmlDeviceGetFanSpeed_v2")
	case "nvmlDeviceGetAttributes":
		return l.hasAny(function, "nvmlDeviceGetAttributes_v2")
	case "nvmlDeviceGetComputeRunningProcesses":
		return l.hasAny(function, "nvmlDeviceGetComputeRunningProcesses_v2",
			"nvmlDeviceGetComputeRunningProcesses_v3")
	case "nvmlDeviceGetGraphicsRunningProcesses":
		return l.hasAny(function, "nvmlDeviceGetGraphicsRunningProcesses_v2",
			"nvmlDeviceGetGraphicsRunningProcesses_v3")
	case "nvmlDeviceGetMPSComputeRunningProcesses":
		return l.hasAny(function, "nvmlDeviceGetMPSComputeRunningProcesses_v2",
			"nvmlDeviceGetMPSComputeRunningProcesses_v3")
	case "nvmlDeviceGetGpuInstancePossiblePlacements":
		return l.hasAny("nvmlDeviceGetGpuInstancePossiblePlacements_v2", function)
	case "nvmlComputeInstanceGetInfo":
		return l.hasAny("nvmlComputeInstanceGetInfo_v2", function)
	}

	return l.has(function)
}

func (l *library) DeviceGetHandleByIndex(index int) (Device, nvml.Return) {
	d, ret := l.Interface.DeviceGetHandleByIndex(index)
	return device{entity{l, d}}, ret
}

func (l *library) DeviceGetHandleByPciBusId(busID string) (Device, nvml.Return) {
	d, ret := l.Interface.DeviceGetHandleByPciBusId(busID)
	return device{entity{l, d}}, ret
}

func (l *library) EventSetCreate() (EventSet, nvml.Return) {
	set, ret := l.Interface.EventSetCreate()
	return eventSet{l, set}, ret
}

// eventSet is a queue of events.
type eventSet struct {
	lib *library
	nvml.EventSet
}

func (s eventSet) Wait(timeoutMillis uint32) (Event, nvml.Return) {
	e, ret := s.EventSet.Wait(timeoutMillis)
	if !s.lib.has("nvmlEventSetWait_v2") { // the first version leaves the ids unset
		e.GpuInstanceId = NoInstance
		e.ComputeInstanceId = NoInstance
	}

	return Event{
		Device:            device{entity{s.lib, e.Device}},
		Type:              e.EventType,
		Data:              e.EventData,
		GPUInstanceID:     e.GpuInstanceId,
		ComputeInstanceID: e.ComputeInstanceId,
	}, ret
}
