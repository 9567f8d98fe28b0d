package dcgmsource

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	uuidA gpu.UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	uuidB gpu.UUID = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
)

// fakeEngine is an engine that samples at the very moment it is asked, and fails as the test says.
type fakeEngine struct {
	now     time.Time
	devices []GPUEntity
	tree    []MIGEntity
	// fail is asked before every call; entities are those that it is about.
	fail func(op string, entities []Entity) error
	// value changes what is said of one field.
	value func(v *Value)

	sessions int
	next     uintptr
	groups   map[Group][]Entity
	fields   map[FieldGroup][]uint16
	watches  map[Group]FieldGroup
	biggest  int
	closed   int
}

func newFake(gpus ...gpu.UUID) *fakeEngine {
	e := &fakeEngine{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	for i, id := range gpus {
		e.devices = append(e.devices, GPUEntity{ID: uint32(i), UUID: id})
	}

	e.restart()

	return e
}

func (e *fakeEngine) restart() {
	e.groups = map[Group][]Entity{}
	e.fields = map[FieldGroup][]uint16{}
	e.watches = map[Group]FieldGroup{}
}

func (e *fakeEngine) ask(op string, entities ...Entity) error {
	if e.fail == nil {
		return nil
	}

	return e.fail(op, entities)
}

func (e *fakeEngine) Connect() (Session, error) {
	if err := e.ask("connect"); err != nil {
		return nil, err
	}

	e.sessions++

	return e, nil
}

func (e *fakeEngine) Devices() ([]GPUEntity, error) {
	if err := e.ask("devices"); err != nil {
		return nil, err
	}

	return e.devices, nil
}

func (e *fakeEngine) Hierarchy(to []MIGEntity) ([]MIGEntity, error) {
	return append(to, e.tree...), e.ask("hierarchy")
}

func (e *fakeEngine) CreateFieldGroup(_ string, fields []uint16) (FieldGroup, error) {
	e.next++
	e.fields[FieldGroup(e.next)] = slices.Clone(fields)

	return FieldGroup(e.next), e.ask("fields")
}

func (e *fakeEngine) DestroyFieldGroup(f FieldGroup) error {
	delete(e.fields, f)
	return e.ask("destroy fields")
}

func (e *fakeEngine) CreateGroup(string) (Group, error) {
	if err := e.ask("create"); err != nil {
		return 0, err
	}

	e.next++
	e.groups[Group(e.next)] = nil

	return Group(e.next), nil
}

func (e *fakeEngine) AddToGroup(g Group, of Entity) error {
	e.groups[g] = append(e.groups[g], of)
	return e.ask("add", of)
}

func (e *fakeEngine) DestroyGroup(g Group) error {
	if err := e.ask("destroy", e.groups[g]...); err != nil {
		return err
	}

	delete(e.groups, g)
	delete(e.watches, g)

	return nil
}

func (e *fakeEngine) Watch(g Group, f FieldGroup, _ time.Duration) error {
	if err := e.ask("watch", e.groups[g]...); err != nil {
		return err
	}

	e.watches[g] = f

	return nil
}

func (e *fakeEngine) Unwatch(g Group, _ FieldGroup) error {
	delete(e.watches, g)
	return e.ask("unwatch", e.groups[g]...)
}

func (e *fakeEngine) watched(of Entity, field uint16) bool {
	for g, f := range e.watches {
		if slices.Contains(e.groups[g], of) && slices.Contains(e.fields[f], field) {
			return true
		}
	}

	return false
}

// worth is the value of a field of an entity: no two are alike.
func worth(of Entity, field uint16) float64 {
	return float64(of.Level)/10 + float64(of.ID)/1000 + float64(field-1000)/100000
}

func (e *fakeEngine) Latest(to []Value, entities []Entity, fields []uint16) ([]Value, error) {
	e.biggest = max(e.biggest, len(entities)*len(fields))
	if err := e.ask("latest", entities...); err != nil {
		return to, err
	}

	for _, of := range entities {
		for _, f := range fields {
			v := Value{Entity: of, Field: f, Type: TypeDouble, Micros: e.now.UnixMicro(), Double: worth(of, f)}
			if !e.watched(of, f) {
				v.Status = statusNotWatched
				v.Double = blankDouble
			} else if e.value != nil {
				e.value(&v)
			}

			to = append(to, v)
		}
	}

	return to, nil
}

func (e *fakeEngine) Close() error { e.closed++; e.restart(); return e.ask("close") }

// add puts an instance, and a compute instance of some of its slices, into the hierarchy.
func (e *fakeEngine) add(device int, entity uint32, instance gpu.InstanceID, slices, part int) {
	id := e.devices[device].UUID
	e.tree = append(e.tree,
		MIGEntity{Entity: Entity{LevelInstance, entity}, GPU: id, Instance: uint32(instance), Compute: 0xffffffff,
			Slices: slices},
		MIGEntity{Entity: Entity{LevelCompute, entity}, GPU: id, Instance: uint32(instance), Slices: part})
}

// harness drives a Source as the poll loop does.
type harness struct {
	*testing.T
	engine *fakeEngine
	source *Source
	node   gpu.Snapshot
	lines  strings.Builder
	user   int // that the process runs as
}

func harnessOf(t *testing.T, e *fakeEngine, includeGPM bool) *harness {
	h := &harness{T: t, engine: e}
	h.use(Options{Mode: ModeRemote, Address: "localhost:5555", IncludeGPM: includeGPM})

	for i, d := range e.devices {
		h.node.GPUs = append(h.node.GPUs,
			gpu.GPU{Facts: gpu.Facts{UUID: d.UUID, Index: i}, Device: gpu.Device{Up: true}, MIG: gpu.MIGState{LayoutGeneration: 1}})
	}

	return h
}

// use makes a Source with options.
func (h *harness) use(opts Options) {
	opts.Logger = log.NewLogfmtLogger(&h.lines)
	opts.User = func() int { return h.user }
	opts.Now = func() time.Time { return h.engine.now }
	h.source = New(h.engine, opts)
}

// partition gives a GPU of the Snapshot an instance with a compute instance of some of its slices.
func (h *harness) partition(index int, id gpu.InstanceID, slices, part int) {
	g := &h.node.GPUs[index]
	g.MIG.Enabled = gpu.Some(true)
	g.Instances = append(g.Instances, gpu.GPUInstance{
		ID: id, ComputeSlices: gpu.Some(slices), Placement: gpu.Some(gpu.Placement{Start: int(id), Size: 1}),
		ComputeInstances: []gpu.ComputeInstance{{ComputeSlices: gpu.Some(part)}},
	})
}

func (h *harness) ask() (map[gpu.UUID]gpu.Profiling, error) { return h.source.Profile(&h.node) }

// after lets seconds pass, asking in each, and gives the last answer.
func (h *harness) after(seconds int) map[gpu.UUID]gpu.Profiling {
	h.Helper()
	var answer map[gpu.UUID]gpu.Profiling

	for range seconds {
		h.engine.now = h.engine.now.Add(time.Second)

		var err error
		if answer, err = h.ask(); err != nil {
			h.Fatal(err)
		}
	}

	return answer
}

func (h *harness) groups() string {
	var all []string

	for g, list := range h.engine.groups {
		if _, ok := h.engine.watches[g]; ok {
			all = append(all, fmt.Sprintf("%d %s", len(list), list[0].Level))
		}
	}

	slices.Sort(all)

	return strings.Join(all, ", ")
}
