package hostengine

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

const scenario = `
version: 1
node: {kubernetes: false}
gpus:
  - {model: A100-40GB}
  - {model: A100-40GB, mig: true, layout: ["3g.20gb@4", {gi: "2g.10gb@0", ci: ["1c"]}, {gi: "1g.5gb@2", ci: []}]}
workloads: [{name: half, memory: 1GiB, sm: 54, dram: 0.5}, {name: slice, memory: 1GiB, sm: 21}]
processes: [{device: 0, workload: half}, {device: 1/3g.20gb@4, workload: slice}]
`

func start(t *testing.T, text string) (*sim.Node, *Engine) {
	t.Helper()

	s, err := sim.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}

	n, err := sim.New(s, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { n.Close() })

	return n, New(n, Embedded)
}

func open(t *testing.T, e *Engine) *Session {
	t.Helper()

	s, err := e.Open()
	if err != nil {
		t.Fatal(err)
	}

	return s
}

func advance(t *testing.T, n *sim.Node, by time.Duration) {
	t.Helper()

	if err := n.Advance(by); err != nil {
		t.Fatal(err)
	}
}

// watchAll watches fields of entities every second.
func watchAll(t *testing.T, s *Session, fields []uint16, entities ...Entity) {
	t.Helper()
	watchEvery(t, s, time.Second, fields, entities...)
}

func watchEvery(t *testing.T, s *Session, interval time.Duration, fields []uint16, entities ...Entity) {
	t.Helper()

	g, err := s.CreateGroup("all")
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entities {
		if err := s.AddEntity(g, e); err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
	}

	f, err := s.CreateFieldGroup(fields)
	if err != nil {
		t.Fatal(err)
	}

	if err := s.Watch(g, f, interval); err != nil {
		t.Fatal(err)
	}
}

func latest(t *testing.T, s *Session, of Entity, field uint16) Value {
	t.Helper()

	v, err := s.Latest([]Entity{of}, []uint16{field})
	if err != nil || len(v) != 1 {
		t.Fatalf("%v, %v", v, err)
	}

	return v[0]
}

func hierarchy(t *testing.T, s *Session) []Member {
	t.Helper()

	list, err := s.Hierarchy()
	if err != nil {
		t.Fatal(err)
	}

	return list
}

func find(t *testing.T, s *Session, profile string, n *sim.Node, level Level) Entity {
	t.Helper()

	st, err := n.Read(1, gpu.ReadingMIG)
	if err != nil {
		t.Fatal(err)
	}

	for _, m := range hierarchy(t, s) {
		if i, ok := st.Instance(m.Instance); ok && i.Profile.Name == profile && m.Entity.Level == level {
			return m.Entity
		}
	}

	t.Fatalf("no %s in the hierarchy", profile)

	return Entity{}
}

func TestValuesNeedAWatchAndAnInterval(t *testing.T) {
	n, e := start(t, scenario)
	s := open(t, e)

	device := Entity{GPU, 0}
	if v := latest(t, s, device, 1002); v.Status != NotWatched || v.Float != FloatBlank {
		t.Errorf("without a watch: %+v", v)
	}

	watchAll(t, s, []uint16{1002, 1005, 1010}, device)
	// A blank of the present with a good status (GetLatestSample: DcgmGpmManager.cpp of DCGM 4).
	first := latest(t, s, device, 1002)
	cmptest.Equal(t, "before an interval", first,
		Value{Entity: device, Field: 1002, Type: 'd', Micros: n.Now().UnixMicro(), Float: FloatBlank})
	advance(t, n, 2*time.Second)
	activity := latest(t, s, device, 1002)
	cmptest.Equal(t, "status of the SM activity", activity.Status, OK)
	cmptest.Equal(t, "SM activity", activity.Float, 0.5)
	cmptest.Equal(t, "its time in microseconds", activity.Micros, n.Now().UnixMicro())

	if v := latest(t, s, device, 1010); v.Type != 'i' || v.Int < 8<<10 {
		t.Errorf("PCIe %+v", v)
	}

	if v := latest(t, s, device, 1003); v.Status != NotWatched {
		t.Errorf("a field that is not watched: %+v", v)
	}
}

func TestBlanksWithAGoodStatus(t *testing.T) {
	n, e := start(t, scenario)
	s := open(t, e)
	gi := find(t, s, "3g.20gb", n, GPUInstance)
	ci := find(t, s, "3g.20gb", n, ComputeInstance)
	orphan := find(t, s, "1g.5gb", n, GPUInstance)
	watchAll(t, s, []uint16{1002, 1005, 1009, 155}, gi, ci, orphan)
	advance(t, n, 2*time.Second)

	if v := latest(t, s, gi, 1002); v.Float != 0.5 {
		t.Errorf("a GPU instance: %+v", v)
	}

	for _, b := range []struct {
		of    Entity
		field uint16
	}{{ci, 1005}, {gi, 1009}, {ci, 1009}} {
		if v := latest(t, s, b.of, b.field); v.Status != OK || v.Float != FloatNotSupported && v.Int != IntNotSupported {
			t.Errorf("field %d of %+v: %+v, want a blank with a good status", b.field, b.of, v)
		}
	}

	if v := latest(t, s, orphan, 1002); v.Status != NoData {
		t.Errorf("a GPU instance without compute instances: %+v", v)
	}
}

// TestHierarchyLags: a change shows 1 s later, whether or not anyone has looked meanwhile; all
// entities of the GPU have other ids then, and an id comes to stand for another instance.
func TestHierarchyLags(t *testing.T) {
	n, e := start(t, scenario)
	s := open(t, e)
	before := hierarchy(t, s)
	watchAll(t, s, []uint16{1002}, find(t, s, "3g.20gb", n, GPUInstance))

	made, err := n.CreateGPUInstance(1, 19, gpu.Some(3))
	if err != nil {
		t.Fatal(err)
	}

	for range 2 {
		if now := hierarchy(t, s); len(now) != len(before) || now[0] != before[0] {
			t.Errorf("the hierarchy shows a change at once: %+v", now)
		}

		advance(t, n, 450*time.Millisecond)
	}

	advance(t, n, 100*time.Millisecond)

	after := hierarchy(t, s)
	if len(after) != len(before)+1 {
		t.Fatalf("after 1 s: %+v", after)
	}

	if err := n.DestroyGPUInstance(1, made); err != nil {
		t.Fatal(err)
	}

	advance(t, n, 2*time.Second)

	if now := hierarchy(t, s); len(now) != len(before) {
		t.Errorf("1 s after a change that no one has looked for: %+v", now)
	}

	reused := false

	for _, m := range after {
		for _, old := range before {
			reused = reused || old.Entity == m.Entity && (old.Instance != m.Instance || old.Compute != m.Compute)
		}
	}

	if !reused {
		t.Errorf("no id stands for another instance:\n%+v\n%+v, made %d", before, after, made)
	}
}

// TestEmbeddedAndRemote: without root an embedded engine does not start on a node with MIG, and it
// ends with its last session; a remote one starts, and outlives its sessions.
func TestEmbeddedAndRemote(t *testing.T) {
	n, embedded := start(t, scenario+"faults: [{kind: dcgm-requires-root, for: 10s}]\n")
	remote := New(n, Remote)

	if _, err := embedded.Open(); !errors.Is(err, InitError) || err.Error() != "DCGM initialization error" {
		t.Errorf("an embedded engine without root: %v", err)
	}

	open(t, remote)
	advance(t, n, 10*time.Second)

	for kind, e := range map[Kind]*Engine{Embedded: embedded, Remote: remote} {
		s := open(t, e)
		other := open(t, e)
		watchAll(t, other, []uint16{150}, Entity{GPU, 0})
		s.Close()

		if v := latest(t, other, Entity{GPU, 0}, 150); v.Status != OK {
			t.Errorf("kind %d: after another session ended: %+v", kind, v)
		}

		other.Close()

		if _, err := s.GPUs(); errors.Is(err, ConnectionNotValid) != (kind == Embedded) {
			t.Errorf("kind %d: after the last session ended: %v", kind, err)
		}
	}
}

func TestLimitsAndRights(t *testing.T) {
	_, e := start(t, scenario)
	s := open(t, e)
	var err error
	var last uintptr

	const free = 62 // of 64: the engine has two groups of its own
	for i := range free + 1 {
		if last, err = s.CreateGroup("g"); (err != nil) != (i == free) {
			t.Fatalf("group %d: %v", i, err)
		}
	}

	if !errors.Is(err, MaxLimit) {
		t.Fatalf("group too many: %v, want %v", err, MaxLimit)
	}

	cmptest.Equal(t, "its text", err.Error(), "Max limit reached for the object")
	cmptest.Equal(t, "its handle", last, 0)
	s.Close()

	if got := e.Counts(); got != "0 groups, 0 field groups, 0 watches" {
		t.Errorf("after the session: %s", got)
	}

	_, e = start(t, "version: 1\nnode: {kubernetes: false, privileged: false}\ngpus: [{model: A100-40GB}]\n")
	s = open(t, e)
	g, _ := s.CreateGroup("g")

	f, _ := s.CreateFieldGroup([]uint16{1002})
	if err := s.AddEntity(g, Entity{GPU, 0}); err != nil {
		t.Fatal(err)
	}

	if err := s.Watch(g, f, time.Second); !errors.Is(err, RequiresRoot) {
		t.Errorf("profiling without rights: %v", err)
	}

	if err := s.AddEntity(g, Entity{GPUInstance, 7}); !errors.Is(err, BadParam) {
		t.Errorf("an entity that is not there: %v", err)
	}
}

func TestFaults(t *testing.T) {
	n, e := start(t, scenario+`
faults:
  - {kind: dcgm-paused, at: 10s, for: 5s}
  - {kind: dcgm-down, at: 20s, for: 5s}
  - {kind: dcgm-restart, at: 30s}
  - {kind: activity-nan, gpu: 0, at: 40s, for: 5s}
  - {kind: activity-above-one, gpu: 0, at: 50s, for: 5s}
`)
	s := open(t, e)
	device := Entity{GPU, 0}
	watchAll(t, s, []uint16{1002}, device)
	advance(t, n, 11*time.Second)

	if v := latest(t, s, device, 1002); v.Status != OK || v.Float != FloatBlank {
		t.Errorf("paused: %+v, want a blank", v)
	}

	advance(t, n, 10*time.Second)

	if _, err := e.Open(); !errors.Is(err, ConnectionNotValid) {
		t.Errorf("open while it is down: %v", err)
	}

	if _, err := s.Hierarchy(); !errors.Is(err, ConnectionNotValid) {
		t.Errorf("a session while it is down: %v", err)
	}

	advance(t, n, 5*time.Second)
	old := s

	s = open(t, e)
	if _, err := old.Hierarchy(); !errors.Is(err, ConnectionNotValid) {
		t.Errorf("a session of before: %v", err)
	}

	watchAll(t, s, []uint16{1002}, device)
	advance(t, n, 5*time.Second)

	if _, err := s.Hierarchy(); !errors.Is(err, ConnectionNotValid) {
		t.Errorf("a session of before the restart: %v", err)
	}

	s = open(t, e)
	watchAll(t, s, []uint16{1002}, device)
	advance(t, n, 10*time.Second)

	if v := latest(t, s, device, 1002); v.Status != OK || !math.IsNaN(v.Float) {
		t.Errorf("no number: %+v", v)
	}

	advance(t, n, 10*time.Second)

	if v := latest(t, s, device, 1002); v.Float < 1 {
		t.Errorf("above one: %+v", v)
	}
}

// TestLive: a device reports its own fields without a watch, which profiling does not.
func TestLive(t *testing.T) {
	n, e := start(t, scenario)
	s := open(t, e)
	gi := find(t, s, "3g.20gb", n, GPUInstance)

	st, err := n.Read(1, gpu.ReadingDevice)
	if err != nil {
		t.Fatal(err)
	}

	list, err := s.Live([]Entity{{GPU, 1}, gi}, []uint16{54, 155, 250, 1002, 9999})
	if err != nil || len(list) != 10 {
		t.Fatalf("%+v, %v", list, err)
	}

	device := list[:5]

	instance := list[5:]
	if device[0].Text != string(st.UUID) || instance[0].Text != device[0].Text {
		t.Errorf("UUIDs %q, %q, want %q", device[0].Text, instance[0].Text, st.UUID)
	}

	if device[1].Float != st.Watts || instance[1].Float != st.Watts {
		t.Errorf("watts %g, of the instance %g; want the GPU's %g for both", device[1].Float, instance[1].Float, st.Watts)
	}

	cmptest.Equal(t, "MiB of framebuffer", device[2].Int, int64(st.MemoryTotal>>20))

	if most := device[2].Int / 2; instance[2].Int == 0 || instance[2].Int > most {
		t.Errorf("%d MiB of framebuffer in the instance, want 1 to %d", instance[2].Int, most)
	}

	if device[3].Status != NotSupported || device[4].Status != UnknownField {
		t.Errorf("profiling live: %+v; a field that there is not: %+v", device[3], device[4])
	}
}

// TestMixedFieldGroup: profiling fields are sampled wherever they are, and a session takes its
// field groups with it.
func TestMixedFieldGroup(t *testing.T) {
	n, e := start(t, scenario)
	s := open(t, e)
	device := Entity{GPU, 0}
	watchAll(t, s, []uint16{155, 1002}, device)
	advance(t, n, 2*time.Second)

	if v := latest(t, s, device, 1002); v.Status != OK || v.Float != 0.5 {
		t.Errorf("behind a device's field: %+v", v)
	}

	if _, err := s.CreateFieldGroup(nil); !errors.Is(err, BadParam) {
		t.Errorf("no fields: %v", err)
	}

	s.Close()

	if got := e.Counts(); got != "0 groups, 0 field groups, 0 watches" {
		t.Errorf("after the session: %s", got)
	}
}
