package main

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

// library is the state of the loaded library. The node is started by the first connection and lives as long as the process,
// as does the remote engine, which outlives its clients.
type library struct {
	getenv func(string) string
	calls  []call // by number

	mu       sync.Mutex
	users    int // dcgmInit less dcgmShutdown
	told     string
	node     *sim.Node
	engines  map[hostengine.Kind]*hostengine.Engine
	last     uintptr
	sessions map[uintptr]*hostengine.Session // by handle
}

func newLibrary(getenv func(string) string) *library {
	l := &library{getenv: getenv, sessions: make(map[uintptr]*hostengine.Session)}
	known := calls()
	for _, name := range functionNames() {
		do, ok := known[name]
		if !ok {
			do = func(*library, args) hostengine.Code { return hostengine.NotSupported }
		}
		l.calls = append(l.calls, l.initialised(name, do))
	}
	return l
}

// calls is what the library answers, by the names of dcgm_agent.h.
func calls() map[string]call {
	all := map[string]call{
		"dcgmInit":          (*library).init,
		"dcgmShutdown":      (*library).shutdown,
		"dcgmStartEmbedded": notNull((*library).startEmbedded, 1),
		"dcgmStopEmbedded":  (*library).disconnect,
		"dcgmConnect":       notNull((*library).connect, 0, 1),
		"dcgmConnect_v2":    notNull((*library).connectV2, 0, 1, 2),
		"dcgmDisconnect":    (*library).disconnect,
		"dcgmVersionInfo":   notNull(libraryVersion, 0),
	}
	maps.Copy(all, groupCalls())
	maps.Copy(all, valueCalls())
	maps.Copy(all, deviceCalls())
	return all
}

// initialised keeps a function from being called too early or too late.
func (*library) initialised(name string, do call) call {
	if name == "dcgmInit" {
		return do
	}
	return func(l *library, a args) hostengine.Code {
		l.mu.Lock()
		ready := l.users > 0
		l.mu.Unlock()
		if !ready {
			return uninitialized
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
	l.mu.Lock()
	var ended map[uintptr]*hostengine.Session
	if l.users--; l.users == 0 {
		ended, l.sessions = l.sessions, make(map[uintptr]*hostengine.Session)
	}
	l.mu.Unlock()
	for _, s := range ended {
		s.Close()
	}
	return hostengine.OK
}

// startEmbedded starts an engine within this process. What one that needs root leaves behind (a line on stderr, a thread) was
// seen on DCGM 4.5.3.
func (l *library) startEmbedded(a args) hostengine.Code {
	code := l.open(hostengine.Embedded, at[uintptr](a, 1))
	if code == hostengine.InitError {
		fmt.Fprintf(os.Stderr, "CacheManager Init Failed. Error: %d\n", hostengine.RequiresRoot)
		C.dcgm_sim_leave_thread()
	}
	return code
}

func (l *library) connect(a args) hostengine.Code { return l.dial(text(a, 0), at[uintptr](a, 1)) }

func (l *library) connectV2(a args) hostengine.Code {
	if !versionOfConnect(a) {
		return hostengine.VersionMismatch
	}
	return l.dial(text(a, 0), at[uintptr](a, 2))
}

// dial connects to the only engine that there is, where the environment does not give it another address.
func (l *library) dial(address string, handle *uintptr) hostengine.Code {
	if own := l.getenv("MIG_SIM_DCGM_ADDRESS"); own != "" && own != address {
		return hostengine.ConnectionNotValid
	}
	return l.open(hostengine.Remote, handle)
}

func (l *library) open(kind hostengine.Kind, handle *uintptr) hostengine.Code {
	engine, code := l.engine(kind)
	if code != hostengine.OK {
		return code
	}
	s, err := engine.Open() // an embedded engine can hang as it starts
	if err != nil {
		return codeOf(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.sessions[l.last] = s
	*handle = l.last
	return hostengine.OK
}

// engine returns the node's engine of a kind.
func (l *library) engine(kind hostengine.Kind) (*hostengine.Engine, hostengine.Code) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.node == nil {
		node, err := sim.FromEnvironment(l.getenv)
		if err != nil {
			l.say(err)
			return nil, hostengine.NVMLError
		}
		l.node = node
		l.engines = map[hostengine.Kind]*hostengine.Engine{
			hostengine.Embedded: hostengine.New(node, hostengine.Embedded), hostengine.Remote: hostengine.New(node, hostengine.Remote),
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

// say tells on stderr what a return code cannot, once for as long as it stays the same.
func (l *library) say(err error) {
	if err.Error() == l.told {
		return
	}
	l.told = err.Error()
	fmt.Fprintf(os.Stderr, "libdcgm.so.4 (simulated node): %v\n", err)
}

// connected answers a call whose first argument is the handle of a connection.
func connected(do func(l *library, s *hostengine.Session, a args) hostengine.Code, notNulls ...int) call {
	return notNull(func(l *library, a args) hostengine.Code {
		l.mu.Lock()
		s := l.sessions[a.raw[0]]
		l.mu.Unlock()
		if s == nil {
			return hostengine.ConnectionNotValid
		}
		return do(l, s, a)
	}, notNulls...)
}
