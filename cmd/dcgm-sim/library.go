package main

// #include "abi.h"
// #include "dispatch.h"
import "C"

import (
	"fmt"
	"maps"
	"os"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// library is the state of the loaded library. The first connection starts the node and its engines,
// which then live as long as the process: the remote engine outlives its clients.
type library struct {
	getenv func(string) string
	calls  []call // by the number of the function, its index in functionNames

	mu         sync.Mutex
	users      int    // calls of dcgmInit minus calls of dcgmShutdown
	lastError  string // the last line on stderr
	node       *sim.Node
	engines    map[hostengine.Kind]*hostengine.Engine
	lastHandle uintptr
	sessions   map[uintptr]*hostengine.Session // by handle
}

func newLibrary(getenv func(string) string) *library {
	l := &library{getenv: getenv, sessions: make(map[uintptr]*hostengine.Session)}
	known := calls()

	for _, name := range functionNames() {
		if name == "dcgmInit" {
			l.calls = append(l.calls, (*library).init)
			continue
		}

		l.calls = append(l.calls, whileInitialized(known[name]))
	}

	return l
}

// calls returns the functions that an initialized library answers, by their names in dcgm_agent.h.
func calls() map[string]call {
	all := map[string]call{
		"dcgmShutdown":      (*library).shutdown,
		"dcgmStartEmbedded": notNull((*library).startEmbedded, 1),
		"dcgmStopEmbedded":  (*library).disconnect,
		"dcgmConnect":       notNull((*library).connect, 0, 1),
		"dcgmConnect_v2":    notNull((*library).connectV2, 0, 1, 2),
		"dcgmDisconnect":    (*library).disconnect,
		"dcgmVersionInfo":   notNull(libraryVersion, 0),
	}
	maps.Copy(all, groupCalls())
	maps.Copy(all, healthCalls())
	maps.Copy(all, valueCalls())
	maps.Copy(all, deviceCalls())

	return all
}

// whileInitialized refuses calls of a function before dcgmInit and after dcgmShutdown. A nil
// function is not supported.
func whileInitialized(do call) call {
	return func(l *library, a args) hostengine.Code {
		l.mu.Lock()
		ready := l.users > 0
		l.mu.Unlock()

		switch {
		case !ready:
			return uninitialized
		case do == nil:
			return hostengine.NotSupported
		}

		return do(l, a)
	}
}

func (l *library) init(args) hostengine.Code {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.users++

	return hostengine.OK
}

func (l *library) shutdown(args) hostengine.Code {
	var ended map[uintptr]*hostengine.Session

	l.mu.Lock()
	if l.users--; l.users == 0 {
		ended = l.sessions
		l.sessions = make(map[uintptr]*hostengine.Session)
	}
	l.mu.Unlock()

	// Close waits for calls of the engine, which can hang: not under the lock.
	for _, s := range ended {
		s.Close()
	}

	return hostengine.OK
}

// startEmbedded starts an engine in this process. If the engine requires root, the failed start
// leaves a line on stderr and a thread behind, as seen on DCGM 4.5.3.
func (l *library) startEmbedded(a args) hostengine.Code {
	code := l.openSession(hostengine.Embedded, pointer[uintptr](a, 1))
	if code == hostengine.InitError {
		fmt.Fprintf(os.Stderr, "CacheManager Init Failed. Error: %d\n", hostengine.RequiresRoot)
		C.dcgm_sim_leave_thread()
	}

	return code
}

func (l *library) connect(a args) hostengine.Code {
	return l.connectTo(text(a, 0), pointer[uintptr](a, 1))
}

func (l *library) connectV2(a args) hostengine.Code {
	if pointer[C.sim_dcgmConnectV2Params_v2](a, 1).version != C.SIM_dcgmConnectV2Params_version2 {
		return hostengine.VersionMismatch
	}

	return l.connectTo(text(a, 0), pointer[uintptr](a, 2))
}

// connectTo connects to the remote engine. The engine answers at every address, or only at the one
// that the environment gives it.
func (l *library) connectTo(address string, handle *uintptr) hostengine.Code {
	if only := l.getenv("MIG_SIM_DCGM_ADDRESS"); only != "" && only != address {
		return hostengine.ConnectionNotValid
	}

	return l.openSession(hostengine.Remote, handle)
}

// openSession connects to an engine and writes the handle of the session.
func (l *library) openSession(kind hostengine.Kind, handle *uintptr) hostengine.Code {
	engine, code := l.engine(kind)
	if code != hostengine.OK {
		return code
	}

	s, err := engine.Open() // not under the lock: an embedded engine can hang as it starts
	if err != nil {
		return codeOf(err)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.lastHandle++
	l.sessions[l.lastHandle] = s
	*handle = l.lastHandle

	return hostengine.OK
}

// engine returns the engine of a kind. It starts the node unless it runs.
func (l *library) engine(kind hostengine.Kind) (*hostengine.Engine, hostengine.Code) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.node == nil {
		node, err := sim.FromEnvironment(l.getenv)
		if err != nil {
			l.printError(err)
			return nil, hostengine.NVMLError
		}

		l.node = node
		l.engines = map[hostengine.Kind]*hostengine.Engine{
			hostengine.Embedded: hostengine.New(node, hostengine.Embedded),
			hostengine.Remote:   hostengine.New(node, hostengine.Remote),
		}
	}

	return l.engines[kind], hostengine.OK
}

func (l *library) disconnect(a args) hostengine.Code {
	l.mu.Lock()
	s := l.sessions[a.raw[0]]
	delete(l.sessions, a.raw[0])
	l.mu.Unlock()

	if s == nil {
		return hostengine.BadParam
	}

	s.Close()

	return hostengine.OK
}

// printError writes to stderr an error that a return code cannot express, unless it is the same as
// the last time. The caller holds l.mu.
func (l *library) printError(err error) {
	if err.Error() == l.lastError {
		return
	}

	l.lastError = err.Error()
	fmt.Fprintf(os.Stderr, "libdcgm.so.4 (simulated node): %v\n", err)
}

// onSession returns a call that answers for the session whose handle is the first argument. pointers
// are the indexes of the arguments that must not be NULL.
func onSession(answer func(l *library, s *hostengine.Session, a args) error, pointers ...int) call {
	return notNull(func(l *library, a args) hostengine.Code {
		l.mu.Lock()
		s := l.sessions[a.raw[0]]
		l.mu.Unlock()

		if s == nil {
			return hostengine.ConnectionNotValid
		}

		return codeOf(answer(l, s, a))
	}, pointers...)
}
