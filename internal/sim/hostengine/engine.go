// Package hostengine simulates a DCGM host engine on the simulated node, with DCGM's habits: it has
// its own entity ids and reuses them, its hierarchy lags behind the driver, it only has values of
// watched fields, and blanks have the status OK. What a comment calls unverified is from DCGM's
// headers and from reports; we have not measured it.
package hostengine

import (
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// Code is dcgmReturn_t (dcgm_structs.h). As an error it has DCGM's own text.
type Code int

// The codes that this engine returns.
const (
	OK                    Code = 0
	BadParam              Code = -1
	NotConfigured         Code = -5 // what an id refers to does not exist
	InitError             Code = -7
	NotSupported          Code = -6
	NoData                Code = -14
	NotWatched            Code = -16
	VersionMismatch       Code = -12
	UnknownField          Code = -13
	ConnectionNotValid    Code = -21
	MaxLimit              Code = -24
	DuplicateKey          Code = -26
	RequiresRoot          Code = -29
	ProfilingNotSupported Code = -36
	NVMLError             Code = -8
	ModuleNotLoaded       Code = -33
)

// Error returns DCGM's text for the code.
func (c Code) Error() string {
	texts := map[Code]string{
		OK:                    "Success",
		BadParam:              "Bad parameter passed to function",
		NotSupported:          "Feature not supported",
		NotConfigured:         "Setting not configured",
		NoData:                "No data is available",
		NotWatched:            "Field is not being updated",
		UnknownField:          "Unknown field",
		InitError:             "DCGM initialization error",
		VersionMismatch:       "API version mismatch",
		ConnectionNotValid:    "Host engine connection invalid/disconnected",
		MaxLimit:              "Max limit reached for the object",
		DuplicateKey:          "Duplicate Key passed to function",
		RequiresRoot:          "Host engine is running as non-root",
		ProfilingNotSupported: "Profiling is not supported for this group of GPUs or GPU",
		NVMLError:             "NVML error",
		ModuleNotLoaded:       "This request is serviced by a module of DCGM that is not currently loaded",
	}
	if text, ok := texts[c]; ok {
		return text
	}

	return "Generic unspecified error"
}

// Level is dcgm_field_entity_group_t.
type Level int

// The levels.
const (
	NoEntity        Level = 0 // the node as a whole
	GPU             Level = 1
	VGPU            Level = 2
	GPUInstance     Level = 4
	ComputeInstance Level = 5
)

// Entity names what a field can have a value for: a GPU or an instance. A GPU's ID is its index; an
// instance gets another ID with every layout change.
type Entity struct {
	Level Level
	ID    uint32
}

// Member is one instance in the hierarchy.
type Member struct {
	Entity, Parent Entity
	GPU            int // index
	UUID           gpu.UUID
	Instance       gpu.InstanceID
	Compute        gpu.ComputeID
	ProfileID      uint32
	Slices         int

	// DCGM does not report these. placement is the instance's own; giPlacement and giProfile are those
	// of its GPU instance, which for a GPU instance is itself.
	placement, giPlacement gpu.Placement
	giProfile              uint32
}

// The limits of DCGM.
const (
	maxGroups   = 64 // two of them are the engine's own
	minInterval = 100 * time.Millisecond
	// lag is how late the hierarchy shows a change: up to 1 s (seen on DCGM 4.5.3).
	lag = time.Second
)

// maxSampleAge returns the age at which DCGM drops a profiling sample: three intervals, but at
// least 3 s (GetMaxAge of one sample with a slack of 200 %: DcgmGpmManagerEntity::AddWatcher of
// DCGM 4).
func maxSampleAge(interval time.Duration) time.Duration { return 3 * max(interval, time.Second) }

// Kind says in which process an engine runs.
type Kind int

// The kinds of engines.
const (
	// Embedded engines run in their client's process, from its first session to its last.
	Embedded Kind = iota
	// Remote engines run in a process of their own and outlive their clients.
	Remote
)

// Engine is a host engine. It is safe for concurrent use. A call that hangs in the driver holds the
// engine's lock, so all other calls wait: one GPU blocks the whole engine (seen on DCGM 4.5.3).
type Engine struct {
	node *sim.Node
	kind Kind
	meta map[uint16]Field // by id
	nvml *sim.Client      // an embedded engine uses NVML, so it keeps all GPUs open

	mu       sync.Mutex
	restarts int // how many restarts of the node's host engine this engine has followed
	life     int // grows when the engine begins; sessions of an earlier life are invalid
	began    bool
	migModes []bool // by GPU, when an embedded engine began: it does not follow later changes
	trees    []tree // by GPU
	freeIDs  map[Level][]uint32
	nextID   map[Level]uint32
	sessions int     // how many sessions were ever opened
	opened   int     // how many sessions are open
	lastID   uintptr // the id of the latest group or field group
	groups   map[uintptr]*group
	fields   map[uintptr]*fieldGroup
	watches  map[watchKey]*watch
	samples  map[Entity]*sampled
	health   map[uintptr]*healthWatch // by group

	entered time.Time // when the call that holds the lock began
	stalled sim.Stop  // the last period in which the engine could not sample: see noteStall
}

// group is a named set of entities.
type group struct {
	session  int
	name     string
	entities []Entity
}

// fieldGroup is a set of fields.
type fieldGroup struct {
	session int
	ids     []uint16
}

// New returns an engine. The first session starts it.
func New(node *sim.Node, kind Kind) *Engine {
	e := &Engine{node: node, kind: kind, meta: make(map[uint16]Field), nvml: node.NewClient(nil)}
	for _, f := range Fields() {
		e.meta[f.ID] = f
	}

	return e
}

// Session is a connection to the engine. Groups and watches end with it.
type Session struct {
	engine *Engine
	number int
	life   int // the engine's life when the session was opened
}

// Open connects to a remote engine, or starts an embedded one unless it runs already. Without root's
// rights an embedded engine does not start if a GPU is in MIG mode.
func (e *Engine) Open() (*Session, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if err := e.begin(); err != nil {
		return nil, err
	}

	e.sessions++
	e.opened++

	return &Session{engine: e, number: e.sessions, life: e.life}, nil
}

// begin starts the engine if it has not begun, or again after a restart. It blocks while the node's
// host engine is stopped, and returns an error while that is down.
func (e *Engine) begin() error {
	e.node.AwaitHostEngine()

	state := e.node.HostEngine()
	if state.Down {
		e.began = false
		e.nvml.End()

		return ConnectionNotValid
	}

	if e.began && state.Restarts == e.restarts {
		return nil
	}

	modes, err := e.readMIGModes(state.NonRoot)
	if err != nil {
		return err
	}

	if e.kind == Embedded {
		e.nvml.End() // NVML is still open from before the restart

		if err := e.nvml.Begin(true); err != nil {
			return NVMLError
		}
	}

	e.restarts = state.Restarts
	e.began = true
	e.life++
	e.opened = 0
	e.groups = e.ownGroups()
	e.fields = map[uintptr]*fieldGroup{}
	e.watches = map[watchKey]*watch{}
	e.samples = map[Entity]*sampled{}
	e.health = map[uintptr]*healthWatch{}
	e.nextID = map[Level]uint32{}
	e.freeIDs = map[Level][]uint32{}
	e.trees = make([]tree, e.node.Count())
	e.migModes = modes

	return nil
}

// readMIGModes reads the MIG mode of each GPU for an embedded engine. If it cannot be read, it counts
// as off.
func (e *Engine) readMIGModes(nonRoot bool) ([]bool, error) {
	modes := make([]bool, e.node.Count())
	for i := range modes {
		if e.kind == Remote {
			continue
		}

		s, err := e.node.Read(i, gpu.ReadingMIG)
		switch {
		case err != nil:
		case s.MIGEnabled && nonRoot:
			return nil, InitError
		default:
			modes[i] = s.MIGEnabled
		}
	}

	return modes, nil
}

// beginCall is lockEngine, but fails if the versions of a remote engine and its client differ.
func (s *Session) beginCall() error {
	err := s.lockEngine()
	if err == nil && s.engine.node.HostEngine().Mismatch {
		s.engine.mu.Unlock()
		err = VersionMismatch
	}

	return err
}

// lockEngine locks the engine for a call, and starts it if necessary. After an error the engine is not
// locked.
func (s *Session) lockEngine() error {
	e := s.engine
	e.mu.Lock()
	e.entered = e.node.Now()
	err := e.begin()
	e.noteStall()

	if err == nil && s.life != e.life {
		err = ConnectionNotValid
	}

	if err != nil {
		e.mu.Unlock()
	}

	return err
}

// The versions of DCGM that the simulated node has.
const (
	Version = "4.5.3"
	// otherVersion is the version with FaultDCGMVersion, too old for the clients.
	otherVersion = "4.2.3"
)

// Version returns the engine's version of DCGM. An embedded engine has the version of its library.
func (s *Session) Version() (string, error) {
	if err := s.lockEngine(); err != nil {
		return "", err
	}

	defer s.engine.mu.Unlock()

	if s.engine.kind == Remote && s.engine.node.HostEngine().Mismatch {
		return otherVersion, nil
	}

	return Version, nil
}

// Close ends the session with its groups, field groups and watches. An embedded engine ends with
// its last session.
func (s *Session) Close() {
	if s.lockEngine() != nil {
		return
	}

	defer s.engine.mu.Unlock()

	if s.engine.opened--; s.engine.opened == 0 && s.engine.kind == Embedded {
		s.engine.began = false
		s.engine.nvml.End()
	}

	for id, g := range s.engine.groups {
		if g.session == s.number {
			s.engine.dropGroup(id)
		}
	}

	for id, f := range s.engine.fields {
		if f.session == s.number {
			delete(s.engine.fields, id)
		}
	}
}

// GPUs lists the ids of the GPUs.
func (s *Session) GPUs() ([]uint32, error) {
	if err := s.beginCall(); err != nil {
		return nil, err
	}

	defer s.engine.mu.Unlock()

	var list []uint32
	for i := range s.engine.node.Count() {
		list = append(list, uint32(i))
	}

	return list, nil
}
