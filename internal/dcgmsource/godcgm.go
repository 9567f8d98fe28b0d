package dcgmsource

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// connector is the Connector by go-dcgm. It has at most one Session at a time, and a process has at
// most one connector, since go-dcgm's handle is global: a second dcgm.Init would return the first
// one's connection, whatever its address.
type connector struct {
	mode    Mode
	address string

	mu         sync.Mutex
	library    *library // nil until it was loaded
	hasSession bool
}

// Open returns a Connector that connects to a host engine at an address (see ParseAddress), or
// starts one in this process. A process may call it once.
func Open(mode Mode, address string) Connector { return &connector{mode: mode, address: address} }

// Connect loads the library unless it is loaded, and connects.
func (c *connector) Connect() (Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.hasSession {
		return nil, fmt.Errorf(
			"connect to DCGM: %w: the last connection has not been closed",
			gpu.ErrUnavailable,
		)
	}

	if c.library == nil {
		library, err := loadLibrary()
		if err != nil {
			return nil, err
		}

		c.library = library
	}

	if err := c.begin(); err != nil {
		return nil, err
	}

	c.hasSession = true

	return &session{connector: c}, nil
}

// begin starts an engine in this process, or connects to a running one.
func (c *connector) begin() error {
	if c.mode == ModeEmbedded {
		_, err := dcgm.Init(dcgm.Embedded)
		return c.translate("start DCGM", err)
	}

	address, err := ParseAddress(c.address)
	if err != nil {
		return err
	}

	socket := "0"
	if address.Unix {
		socket = "1"
	}

	_, err = dcgm.Init(dcgm.Standalone, address.Target, socket)

	return c.translate("connect to DCGM at "+address.String(), err)
}

// translate returns this package's error for an error of go-dcgm.
func (c *connector) translate(op string, err error) error {
	if err == nil {
		return nil
	}

	code := 0

	var dcgmErr *dcgm.Error
	if errors.As(err, &dcgmErr) {
		code = int(dcgmErr.Code)
	}

	err = Translate(op, code, err.Error())
	if errors.Is(err, ErrVersion) {
		return c.explainVersion(err)
	}

	return err
}

// session is the Session of a connector.
type session struct {
	connector *connector
	pairs     []dcgm.GroupEntityPair // Latest's buffer
	fieldIDs  []dcgm.Short           // shorts' buffer
}

func (s *session) Close() error {
	s.connector.mu.Lock()
	defer s.connector.mu.Unlock()

	s.connector.hasSession = false

	return s.connector.translate("disconnect from DCGM", dcgm.Shutdown())
}

const (
	fieldUUID dcgm.Short = 54 // DCGM_FI_DEV_UUID
	liveData  uint       = 1  // DCGM_FV_FLAG_LIVE_DATA: reads from the driver, without a watch
)

func (s *session) Devices() ([]GPUEntity, error) {
	ids, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU)
	if err != nil {
		return nil, s.connector.translate("list GPUs", err)
	}

	list := make([]GPUEntity, 0, len(ids))
	for _, id := range ids {
		if uuid := readUUID(id); uuid != "" {
			list = append(list, GPUEntity{ID: uint32(id), UUID: uuid})
		}
	}

	return list, nil
}

// readUUID reads the UUID of a GPU as a field: dcgm.GetDeviceInfo would create groups and watches
// for more than that. It returns "" if the engine does not report a UUID.
func readUUID(id uint) gpu.UUID {
	values, err := dcgm.EntitiesGetLatestValues(
		[]dcgm.GroupEntityPair{
			{EntityGroupId: dcgm.FE_GPU, EntityId: id},
		},
		[]dcgm.Short{fieldUUID},
		liveData,
	)
	if err != nil || len(values) != 1 || values[0].Status != 0 || values[0].StringValue == nil {
		return ""
	}

	uuid, err := gpu.ParseUUID(*values[0].StringValue)
	if err != nil { // a blank: "<<<NULL>>>"
		return ""
	}

	return uuid
}

func (s *session) Hierarchy(to []MIGEntity) ([]MIGEntity, error) {
	h, err := dcgm.GetGPUInstanceHierarchy()
	if err != nil {
		return to, s.connector.translate("read the MIG hierarchy", err)
	}

	for i := range min(h.Count, uint(len(h.EntityList))) {
		e := &h.EntityList[i]

		entity, ok := entityOf(e.Entity.EntityGroupId, e.Entity.EntityId)
		if !ok || entity.Level == LevelGPU {
			continue
		}

		to = append(to, MIGEntity{
			Entity:   entity,
			GPU:      gpu.UUID(e.Info.GpuUuid),
			Instance: uint32(e.Info.NvmlInstanceId),
			Compute:  uint32(e.Info.NvmlComputeInstanceId),
			Slices:   int(e.Info.NvmlProfileSlices),
		})
	}

	return to, nil
}

func entityOf(group dcgm.Field_Entity_Group, id uint) (Entity, bool) {
	switch group {
	case dcgm.FE_GPU:
		return Entity{Level: LevelGPU, ID: uint32(id)}, true
	case dcgm.FE_GPU_I:
		return Entity{Level: LevelInstance, ID: uint32(id)}, true
	case dcgm.FE_GPU_CI:
		return Entity{Level: LevelCompute, ID: uint32(id)}, true
	}

	return Entity{}, false
}

func groupOf(l Level) dcgm.Field_Entity_Group {
	return [levels]dcgm.Field_Entity_Group{dcgm.FE_GPU, dcgm.FE_GPU_I, dcgm.FE_GPU_CI}[l]
}

func (s *session) CreateFieldGroup(name string, fields []uint16) (FieldGroup, error) {
	f, err := dcgm.FieldGroupCreate(name, s.shorts(fields))
	if err != nil {
		return 0, s.connector.translate("create field group", err)
	}

	return FieldGroup(f.GetHandle()), nil
}

// shorts returns fields in go-dcgm's type, until the next call.
func (s *session) shorts(fields []uint16) []dcgm.Short {
	s.fieldIDs = s.fieldIDs[:0]
	for _, f := range fields {
		s.fieldIDs = append(s.fieldIDs, dcgm.Short(f))
	}

	return s.fieldIDs
}

func (s *session) DestroyFieldGroup(f FieldGroup) error {
	return s.connector.translate("destroy field group", dcgm.FieldGroupDestroy(fieldHandle(f)))
}

func (s *session) CreateGroup(name string) (Group, error) {
	g, err := dcgm.CreateGroup(name)
	if err != nil {
		return 0, s.connector.translate("create group", err)
	}

	return Group(g.GetHandle()), nil
}

func groupHandle(g Group) dcgm.GroupHandle {
	var h dcgm.GroupHandle
	h.SetHandle(uintptr(g))

	return h
}

func fieldHandle(f FieldGroup) dcgm.FieldHandle {
	var h dcgm.FieldHandle
	h.SetHandle(uintptr(f))

	return h
}

func (s *session) AddToGroup(g Group, e Entity) error {
	return s.connector.translate(
		"add to group",
		dcgm.AddEntityToGroup(groupHandle(g), groupOf(e.Level), uint(e.ID)),
	)
}

func (s *session) DestroyGroup(g Group) error {
	return s.connector.translate("destroy group", dcgm.DestroyGroup(groupHandle(g)))
}

// What an engine keeps of each field that is watched: only the latest value is read.
const (
	anyAge    = 0 // seconds
	oneSample = 1
)

func (s *session) Watch(g Group, f FieldGroup, every time.Duration) error {
	return s.connector.translate(
		"watch",
		dcgm.WatchFieldsWithGroupEx(fieldHandle(f), groupHandle(g), every.Microseconds(),
			anyAge, oneSample),
	)
}

func (s *session) Unwatch(g Group, f FieldGroup) error {
	return s.connector.translate("unwatch", dcgm.UnwatchFields(fieldHandle(f), groupHandle(g)))
}

func (s *session) Latest(to []Value, entities []Entity, fields []uint16) ([]Value, error) {
	s.pairs = s.pairs[:0]
	for _, e := range entities {
		s.pairs = append(
			s.pairs,
			dcgm.GroupEntityPair{EntityGroupId: groupOf(e.Level), EntityId: uint(e.ID)},
		)
	}

	values, err := dcgm.EntitiesGetLatestValues(s.pairs, s.shorts(fields), 0)
	if err != nil {
		return to, s.connector.translate("read values", err)
	}

	for i := range values {
		v := &values[i]

		entity, ok := entityOf(v.EntityGroupId, v.EntityID)
		if !ok {
			continue
		}

		value := Value{
			Entity: entity,
			Field:  uint16(v.FieldID),
			Type:   byte(v.FieldType),
			Status: v.Status,
			Micros: v.TS,
		}

		switch value.Type {
		case TypeDouble:
			value.Double = v.Float64()
		case TypeInt64:
			value.Int64 = v.Int64()
		}

		to = append(to, value)
	}

	return to, nil
}
