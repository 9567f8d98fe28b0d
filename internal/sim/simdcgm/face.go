// Package simdcgm implements dcgmsource's interfaces with the simulated host engine, in the same
// process.
package simdcgm

import (
	"errors"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/dcgmsource"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/hostengine"
)

// Connector connects to a simulated host engine.
type Connector struct {
	node   *sim.Node
	engine *hostengine.Engine
}

// New returns a Connector to an embedded engine over a node.
func New(node *sim.Node) *Connector {
	return &Connector{node: node, engine: hostengine.New(node, hostengine.Embedded)}
}

// NewRemote returns a Connector to an engine that behaves as if it ran in another process.
func NewRemote(node *sim.Node) *Connector {
	return &Connector{node: node, engine: hostengine.New(node, hostengine.Remote)}
}

// Counts returns how many groups, field groups and watches clients have, for tests.
func (c *Connector) Counts() string { return c.engine.Counts() }

// Connect opens a session.
func (c *Connector) Connect() (dcgmsource.Session, error) {
	s, err := c.engine.Open()
	if err != nil {
		return nil, translate("connect to DCGM", err)
	}

	return &session{node: c.node, session: s}, nil
}

// translate turns an error of the engine into dcgmsource's, by DCGM's code, as for a real engine.
func translate(op string, err error) error {
	if err == nil {
		return nil
	}

	var code hostengine.Code
	if !errors.As(err, &code) {
		return dcgmsource.Translate(op, 0, err.Error())
	}

	return dcgmsource.Translate(op, int(code), err.Error())
}

type session struct {
	node     *sim.Node
	session  *hostengine.Session
	entities []hostengine.Entity
}

func (s *session) Close() error {
	s.session.Close()
	return nil
}

// Devices takes the UUIDs from the node: a real engine reports them live, without a watch. It leaves
// out a GPU whose UUID cannot be read.
func (s *session) Devices() ([]dcgmsource.GPUEntity, error) {
	ids, err := s.session.GPUs()
	if err != nil {
		return nil, translate("list GPUs", err)
	}

	var list []dcgmsource.GPUEntity

	for _, id := range ids {
		if state, err := s.node.Read(int(id), gpu.ReadingDevice); err == nil {
			list = append(list, dcgmsource.GPUEntity{ID: id, UUID: state.UUID})
		}
	}

	return list, nil
}

func (s *session) Hierarchy(to []dcgmsource.MIGEntity) ([]dcgmsource.MIGEntity, error) {
	list, err := s.session.Hierarchy()
	if err != nil {
		return to, translate("read the MIG hierarchy", err)
	}

	for i := range list {
		m := &list[i]
		to = append(to, dcgmsource.MIGEntity{
			Entity:   entityOf(m.Entity),
			GPU:      m.UUID,
			Instance: uint32(m.Instance),
			Compute:  uint32(m.Compute),
			Slices:   m.Slices,
		})
	}

	return to, nil
}

func entityOf(e hostengine.Entity) dcgmsource.Entity {
	level := dcgmsource.LevelGPU

	switch e.Level {
	case hostengine.GPUInstance:
		level = dcgmsource.LevelInstance
	case hostengine.ComputeInstance:
		level = dcgmsource.LevelCompute
	}

	return dcgmsource.Entity{Level: level, ID: e.ID}
}

func engineEntity(e dcgmsource.Entity) hostengine.Entity {
	level := hostengine.GPU

	switch e.Level {
	case dcgmsource.LevelInstance:
		level = hostengine.GPUInstance
	case dcgmsource.LevelCompute:
		level = hostengine.ComputeInstance
	}

	return hostengine.Entity{Level: level, ID: e.ID}
}

func (s *session) CreateFieldGroup(_ string, fields []uint16) (dcgmsource.FieldGroup, error) {
	id, err := s.session.CreateFieldGroup(fields)
	return dcgmsource.FieldGroup(id), translate("create field group", err)
}

func (s *session) DestroyFieldGroup(f dcgmsource.FieldGroup) error {
	return translate("destroy field group", s.session.DestroyFieldGroup(uintptr(f)))
}

func (s *session) CreateGroup(name string) (dcgmsource.Group, error) {
	id, err := s.session.CreateGroup(name)
	return dcgmsource.Group(id), translate("create group", err)
}

func (s *session) AddToGroup(g dcgmsource.Group, e dcgmsource.Entity) error {
	return translate("add to group", s.session.AddEntity(uintptr(g), engineEntity(e)))
}

func (s *session) DestroyGroup(g dcgmsource.Group) error {
	return translate("destroy group", s.session.DestroyGroup(uintptr(g)))
}

func (s *session) Watch(g dcgmsource.Group, f dcgmsource.FieldGroup, every time.Duration) error {
	return translate("watch", s.session.Watch(uintptr(g), uintptr(f), every))
}

func (s *session) Unwatch(g dcgmsource.Group, f dcgmsource.FieldGroup) error {
	return translate("unwatch", s.session.Unwatch(uintptr(g), uintptr(f)))
}

func (s *session) Latest(to []dcgmsource.Value, entities []dcgmsource.Entity,
	fields []uint16) ([]dcgmsource.Value, error) {
	s.entities = s.entities[:0]
	for _, e := range entities {
		s.entities = append(s.entities, engineEntity(e))
	}

	list, err := s.session.Latest(s.entities, fields)
	if err != nil {
		return to, translate("read values", err)
	}

	for i := range list {
		v := &list[i]
		to = append(to, dcgmsource.Value{
			Entity: entityOf(v.Entity),
			Field:  v.Field,
			Type:   v.Type,
			Status: int(v.Status),
			Micros: v.Micros,
			Double: v.Float,
			Int64:  v.Int,
		})
	}

	return to, nil
}
