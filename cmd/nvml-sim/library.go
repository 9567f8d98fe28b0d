package main

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// library is the state of the loaded library. The node is started by the first nvmlInit that succeeds and lives as long
// as the process, as a driver outlives its clients.
type library struct {
	getenv func(string) string
	calls  []call // by number

	mu    sync.Mutex
	users int // nvmlInit less nvmlShutdown
	told  string
	node  *sim.Node
	sets  map[int]*eventSet
	// samples are what nvmlGpmSampleAlloc has given out, by address; streaming are the GPUs set to it.
	samples   map[uintptr]sample
	streaming map[int]bool
}

func newLibrary(getenv func(string) string) *library {
	l := &library{getenv: getenv, sets: map[int]*eventSet{}, samples: map[uintptr]sample{}, streaming: map[int]bool{}}
	always, initialised := initCalls(), tables()
	for _, name := range functionNames() {
		do, ok := always[name]
		if !ok {
			do = whileInitialised(initialised[name])
		}
		l.calls = append(l.calls, do)
	}
	return l
}

// whileInitialised keeps a function from being called too early or too late; nil is one that is not supported.
func whileInitialised(do call) call {
	return func(l *library, a args) result {
		l.mu.Lock()
		ready := l.users > 0
		l.mu.Unlock()
		switch {
		case !ready:
			return uninitialized
		case do == nil:
			return notSupported
		}
		return do(l, a)
	}
}

// tables is what an initialised library answers, by the names of nvml.h.
func tables() map[string]call {
	all := make(map[string]call)
	for _, table := range []map[string]call{
		systemCalls(), deviceCalls(), readingCalls(), memoryCalls(), processCalls(), fieldCalls(),
		linkCalls(), eventCalls(), migCalls(), instanceCalls(), computeCalls(), gpmCalls(), coolingCalls(), mediaCalls(), temperatureCalls(),
	} {
		for name, do := range table {
			all[name] = do
		}
	}
	return all
}

// initCalls are those that need no initialised library.
func initCalls() map[string]call {
	return map[string]call{
		"nvmlInit":          (*library).init,
		"nvmlInit_v2":       (*library).init,
		"nvmlInitWithFlags": (*library).init,
		"nvmlShutdown":      (*library).shutdown,
	}
}

func (l *library) init(args) result {
	if !l.start() {
		return driverNotLoaded
	}
	if err := l.node.Driver(); err != nil { // it may wait for long, and others must not wait for the same
		return l.failed(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users++
	return success
}

// start starts the node unless that is done, or tells why it cannot.
func (l *library) start() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.node != nil {
		return true
	}
	node, err := sim.FromEnvironment(l.getenv)
	if err != nil {
		l.say(err)
		return false
	}
	l.node = node
	return true
}

// failed is NVML's code for an error of the node. What is wrong with the state file is told in words.
func (l *library) failed(err error) result {
	if errors.Is(err, sim.ErrState) {
		l.mu.Lock()
		l.say(err)
		l.mu.Unlock()
	}
	return resultOf(err)
}

// say tells on stderr what a return code cannot, once for as long as it stays the same.
func (l *library) say(err error) {
	if err.Error() == l.told {
		return
	}
	l.told = err.Error()
	fmt.Fprintf(os.Stderr, "libnvidia-ml.so.1 (simulated node): %v\n", err)
}

func (l *library) shutdown(args) result {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		return uninitialized
	}
	if l.users--; l.users == 0 {
		for number, set := range l.sets { // a call that still waits finds the library uninitialized
			set.free()
			delete(l.sets, number)
		}
	}
	return success
}

// physical answers about the GPU of the first argument. MIG devices do not have what it asks for.
func physical(reading gpu.Reading, answer func(s *sim.State, a args) result) call {
	return device(reading, answer, nil)
}

// device answers about the GPU of the first argument, or about a MIG device: nil where that is not supported.
func device(reading gpu.Reading, whole func(s *sim.State, a args) result, slice func(s *sim.State, d *sim.Device, a args) result) call {
	return func(l *library, a args) result {
		h, ok := handleOf(a.raw[0])
		switch {
		case !ok || h.kind > aMIGDevice || h.gpu >= l.node.Count():
			return invalidArgument
		case h.kind == aGPU && whole == nil, h.kind == aMIGDevice && slice == nil:
			return notSupported
		}
		s, err := l.node.Read(h.gpu, reading)
		if err != nil {
			return l.failed(err)
		}
		if h.kind == aGPU {
			return whole(&s, a)
		}
		d, ok := s.Device(h.instance, h.compute)
		if !ok {
			return invalidArgument
		}
		return slice(&s, d, a)
	}
}
