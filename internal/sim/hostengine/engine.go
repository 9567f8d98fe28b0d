// Package hostengine is a DCGM host engine over the simulated node, with DCGM's habits: entity ids of its own that
// are assigned again, a hierarchy that lags behind the driver, watches that must exist before there are values,
// blanks with a good status. What a comment calls unverified follows DCGM's headers and reports, not a measurement.
package hostengine

import (
	"sync"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// Code is dcgmReturn_t (dcgm_structs.h). As an error it has DCGM's own text.
type Code int

// The codes that this engine gives.
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

// Error is DCGM's text; the codes without one here are answered with the general one.
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

// Entity is what has values. Its id is DCGM's: of a GPU its index, of an instance assigned again after every layout
// change.
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

	// What the hierarchy does not have: the places of the instance and of its GPU instance, and the profile of that.
	place, giPlace gpu.Placement
	giProfile      uint32
}

// The limits of DCGM.
const (
	maxGroups   = 64 // two of them are the engine's own
	minInterval = 100 * time.Millisecond
	// lag is for how long the hierarchy does not show a change: at most 1 s (seen on DCGM 4.5.3).
	lag = time.Second
)

// maxSampleAge returns the age at which a sample of profiling is dropped: three intervals, but 3 s at least (GetMaxAge
// of one sample with a slack of 200 %: DcgmGpmManagerEntity::AddWatcher of DCGM 4).
func maxSampleAge(interval time.Duration) time.Duration { return 3 * max(interval, time.Second) }

// Kind is how an engine is run.
type Kind int

// The kinds of engines.
const (
	// Embedded is one within its client's process: it begins with the first session and ends with the last.
	Embedded Kind = iota
	// Remote is one in a process of its own, which outlives its clients.
	Remote
)

// Engine is a host engine. It is safe for concurrent use. A call that hangs in the driver holds its lock, so that all
// others wait for it: one GPU blocks the whole engine (seen on DCGM 4.5.3).
type Engine struct {
	node *sim.Node
	kind Kind
	meta map[uint16]Field // by id
	nvml *sim.Client      // an embedded engine uses NVML, and so keeps all GPUs open

	mu       sync.Mutex
	restarts int // of the node's, that have been seen
	life     int // grows with every beginning
	began    bool
	mode     []bool // MIG mode by GPU when an embedded engine began: it follows no change of that
	trees    []tree
	freeIDs  map[Level][]uint32
	nextID   map[Level]uint32
	sessions int // since the beginning
	opened   int // of them, not closed yet
	lastID   uintptr
	groups   map[uintptr]*group
	fields   map[uintptr]*fieldGroup
	watches  map[watchKey]*watch
	samples  map[Entity]*sampled
	health   map[uintptr]*healthWatch // by group

	entered time.Time // when the call that holds the lock began
	stalled sim.Stop  // the last time in which the engine could not sample, since it was stopped or a call hung
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

// New makes an engine, which is started by the first session.
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
	life   int // of the engine when it was opened
}

// Open connects to a remote engine, or starts an embedded one. Without root's rights that fails if a GPU is in MIG
// mode.
func (e *Engine) Open() (*Session, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if err := e.alive(); err != nil {
		return nil, err
	}

	e.sessions++
	e.opened++

	return &Session{engine: e, number: e.sessions, life: e.life}, nil
}

// alive lets the faults of the moment have their way, and starts again after a restart.
func (e *Engine) alive() error {
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

	mode, err := e.modes(state.NonRoot)
	if err != nil {
		return err
	}

	if e.kind == Embedded {
		e.nvml.End() // of the engine before a restart

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
	e.mode = mode

	return nil
}

// modes are the MIG modes of the GPUs as an embedded engine begins.
func (e *Engine) modes(nonRoot bool) ([]bool, error) {
	mode := make([]bool, e.node.Count())
	for i := range mode {
		if e.kind == Remote {
			continue
		}

		s, err := e.node.Read(i, gpu.ReadingMIG)
		switch {
		case err != nil:
		case s.MIGEnabled && nonRoot:
			return nil, InitError
		default:
			mode[i] = s.MIGEnabled
		}
	}

	return mode, nil
}

// beginCall begins a call of a session; where err is nil the engine is locked.
func (s *Session) beginCall() error {
	err := s.lockEngine()
	if err == nil && s.engine.node.HostEngine().Mismatch {
		s.engine.mu.Unlock()
		err = VersionMismatch
	}

	return err
}

// lockEngine locks the engine for a session that is still valid; where err is nil the engine is locked.
func (s *Session) lockEngine() error {
	e := s.engine
	e.mu.Lock()
	e.entered = e.node.Now()
	err := e.alive()
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
	// otherVersion is that of a remote engine which does not fit its clients.
	otherVersion = "4.2.3"
)

// Version returns the engine's version of DCGM. An embedded engine has its library's.
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

// Close ends the session with its groups, field groups and watches, and an embedded engine with its last session.
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
