package nvmlsource

import (
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// The driver seam over go-nvml. Calling a function that the installed library lacks kills the process (go-nvml binds
// lazily), so every method looks up its symbol first and returns ERROR_FUNCTION_NOT_FOUND without it.

// Open returns NVML over a library. A path that is a bare name is looked up as the dynamic linker does; empty is
// libnvidia-ml.so.1. Nothing is loaded before Init. Since go-nvml binds symbols for the whole process, a process must
// not use two libraries.
func Open(libraryPath string) Library {
	if libraryPath == "" {
		libraryPath = "libnvidia-ml.so.1"
	}

	return &library{path: libraryPath, nvml: nvml.New(nvml.WithLibraryPath(libraryPath))}
}

// library is go-nvml's NVML, and which symbols the loaded library has.
type library struct {
	gpm  gpmRequests
	path string
	nvml nvml.Interface

	mu      sync.Mutex
	users   int // calls of Init and InitNoAttach that succeeded less those of Shutdown: NVML counts them
	loadErr error
	symbols map[string]bool

	system *nvml.SystemEventSet // nil until it is asked for; used by one call at a time
}

// Init loads the library, which may appear after a first call, and initialises it. go-nvml counts a failed nvmlInit
// like a successful one, so the library then stays mapped for the life of the process; that is harmless.
func (l *library) Init() nvml.Return { return l.load(l.nvml.Init, "nvmlInit", "nvmlInit_v2") }

// InitNoAttach also succeeds without GPUs: another one than those that are left alone may not be there.
func (l *library) InitNoAttach() nvml.Return {
	return l.load(func() nvml.Return {
		return l.nvml.InitWithFlags(nvml.INIT_FLAG_NO_ATTACH | nvml.INIT_FLAG_NO_GPUS)
	}, "nvmlInitWithFlags")
}

// load loads the library and initialises it by one of some symbols.
func (l *library) load(init func() nvml.Return, symbols ...string) nvml.Return {
	err := probe(l.path)
	l.mu.Lock()
	l.loadErr = err
	l.mu.Unlock()

	if err != nil {
		return nvml.ERROR_LIBRARY_NOT_FOUND
	}

	if found, err := exports(l.path, symbols...); err != nil || found == 0 {
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

// Shutdown ends an Init. The last one unloads the library: the next Init may find another one at the same path.
func (l *library) Shutdown() nvml.Return {
	if !l.has("nvmlShutdown") {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}

	l.freeSystemEvents()

	ret := l.nvml.Shutdown()
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

// probe loads the library and closes it again: the linker's error names what is wrong, and a library that is not NVML
// is refused before go-nvml calls into it.
func probe(path string) error {
	inits, err := exports(path, "nvmlInit", "nvmlInit_v2")
	if err == nil && inits == 0 {
		err = fmt.Errorf("%s: not an NVML library: it has no nvmlInit", path)
	}

	return err
}

// exports loads a library, closes it again, and returns how many of some symbols it has.
func exports(path string, symbols ...string) (int, error) {
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

// SystemGetConfComputeState initialises NVML without attaching GPUs, which opens none of them, and shuts it down again:
// what nvmlInit opens under confidential computing may have to stay open.
func (l *library) SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return) {
	var none nvml.ConfComputeSystemState
	if probe(l.path) != nil {
		return none, nvml.ERROR_LIBRARY_NOT_FOUND // Init reports why
	}

	needed := []string{"nvmlInitWithFlags", "nvmlShutdown", "nvmlSystemGetConfComputeState"}
	if found, err := exports(l.path, needed...); err != nil || found < len(needed) {
		return none, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	ret := l.nvml.InitWithFlags(nvml.INIT_FLAG_NO_ATTACH | nvml.INIT_FLAG_NO_GPUS)
	if ret != nvml.SUCCESS {
		return none, ret
	}

	state, ret := l.nvml.SystemGetConfComputeState()
	if shut := l.nvml.Shutdown(); ret == nvml.SUCCESS {
		ret = shut
	}

	return state, ret
}

// has reports whether the loaded library exports one of some symbols, which are versions of one function.
func (l *library) has(symbols ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.users == 0 {
		return false
	}

	for _, symbol := range symbols {
		known, asked := l.symbols[symbol]
		if !asked {
			known = l.nvml.Extensions().LookupSymbol(symbol) == nil
			l.symbols[symbol] = known
		}

		if known {
			return true
		}
	}

	return false
}

// call calls a function of NVML if the library has one of some symbols, which are versions of it.
func call[T any](l *library, f func() (T, nvml.Return), symbols ...string) (T, nvml.Return) {
	if !l.has(symbols...) {
		var none T
		return none, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	return f()
}

func (l *library) DeviceGetHandleByIndex(index int) (Device, nvml.Return) {
	if !l.has("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2") {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	d, ret := l.nvml.DeviceGetHandleByIndex(index)

	return device{entity{l, d}}, ret
}

func (l *library) DeviceGetHandleByPciBusId(busID string) (Device, nvml.Return) {
	if !l.has("nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2") {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	d, ret := l.nvml.DeviceGetHandleByPciBusId(busID)

	return device{entity{l, d}}, ret
}

func (l *library) EventSetCreate() (EventSet, nvml.Return) {
	set, ret := call(l, l.nvml.EventSetCreate, "nvmlEventSetCreate")
	return eventSet{l, set}, ret
}

// eventSet is a queue of events.
type eventSet struct {
	lib *library
	set nvml.EventSet
}

func (s eventSet) Wait(timeoutMillis uint32) (Event, nvml.Return) {
	if !s.lib.has("nvmlEventSetWait", "nvmlEventSetWait_v2") {
		return Event{}, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	e, ret := s.set.Wait(timeoutMillis)
	if !s.lib.has("nvmlEventSetWait_v2") { // the first version does not write them
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
