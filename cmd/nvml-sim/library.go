package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// library is the state of the loaded library. The first nvmlInit that succeeds starts the node,
// which then runs until the process ends, like a driver that outlives its clients.
type library struct {
	getenv func(string) string
	calls  []call // by the number of the function, its index in functionNames

	mu        sync.Mutex
	users     int // calls of nvmlInit minus calls of nvmlShutdown
	client    *sim.Client
	files     map[int]*os.File // by index of the GPU, see openDevice
	lastError string           // the last line on stderr
	node      *sim.Node        // nil before the first nvmlInit that succeeds

	sets       map[int]*eventSet       // by number
	systemSets map[int]*systemEventSet // by number

	samples   map[uintptr]sample // by the address that nvmlGpmSampleAlloc has given out
	streaming map[int]bool       // by index of the GPU: it is in GPM's streaming mode
}

func newLibrary(getenv func(string) string) *library {
	l := &library{
		getenv:     getenv,
		files:      map[int]*os.File{},
		sets:       map[int]*eventSet{},
		systemSets: map[int]*systemEventSet{},
		samples:    map[uintptr]sample{},
		streaming:  map[int]bool{},
	}

	always := initCalls()
	others := tables()

	for _, name := range functionNames() {
		do, ok := always[name]
		if !ok {
			do = whileInitialized(name, others[name])
		}

		l.calls = append(l.calls, do)
	}

	return l
}

// whileInitialized refuses calls of a function before nvmlInit and after nvmlShutdown. A nil
// function is not supported. Each call takes as long as the scenario says, except a wait for
// events.
func whileInitialized(name string, do call) call {
	waits := strings.HasPrefix(name, "nvmlEventSetWait") || name == "nvmlSystemEventSetWait"

	return func(l *library, a args) result {
		l.mu.Lock()
		ready := l.users > 0
		node := l.node
		l.mu.Unlock()

		switch {
		case !ready:
			return uninitialized
		case do == nil:
			return notSupported
		case !waits:
			node.BeginCall(name)
		}

		return do(l, a)
	}
}

// tables returns the functions that need nvmlInit, by their names in nvml.h.
func tables() map[string]call {
	all := make(map[string]call)
	for _, table := range []map[string]call{
		systemCalls(), deviceCalls(), readingCalls(), memoryCalls(), processCalls(), fieldCalls(),
		linkCalls(), eventCalls(), migCalls(), instanceCalls(), computeCalls(), gpmCalls(),
		coolingCalls(), mediaCalls(),
		systemEventCalls(),
		temperatureCalls(),
	} {
		maps.Copy(all, table)
	}

	return all
}

// initCalls returns the functions that clients can call at any time.
func initCalls() map[string]call {
	return map[string]call{
		"nvmlInit":          (*library).init,
		"nvmlInit_v2":       (*library).init,
		"nvmlInitWithFlags": (*library).initWithFlags,
		"nvmlShutdown":      (*library).shutdown,
	}
}

func (l *library) init(args) result { return l.begin(true) }

// initFlagNoAttach is NVML_INIT_FLAG_NO_ATTACH.
const initFlagNoAttach = 1 << 1

func (l *library) initWithFlags(a args) result { return l.begin(a.uint(0)&initFlagNoAttach == 0) }

// begin initializes the library, and attaches all GPUs if attach is true.
func (l *library) begin(attach bool) result {
	if !l.start() {
		return driverNotLoaded
	}

	if err := l.client.Begin(attach); err != nil { // not under the lock: it may block for long
		return l.failed(err)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.users++

	return success
}

// start starts the node unless it runs already. If it cannot start, start writes the reason to
// stderr and returns false.
func (l *library) start() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.node != nil {
		return true
	}

	node, err := sim.FromEnvironment(l.getenv)
	if err != nil {
		l.printError(err)
		return false
	}

	l.node = node
	l.client = node.NewClient(l.openDevice)

	return true
}

// devicesVariable is the environment variable that names a folder with the files nvidia0, nvidia1
// and so on, which stand for the device nodes of the GPUs. The numbers are minor numbers. While a
// GPU is attached, the library keeps its file open, so that /proc/self/fd shows it.
const devicesVariable = "MIG_SIM_DEVICES"

// openDevice opens or closes the file that stands for the device node of a GPU.
func (l *library) openDevice(index int, open bool) {
	folder := l.getenv(devicesVariable)
	if folder == "" {
		return
	}

	if !open {
		l.files[index].Close()
		delete(l.files, index)

		return
	}

	file, err := os.Open(filepath.Join(folder, fmt.Sprintf("nvidia%d", l.node.Minor(index))))
	if err != nil {
		fmt.Fprintf(os.Stderr, "libnvidia-ml.so.1 (simulated node): %s: %v\n", devicesVariable, err)
		return
	}

	l.files[index] = file
}

// failed returns NVML's code for an error of the node. If it is an error of the state file, which no
// code can express, it also writes it to stderr.
func (l *library) failed(err error) result {
	if errors.Is(err, sim.ErrState) {
		l.mu.Lock()
		l.printError(err)
		l.mu.Unlock()
	}

	return resultOf(err)
}

// printError writes an error to stderr that a return code cannot express, unless it is the same as
// the last time. The caller holds l.mu.
func (l *library) printError(err error) {
	if err.Error() == l.lastError {
		return
	}

	l.lastError = err.Error()
	fmt.Fprintf(os.Stderr, "libnvidia-ml.so.1 (simulated node): %v\n", err)
}

func (l *library) shutdown(args) result {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.users == 0 {
		return uninitialized
	}

	l.client.End()

	if l.users--; l.users == 0 {
		for number, set := range l.sets { // a call that waits for a set returns uninitialized
			set.free()
			delete(l.sets, number)
		}

		clear(l.systemSets)
	}

	return success
}

// gpuAnswer answers about a GPU, and migAnswer about a MIG device, from what was read of the GPU.
type (
	gpuAnswer func(s *sim.GPUState, a args) result
	migAnswer func(s *sim.GPUState, d *sim.MIGDevice, a args) result
)

// ofMIGDevice gives the same answer about a MIG device as about its GPU.
func (answer gpuAnswer) ofMIGDevice(s *sim.GPUState, _ *sim.MIGDevice, a args) result {
	return answer(s, a)
}

// readGPU answers about the GPU in the first argument, and does not support MIG devices. pointers
// are the indexes of the arguments that must not be NULL.
func readGPU(reading gpu.Reading, answer gpuAnswer, pointers ...int) call {
	return readDevice(reading, answer, nil, pointers...)
}

// readDevice answers about the GPU or the MIG device in the first argument. With a nil ofGPU or
// ofMIG, such devices are not supported.
func readDevice(reading gpu.Reading, ofGPU gpuAnswer, ofMIG migAnswer, pointers ...int) call {
	return notNull(onHandle(func(l *library, h handle, a args) result {
		if h.kind == aGPU && ofGPU == nil || h.kind == aMIGDevice && ofMIG == nil {
			return notSupported
		}

		s, err := l.node.Read(h.gpu, reading)
		if err != nil {
			return l.failed(err)
		}

		if h.kind == aGPU {
			return ofGPU(&s, a)
		}

		d, ok := s.Device(h.instance, h.compute)
		if !ok {
			return invalidArgument
		}

		return ofMIG(&s, d, a)
	}, aGPU, aMIGDevice), pointers...)
}
