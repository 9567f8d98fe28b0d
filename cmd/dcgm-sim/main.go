// Dcgm-sim is the simulated node's DCGM host engine as NVIDIA's library: built with -buildmode=c-shared it is a
// libdcgm.so.4 that go-dcgm can load. docs/simulated-node.md says how to use it.
//
// Embedded or connected to an address, the engine runs in the client's own process: the address must be the one that
// MIG_SIM_DCGM_ADDRESS names, where that is set. Functions of dcgm_agent.h that are not answered stand in unsupported.c.
package main

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"fmt"
	"os"
	"runtime/cgo"
	"sync"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

func main() {
	fmt.Fprintln(os.Stderr, "dcgm-sim is a library: go build -buildmode=c-shared -o libdcgm.so.4 ./cmd/dcgm-sim")
	os.Exit(2)
}

// library is the state of the loaded library. The node is started with the first session and lives as long as the process.
type library struct {
	mu       sync.Mutex
	users    int // dcgmInit less dcgmShutdown
	node     *sim.Node
	engine   *hostengine.Engine
	sessions map[uintptr]*hostengine.Session
	last     uintptr
}

// simOpen makes the state that the loaded library keeps for the life of its process.
//
//export simOpen
func simOpen() C.uintptr_t {
	return C.uintptr_t(cgo.NewHandle(&library{sessions: map[uintptr]*hostengine.Session{}}))
}

func loaded() *library { return cgo.Handle(C.sim_library()).Value().(*library) }

// getenv asks C: the client may have set a variable since Go has read its own copy.
func getenv(name string) string {
	key := C.CString(name)
	defer C.free(unsafe.Pointer(key))
	return C.GoString(C.getenv(key))
}

// start starts the node that the environment names.
func (l *library) start() error {
	if l.node != nil {
		return nil
	}
	scenario, err := sim.Load(getenv("MIG_SIM_SCENARIO"))
	if err != nil {
		return fmt.Errorf("MIG_SIM_SCENARIO: %w", err)
	}
	mode := sim.ClockMode(getenv("MIG_SIM_CLOCK"))
	switch mode {
	case "":
		mode = sim.ClockReal
	case sim.ClockReal, sim.ClockStep, sim.ClockX60:
	default:
		return fmt.Errorf("MIG_SIM_CLOCK=%s: expected real, step or x60", mode)
	}
	if path := getenv("MIG_SIM_STATE"); path != "" {
		l.node, err = sim.Join(scenario, mode, path)
	} else {
		l.node, err = sim.New(scenario, sim.NewClock(mode))
	}
	if err == nil {
		l.engine = hostengine.New(l.node)
	}
	return err
}

// open begins a session and gives its handle.
func (l *library) open(to *C.uintptr_t) C.int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 || to == nil {
		return C.SIM_DCGM_ST_UNINITIALIZED
	}
	if err := l.start(); err != nil {
		fmt.Fprintf(os.Stderr, "libdcgm.so.4 (simulated node): %v\n", err)
		return C.SIM_DCGM_ST_INIT_ERROR
	}
	s, err := l.engine.Open()
	if err != nil {
		return resultOf(err)
	}
	l.last++
	l.sessions[l.last] = s
	*to = C.uintptr_t(l.last)
	return C.SIM_DCGM_ST_OK
}

func (l *library) close(handle C.uintptr_t) C.int {
	l.mu.Lock()
	s := l.sessions[uintptr(handle)]
	delete(l.sessions, uintptr(handle))
	l.mu.Unlock()
	if s == nil {
		return C.SIM_DCGM_ST_BADPARAM
	}
	s.Close()
	return C.SIM_DCGM_ST_OK
}

// with runs a call of the session that a handle stands for.
func with(handle C.uintptr_t, call func(s *hostengine.Session) error) C.int {
	l := loaded()
	l.mu.Lock()
	s := l.sessions[uintptr(handle)]
	l.mu.Unlock()
	if s == nil {
		return C.SIM_DCGM_ST_BADPARAM
	}
	return resultOf(call(s))
}

// resultOf is DCGM's code for an error of the engine.
func resultOf(err error) C.int {
	if err == nil {
		return C.SIM_DCGM_ST_OK
	}
	if code, ok := err.(hostengine.Code); ok { //nolint:errorlint // the engine's errors are codes, never wrapped
		return C.int(code)
	}
	return C.SIM_DCGM_ST_GENERIC_ERROR
}
