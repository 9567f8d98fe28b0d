package main

import (
	"fmt"
	"maps"
	"os"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// library is the state of the loaded library. The node and its host engine are started by the first connection that
// succeeds and live as long as the process, as a host engine outlives its clients.
type library struct {
	getenv func(string) string
	calls  []call // by number

	mu       sync.Mutex
	users    int // dcgmInit less dcgmShutdown
	told     string
	node     *sim.Node
	engine   *hostengine.Engine
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
	defer l.mu.Unlock()
	if l.users--; l.users == 0 {
		for handle, s := range l.sessions {
			s.Close()
			delete(l.sessions, handle)
		}
	}
	return hostengine.OK
}

func (l *library) startEmbedded(a args) hostengine.Code { return l.open(at[uintptr](a, 1)) }

func (l *library) connect(a args) hostengine.Code { return l.dial(text(a, 0), at[uintptr](a, 1)) }

func (l *library) connectV2(a args) hostengine.Code {
	if !versionOfConnect(a) {
		return versionMismatch
	}
	return l.dial(text(a, 0), at[uintptr](a, 2))
}

// dial connects to the only engine that there is, where the environment does not give it another address.
func (l *library) dial(address string, handle *uintptr) hostengine.Code {
	if own := l.getenv("MIG_SIM_DCGM_ADDRESS"); own != "" && own != address {
		return hostengine.ConnectionNotValid
	}
	return l.open(handle)
}

func (l *library) open(handle *uintptr) hostengine.Code {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.node == nil {
		node, err := sim.FromEnvironment(l.getenv)
		if err != nil {
			l.say(err)
			return hostengine.NVMLError
		}
		l.node, l.engine = node, hostengine.New(node)
	}
	s, err := l.engine.Open()
	if err != nil {
		return codeOf(err)
	}
	l.last++
	l.sessions[l.last] = s
	*handle = l.last
	return hostengine.OK
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
